// The settings of requests: API, presets, sampling, tools, output schema.

import { checkTools, DIALECT_NAMES } from "./dialects.js";
import { field, form, h, jsonEditor, pretty, quiet, select } from "./dom.js";
import * as state from "./state.js";

const { settings, saveSettings } = state;

const EXAMPLE_TOOLS = [{ name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } }];
const EXAMPLE_SCHEMA = { type: "object", properties: { answer: { type: "string" } }, required: ["answer"] };

export function createSettings() {
	const controls = {};
	const setting = (label, name, control) => {
		controls[name] = control;
		control.value = settings[name] ?? "";
		control.addEventListener("input", () => {
			saveSettings({ [name]: control.value });
			presets.value = "";
		});
		return field(label, control);
	};
	const number = (label, name, step = 1, placeholder = "default") => setting(label, name, h("input", { type: "number", min: 0, step, placeholder }));
	const choice = (label, name, options) => setting(label, name, select(options));
	const check = (label, name) => h("label.row", h("input", { type: "checkbox", checked: settings[name], onchange: (event) => saveSettings({ [name]: event.target.checked }) }), label);
	const group = (title, ...children) => h("details", h("summary", title), h("div.group", children));
	const editor = (label, name, example, problem) => {
		const made = jsonEditor(label, settings[name], (text) => saveSettings({ [name]: text }), problem);
		return [...made.parts, h("div.row.spread", quiet("Insert an example", () => made.set(pretty(example))), quiet("Clear", () => made.set("")))];
	};

	const presets = h("select", { onchange: () => usePreset(presets.value) });
	const presetRow = h("div");

	function usePreset(name) {
		state.usePreset(name);
		for (const [key, control] of Object.entries(controls)) control.value = settings[key] ?? "";
		drawPresets(name);
	}

	function drawPresets(chosen) {
		const names = Object.keys(state.presets);
		presets.replaceChildren(h("option", { value: "" }, names.length ? "Defaults of the model" : "None saved"), ...names.map((name) => h("option", name)));
		presets.value = chosen;
		presetRow.replaceChildren(h("div.row.spread", quiet("Save as a preset", nameSave),
			chosen ? quiet("Delete preset", () => {
				state.deletePreset(chosen);
				drawPresets("");
			}) : ""));
	}

	function nameSave() {
		const input = h("input", { value: presets.value, maxLength: 60, required: true });
		const save = () => {
			state.savePreset(input.value.trim() || "Preset");
			drawPresets(input.value.trim() || "Preset");
		};
		presetRow.replaceChildren(form("form.group", save, field("Name of the preset", input), h("div.row.end", quiet("Cancel", () => drawPresets(presets.value)), h("button", "Save"))));
		input.focus();
	}

	drawPresets("");
	return h("aside.side", { id: "settings", ariaLabel: "Settings" }, h("div.group",
		choice("API", "dialect", DIALECT_NAMES),
		h("div", field("Preset", presets), presetRow),
		setting("System prompt", "system", h("textarea", { rows: 3 })),
		choice("Reasoning effort", "effort", [["", "the model's default"], "none", "low", "medium", "high"]),
		h("div.row", check("Stream", "stream"), check("Log-probabilities", "logprobs")),
		group("Sampling",
			h("div.pair", number("Temperature", "temperature", 0.1), number("Max tokens", "maxTokens", 1, "the rest"),
				number("Top p", "topP", 0.05), number("Top k", "topK"),
				number("Seed", "seed", 1, "random"), number("Alternatives", "alternatives", 1, "0")),
			setting("Stop strings, one on each line", "stop", h("textarea", { rows: 2 }))),
		group("Tools", editor("Tools, as JSON", "tools", EXAMPLE_TOOLS, checkTools), choice("Tool choice", "toolChoice", [["", "default"], "auto", "required", "none"])),
		group("Output schema", editor("JSON Schema of the answer", "schema", EXAMPLE_SCHEMA))));
}
