// The Chat view: a conversation, with each answer as a branch.

import { generate, readError } from "./api.js";
import { buildBody, checkTools, DIALECTS, DIALECT_NAMES, newReply, splitDataUrl } from "./dialects.js";
import { button, copyButton, field, form, h, jsonEditor, pretty, prose, quiet, seconds, select, showWarnings, submitButton, throttle, toSpans } from "./dom.js";
import * as state from "./state.js";

const { settings, saveSettings } = state;

const EXAMPLE_TOOLS = [{ name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } }];
const EXAMPLE_SCHEMA = { type: "object", properties: { answer: { type: "string" } }, required: ["answer"] };
const SUGGESTIONS = ["What is the capital of Japan?", "What is 17 + 26?", "Hello! What can you do?"];

/** Send a request; each event updates `reply` and `wire`. Errors become `reply.error`. */
export async function ask(name, conversation, options, { reply, wire, signal, onchange = () => {} }) {
	const dialect = DIALECTS[name];
	const started = performance.now();
	try {
		const body = buildBody(name, conversation, options);
		Object.assign(wire, { dialect: name, body, events: [] });
		const received = await generate(dialect.path, body, dialect.headers, signal, (event) => {
			wire.events.push(event);
			const error = readError(event.json);
			if (error) reply.error = error;
			else if (event.json) dialect.read(reply, event.json);
			if (reply.text || reply.reasoning || reply.calls.length) reply.first ??= event.at;
			onchange();
		});
		reply.warnings = received.get("x-dragoman-warnings")?.split("; ") || [];
		if (!reply.finish) reply.error ??= { message: "The stream ended before the answer." };
	} catch (error) {
		if (error.name === "AbortError") reply.finish = "stopped";
		else reply.error = { message: error.message, status: error.status, code: error.code };
	}
	reply.seconds = (performance.now() - started) / 1000;
}

