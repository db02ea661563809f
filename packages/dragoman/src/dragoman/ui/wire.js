// The Wire view: raw events, a request in two dialects, programs that send it.

import { BASE, readKey } from "./api.js";
import { ask, describe, renderError } from "./ask.js";
import { buildBody, DIALECTS, DIALECT_NAMES, newReply } from "./dialects.js";
import { button, copyButton, field, form, h, pre, pretty, readProblem, seconds, select, submitButton, throttle } from "./dom.js";
import { snippet, SNIPPETS } from "./snippets.js";
import * as state from "./state.js";

const MAX_EVENTS = 1000;

export function createWire(app) {
	const columns = [createColumn("chat"), createColumn("messages")];
	const question = h("textarea", { rows: 2, value: "What is 17 + 26?" });
	const problem = h("p.bad", { role: "alert" });
	const stop = button("Stop", () => running?.abort(), { className: "danger", hidden: true });
	let running = null;
	let shownNode = null;
	const askBoth = async () => {
		const options = state.readOptions();
		const conversation = { system: state.settings.system, messages: [{ role: "user", text: question.value }] };
		await Promise.all(columns.map((column) => column.run(conversation, options, running.signal)));
	};
	const start = async () => {
		if (running) return;
		running = new AbortController();
		stop.hidden = false;
		problem.textContent = await readProblem(askBoth());
		running = null;
		stop.hidden = true;
	};
	return {
		element: h("div.view",
			form("form.card", start, field("The same question to both", question), h("div.row", submitButton("Send to both"), stop), problem),
			h("div.columns", columns.map((column) => column.element))),
		show: () => app.node?.wire?.body && app.node !== shownNode && columns[0].open((shownNode = app.node)),
		refresh: () => columns.forEach((column) => column.writeCode()),
	};
}

function createColumn(dialect) {
	let last = null;
	const picker = select(DIALECT_NAMES, dialect, (value) => {
		dialect = value;
		last = null;
		writeCode();
	});
	const language = select(SNIPPETS, "curl", () => writeCode());
	const code = pre();
	const output = h("div.group");
	const body = pre();
	const answer = h("div.text");
	const facts = h("div.meta");
	const events = h("ol.events", { ariaLabel: "Events" });

	function writeCode() {
		const example = { messages: [{ role: "user", text: "Hello" }] };
		const sent = last?.wire.body ?? buildBody(dialect, example, { model: state.settings.model, stream: true });
		code.textContent = snippet(language.value, BASE, dialect, sent, Boolean(readKey()));
	}

	function draw() {
		const { wire, reply } = last;
		body.textContent = pretty(wire.body);
		answer.textContent = reply.text || reply.calls.map((call) => `${call.name}(${call.input})`).join("\n");
		for (let at = events.childElementCount; at < Math.min(wire.events.length, MAX_EVENTS); at++) events.append(drawEvent(wire.events[at], wire.events[at - 1]?.at ?? 0));
		facts.replaceChildren(...describe(reply), h("span", `${wire.events.length} events`));
	}

	function open(entry) {
		last = entry;
		picker.value = dialect = entry.wire.dialect;
		events.replaceChildren();
		output.replaceChildren(h("code", `POST ${DIALECTS[dialect].path}`), h("details", h("summary", "Request body"), body), answer, entry.reply.error ? renderError(entry.reply.error) : "", facts, events);
		draw();
		writeCode();
	}

	async function run(conversation, options, signal) {
		const entry = { wire: { dialect, events: [] }, reply: newReply() };
		open(entry);
		await ask(dialect, conversation, options, { ...entry, signal, onchange: throttle(draw) });
		open(entry);
	}

	const element = h("section.card", field("API", picker), output, h("div.row.spread", field("As a program", language), copyButton(() => code.textContent)), code);
	return { element, open, run, writeCode };
}

/** Leave out the fields that every event of a stream repeats. */
const shorten = (data) => data.replace(/^\{("id".*?(?="delta")|"type":"[^"]*",("(sequence_number|index)":\d+,)*)/, "… ").slice(0, 300);

/** Draw an event on one line; opened, its data as formatted JSON. */
function drawEvent({ at, name, data, json }, before) {
	const full = pre();
	return h("li", h("details", { ontoggle: () => (full.textContent = json ? pretty(json) : data) },
		h("summary", h("span.num", seconds(at)), h("span.num", `+${seconds(at - before)}`), h("b", name === ":" ? "comment" : name || json?.object || "data"), h("code", shorten(data))), full));
}
