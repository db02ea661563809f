// The Tokens view: prompt and answer, token by token.

import { post } from "./api.js";
import { ask, describe, renderError } from "./ask.js";
import { buildBody, DIALECTS, newReply } from "./dialects.js";
import { addRovingFocus, button, h, showWarnings } from "./dom.js";
import * as state from "./state.js";

const MAX_SHOWN = 6000;
/** The lowest probability of each colour. */
const LEVELS = [0.99, 0.9, 0.7, 0.4, 0.1, 0];
const percent = (p) => `${(p * 100).toFixed(p < 0.1 ? 2 : 1)} %`;
const visible = (text) => text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t");

/** Fetch the rendered prompt of a request. Ollama's API has no such route. */
function explain(node, conversation, options) {
	const name = node.dialect === "ollama" ? "chat" : node.dialect;
	const { path, headers } = DIALECTS[name];
	return post(`${path}/explain`, buildBody(name, conversation, { ...options, stream: false }), { headers });
}

export function createTokens(app) {
	const element = h("div.view");
	let shownNode;

	async function load(node) {
		shownNode = node;
		if (!node) {
			element.replaceChildren(h("div.empty", h("h2", "No answer yet"), h("p", "Ask something in Chat: the tokens of its last answer are shown here.")));
			return;
		}
		const { reply } = node;
		const conversation = state.current.conversation(state.current.find(node.parent));
		const problems = [...reply.warnings];
		let tokens = reply.tokens || [];
		let ids = reply.promptIds || [];
		let read = { token_strs: [], control_tokens: [] };
		let previous = null;
		try {
			if (!ids.length) ({ tokens: ids, previous } = await explain(node, conversation, { ...state.readOptions(), model: node.model }));
			const all = [...ids, ...tokens.map(({ id }) => id).filter((id) => id !== null)];
			if (all.length) read = await post("/detokenize", { model: node.model, tokens: all, return_token_strs: true });
			let at = ids.length;
			tokens = tokens.map((token) => (token.id === null ? token : { ...token, text: read.token_strs[at++] }));
		} catch (error) {
			problems.push(error.message);
		}
		const cached = reply.usage?.cached || 0;
		const prompt = ids.map((id, at) => ({ id, text: read.token_strs[at] ?? null, logprob: null, top: [], isCached: at < cached }));
		if (shownNode === node) render(node, conversation, prompt, previous, tokens, new Set(read.control_tokens), problems);
	}

	function render(node, conversation, prompt, previous, tokens, control, problems) {
		const { reply } = node;
		const detail = h("aside.card.detail", { "aria-live": "polite" }, "Choose a token with the mouse or the arrow keys.");
		const draw = (list, label) => {
			const chips = list.slice(0, MAX_SHOWN).map((token, at) => {
				const isControl = control.has(token.id);
				const level = token.logprob === null ? "" : ` p${LEVELS.findIndex((bound) => Math.exp(token.logprob) >= bound)}`;
				const choose = () => {
					element.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
					chip.setAttribute("aria-selected", "true");
					detail.replaceChildren(...describeToken(token, at, isControl));
				};
				const chip = h("span", {
					className: `tok${level}${isControl ? " control" : ""}${token.isCached ? " cached" : ""} ${token.part || ""}`,
					role: "option", tabIndex: at ? -1 : 0, "aria-selected": "false", onclick: choose, onfocus: choose, ariaLabel: token.text?.trim() === "" ? JSON.stringify(token.text) : null,
				}, visible(token.text ?? `#${token.id}`));
				return chip;
			});
			const box = h("div.tokens", { role: "listbox", ariaLabel: label }, chips);
			addRovingFocus(box, () => chips);
			return [box, list.length > MAX_SHOWN && h("p", `${list.length - MAX_SHOWN} more are not shown.`)];
		};
		const heading = (title, fact) => h("h2", `${title} `, h("small", fact));
		const isScored = tokens.some(({ logprob }) => logprob !== null);
		const { prompt: promptTokens, cached, completion } = reply.usage || {};
		element.replaceChildren(h("div.split",
			h("div",
				showWarnings(problems),
				reply.error && renderError(reply.error),
				h("p.row.legend", "Probability", LEVELS.map((bound, at) => h(`span.tok.p${at}`, bound ? `≥ ${bound * 100} %` : "< 10 %")), h("span.tok.control", "control token"), h("span.tok.cached", "from the prefix cache")),
				heading("Prompt as rendered", `${prompt.length || promptTokens || 0} tokens${cached ? `, ${cached} from the cache` : ""}`),
				prompt.length ? draw(prompt, "Tokens of the prompt") : h("p", "This engine does not show its prompt."),
				previous?.now && h("p.note", `Token ${previous.at} is the first that differs from an earlier prompt: “${previous.now}” instead of “${previous.previous}”.`),
				heading("Answer", `${tokens.length || completion || 0} tokens`),
				tokens.length ? draw(tokens, "Tokens of the answer") : h("p", `${DIALECTS[node.dialect].label} returns no tokens, or the page has been loaded again since.`),
				!isScored && state.hasCapability("logprobs") && h("p.row", button("Ask again with log-probabilities", () => rescore(node, conversation))),
				h("div.meta", describe(reply))),
			detail));
	}

	/** Send the same question to Chat Completions, which returns log-probabilities. */
	async function rescore(node, conversation) {
		const copy = { ...node, dialect: "chat", reply: newReply(), wire: {} };
		await ask("chat", conversation, { ...state.readOptions(), model: node.model, logprobs: true, stream: true }, copy);
		app.node = copy;
		load(copy);
	}

	return { element, show: () => shownNode !== app.node && load(app.node) };
}

function describeToken({ text, id, part, isCached, logprob, top }, at, isControl) {
	const rows = [["Text", JSON.stringify(text)], ["Id", id], ["Position", at], ["Part", part], ["Kind", isControl ? "control token" : isCached && "from the prefix cache"]];
	if (logprob !== null) rows.push(["Logprob", logprob.toFixed(4)], ["Probability", percent(Math.exp(logprob))]);
	const bars = top.map((other) => {
		const p = Math.exp(other.logprob);
		return h("tr", h("td", h("code", JSON.stringify(other.text))), h("td", h("meter", { value: p, ariaLabel: "Probability" })), h("td.num", percent(p)));
	});
	return [h("dl", rows.filter(([, value]) => value || value === 0).map(([name, value]) => [h("dt", name), h("dd", `${value}`)])), bars.length ? h("table", h("caption", "Alternatives"), bars) : ""];
}