export function createChat(app) {
	const log = h("div.log", { role: "log", "aria-live": "off", ariaLabel: "Conversation", tabIndex: 0 });
	const announcer = h("div.hidden", { role: "status" });
	const previews = h("div.row");
	const input = h("textarea", {
		rows: 3, placeholder: "Ask something", ariaLabel: "Message",
		onpaste: (event) => addFiles(event.clipboardData.files),
		onkeydown: (event) => {
			if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
			event.preventDefault();
			composer.requestSubmit();
		},
	});
	const file = h("input.hidden", { type: "file", accept: "image/*", multiple: true, tabIndex: -1, ariaLabel: "Images", onchange: () => addFiles(file.files) });
	const attach = quiet("Add images", () => file.click());
	const sendButton = submitButton("Send");
	const stopButton = button("Stop", () => running?.abort(), { className: "danger", hidden: true });
	const composer = form("form.group.composer", sendTurn, previews, input,
		h("div.row.spread", h("span.row", attach, file, h("small", "Enter sends, Shift+Enter adds a line, Esc stops")), h("span.row", stopButton, sendButton)));
	let running = null;
	let images = [];

	function sendTurn() {
		const text = input.value.trim();
		if (running || (!text && !images.length)) return;
		const parent = state.current.path().at(-1)?.id ?? null;
		const node = state.current.add({ parent, role: "user", text, images });
		input.value = "";
		setImages([]);
		answer(node);
	}

	document.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());

	function addFiles(files) {
		for (const one of files) {
			if (!one.type.startsWith("image/")) continue;
			const reader = new FileReader();
			reader.onload = () => setImages([...images, reader.result]);
			reader.readAsDataURL(one);
		}
	}

	function setImages(next) {
		images = next;
		previews.replaceChildren(...images.map((url) => h("span.row.preview", drawImage(url),
			quiet("×", () => setImages(images.filter((other) => other !== url)), { ariaLabel: "Remove image" }))));
	}

	/** Request an answer to a node, as a new branch below it. */
	async function answer(parent) {
		if (running) return;
		const chat = state.current;
		const reply = newReply();
		const { dialect, model } = settings;
		const node = chat.add({ parent: parent.id, role: "assistant", dialect, model, reply });
		const wire = (node.wire = {});
		setRunning(Object.assign(new AbortController(), { node }));
		render();
		const live = log.lastElementChild;
		const onchange = throttle(() => {
			// Scroll down only if the user has not scrolled up.
			const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
			live.update();
			if (isAtEnd) log.scrollTop = log.scrollHeight;
		});
		try {
			const options = state.readOptions();
			await ask(dialect, chat.conversation(parent), options, { reply, wire, signal: running.signal, onchange });
		} catch ({ message }) {
			reply.error = { message };
		}
		setRunning(null);
		state.save();
		render();
		announcer.textContent = reply.error ? `Error: ${reply.error.message}` : `Answer: ${reply.text || "a tool call"}`;
		app.node = node;
		// The request has loaded the model.
		if (!state.hasCapability("generation")) state.loadModels().then(app.refresh, () => {});
	}

	function setRunning(controller) {
		running = controller;
		stopButton.hidden = !running;
		sendButton.hidden = Boolean(running);
		log.setAttribute("aria-busy", Boolean(running));
		if (running) announcer.textContent = "Generating";
	}

	function render() {
		const path = state.current.path();
		log.replaceChildren(...path.map((node) => (node.role === "assistant" ? renderAnswer(node) : renderTurn(node))));
		if (!path.length) log.append(h("div.group.empty", h("h2", "Ask the model"), h("p", "Through any API, with the tokens and raw events behind every answer."), h("div.row.centre", SUGGESTIONS.map(suggest))));
		log.scrollTop = log.scrollHeight;
		side.refreshChats();
	}

	const suggest = (text) => button(text, () => {
		input.value = text;
		composer.requestSubmit();
	});

	function renderHead(node, name, actions) {
		const siblings = state.current.childrenOf(node.parent);
		const at = siblings.indexOf(node);
		const go = (label, step, name) => quiet(label, () => {
			if (running) return;
			state.current.choose(siblings[at + step]);
			render();
		}, { ariaLabel: name, disabled: !siblings[at + step] });
		const branches = siblings.length > 1 && h("span.row", go("‹", -1, "Previous branch"), `${at + 1}/${siblings.length}`, go("›", 1, "Next branch"));
		return h("div.head", h("strong", name), branches, h("span.actions", actions));
	}

	function renderTurn(node) {
		const body = h("div.body");
		const isUser = node.role === "user";
		const show = () => body.replaceChildren(...(isUser
			? [...(node.images || []).map(drawImage), h("div.text", node.text)]
			: node.results.map((result) => h("div.call", h("strong", result.name), h("pre", result.text)))));
		const edit = () => {
			const area = h("textarea", { rows: 4, value: node.text, ariaLabel: "Edit message" });
			const resend = () => running || answer(state.current.add({ ...node, id: undefined, text: area.value }));
			body.replaceChildren(area, h("div.row.end", quiet("Cancel", show), button("Send as a new branch", resend, { className: "primary" })));
			area.focus();
		};
		show();
		const name = isUser ? "You" : "Tool result";
		return h("article.turn", { ariaLabel: name }, renderHead(node, name, isUser ? [copyButton(() => node.text), quiet("Edit", edit)] : []), body);
	}

	function renderAnswer(node) {
		const { reply } = node;
		const isLast = node === state.current.path().at(-1);
		const isRunning = running?.node === node;
		const thoughts = h("pre");
		const reasoning = h("details.reasoning", { open: isRunning }, h("summary", "Reasoning"), thoughts);
		const calls = h("div");
		const text = h("div.text");
		const article = h("article.turn", { ariaLabel: "Answer" });
		article.update = () => {
			reasoning.hidden = !reply.reasoning;
			thoughts.textContent = reply.reasoning;
			text.textContent = reply.text;
			calls.replaceChildren(...reply.calls.map((call) => h("div.call", h("span.tag", "tool call"), " ", h("strong", call.name), h("pre", call.input))));
		};
		article.update();
		const actions = [
			copyButton(() => reply.text),
			quiet("Retry", () => answer(state.current.find(node.parent))),
			["Tokens", "Wire"].map((name) => quiet(name, () => app.inspect(name.toLowerCase(), node))),
		];
		article.append(renderHead(node, `${node.model} · ${DIALECTS[node.dialect].label}`, isRunning ? [] : actions),
			h("div.body", reasoning, isRunning ? text : prose(reply.text), calls, isRunning && h("span.cursor"),
				reply.error && renderError(reply.error), showWarnings(reply.warnings),
				!isRunning && isLast && reply.calls.length > 0 && renderResultForm(node)),
			...(isRunning ? [] : [h("div.meta", describe(reply))]));
		return article;
	}

	function renderResultForm(node) {
		const areas = node.reply.calls.map((call) => [call, h("textarea.code", { rows: 2 })]);
		const submit = () => {
			const results = areas.map(([{ id, name }, { value }]) => ({ id, name, text: value }));
			if (!running) answer(state.current.add({ parent: node.id, role: "tool", results }));
		};
		return form("form.group", submit, areas.map(([call, area]) => field(`Result of ${call.name}`, area)),
			h("div.row.end", submitButton("Send result")));
	}

	const side = createSettings(app, render);
	render();
	return {
		element: h("div.chat", h("section.main", log, composer, announcer), side.element),
		show: () => {
			input.focus({ preventScroll: true });
			log.scrollTop = log.scrollHeight;
		},
		refresh: () => {
			attach.hidden = !state.hasCapability("images");
			side.refresh();
		},
	};
}

