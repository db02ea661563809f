// Sends a request in the form of an API, and describes its reply.

import { generate, readError } from "./api.js";
import { buildBody, DIALECTS } from "./dialects.js";
import { h, seconds, toSpans } from "./dom.js";

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
			const before = sizeOf(reply);
			if (error) reply.error = error;
			else if (event.json) dialect.read(reply, event.json);
			if (sizeOf(reply) > before) {
				reply.first ??= event.at;
				reply.last = event.at;
				reply.steps = (reply.steps || 0) + 1;
			}
			onchange();
		});
		reply.warnings.push(...(received.get("x-dragoman-warnings")?.split("; ") || []));
		if (!reply.finish) reply.error ??= { message: "The stream ended before the answer." };
	} catch (error) {
		if (error.name === "AbortError") reply.finish = "stopped";
		else reply.error = { message: error.message, status: error.status, code: error.code };
	}
	reply.seconds = (performance.now() - started) / 1000;
}

const sizeOf = ({ text, reasoning, calls }) => calls.reduce((size, call) => size + 1 + call.input.length, text.length + reasoning.length);

export function renderError({ status, code, message }) {
	return h("div.error", { role: "alert" }, h("strong", [status ? `HTTP ${status}` : "Error", code].filter(Boolean).join(" · ")), h("div", message));
}

export function describe({ usage, finish, seconds: total, first, last, steps }) {
	const facts = [finish];
	if (usage) {
		facts.push(`${usage.prompt} prompt tokens${usage.cached ? `, ${usage.cached} cached` : ""}`, `${usage.completion} tokens${usage.reasoning ? `, ${usage.reasoning} of reasoning` : ""}`);
		// An answer that came in a few pieces, or at once, does not show how fast it was generated.
		if (steps > 3 && usage.completion > 1 && last - first > 0.02) facts.push(`${((usage.completion - 1) / (last - first)).toFixed(0)} tokens/s`);
	}
	if (first !== undefined) facts.push(`first token ${seconds(first)}`);
	if (total !== undefined) facts.push(`total ${seconds(total)}`);
	return toSpans(facts);
}