/** Draw an image on a canvas: the page's policy forbids data: URLs in an <img>. */
function drawImage(url) {
	const canvas = h("canvas", { role: "img", ariaLabel: "Image" });
	const { type, data } = splitDataUrl(url);
	const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
	createImageBitmap(new Blob([bytes], { type })).then((bitmap) => {
		const scale = Math.min(1, 320 / Math.max(bitmap.width, bitmap.height));
		Object.assign(canvas, { width: Math.ceil(bitmap.width * scale), height: Math.ceil(bitmap.height * scale) });
		canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
	}, () => canvas.replaceWith("An image that this browser cannot show."));
	return canvas;
}

export function renderError({ status, code, message }) {
	return h("div.error", { role: "alert" }, h("strong", [status ? `HTTP ${status}` : "Error", code].filter(Boolean).join(" · ")), h("div", message));
}

export function describe({ usage, finish, seconds: total, first }) {
	const facts = [finish];
	if (usage) {
		facts.push(`${usage.prompt} prompt tokens${usage.cached ? `, ${usage.cached} cached` : ""}`, `${usage.completion} tokens${usage.reasoning ? `, ${usage.reasoning} of reasoning` : ""}`);
		if (usage.completion > 1 && total > first) facts.push(`${((usage.completion - 1) / (total - first)).toFixed(0)} tokens/s`);
	}
	if (first !== undefined) facts.push(`first token ${seconds(first)}`);
	if (total !== undefined) facts.push(`total ${seconds(total)}`);
	return toSpans(facts);
}

function createSettings(app, render) {
	const setting = (label, name, control) => {
		control.value = settings[name] ?? "";
		control.addEventListener("input", () => saveSettings({ [name]: control.value }));
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
	const chats = h("div");
	const model = h("div");
	const body = h("div.group", { id: "settings" }, chats, model,
		choice("API", "dialect", DIALECT_NAMES),
		setting("System prompt", "system", h("textarea", { rows: 3 })),
		choice("Reasoning effort", "effort", [["", "the model's default"], "none", "low", "medium", "high"]),
		h("div.row", check("Stream", "stream"), check("Log-probabilities", "logprobs")),
		group("Sampling",
			h("div.pair", number("Temperature", "temperature", 0.1), number("Max tokens", "maxTokens", 1, "the rest"),
				number("Top p", "topP", 0.05), number("Top k", "topK"),
				number("Seed", "seed", 1, "random"), number("Alternatives", "alternatives", 1, "0")),
			setting("Stop strings, one on each line", "stop", h("textarea", { rows: 2 }))),
		group("Tools", editor("Tools, as JSON", "tools", EXAMPLE_TOOLS, checkTools), choice("Tool choice", "toolChoice", [["", "default"], "auto", "required", "none"])),
		group("Output schema", editor("JSON Schema of the answer", "schema", EXAMPLE_SCHEMA)));
	const toggle = button("Settings", () => toggle.setAttribute("aria-expanded", element.classList.toggle("open")), { className: "toggle", "aria-expanded": "false", "aria-controls": "settings" });
	const element = h("aside.side", { ariaLabel: "Settings" }, toggle, body);
	return {
		element,
		refreshChats: () => {
			const change = (act) => (value) => (act(value), render());
			chats.replaceChildren(field("Conversation", select(state.chats.map((chat) => [chat.id, chat.title]), state.current.id, change(state.openChat))),
				h("div.row.spread", quiet("New", change(state.newChat)), quiet("Delete", change(state.deleteChat))));
		},
		refresh: () => model.replaceChildren(field("Model", select(state.models.map(({ id }) => id), settings.model, (name) => (saveSettings({ model: name }), app.refresh())))),
	};
}
