// The Chat view: a conversation, with each answer as a branch.

import { ask, describe, renderError } from "./ask.js";
import { createAttachments, drawFile, drawImage } from "./attachments.js";
import { clientCalls, DIALECTS, newReply } from "./dialects.js";
import { button, copyButton, field, form, h, quiet, select, showWarnings, submitButton, throttle } from "./dom.js";
import { createHistory } from "./history.js";
import { MarkdownView } from "./markdown_view.js";
import { createSettings } from "./settings.js";
import * as state from "./state.js";

const { settings, saveSettings } = state;

const SUGGESTIONS = ["What is the capital of Japan?", "What is 17 + 26?", "Hello! What can you do?"];
/** At this width the side panels cover the conversation. */
const NARROW = "(max-width: 900px)";

export function createChat(app) {
	const log = h("div.log", { role: "log", "aria-live": "off", ariaLabel: "Conversation", tabIndex: 0 });
	const announcer = h("div.hidden", { role: "status" });
	const input = h("textarea", {
		rows: 3, placeholder: "Ask something", ariaLabel: "Message",
		onpaste: (event) => attachments.add(event.clipboardData.files),
		onkeydown: (event) => {
			if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
			event.preventDefault();
			composer.requestSubmit();
		},
	});
	const attachments = createAttachments((feature) => chosenModels().every((model) => state.hasCapability(feature, model)));
	const file = h("input.hidden", { type: "file", multiple: true, tabIndex: -1, ariaLabel: "Files", onchange: () => attachments.add([...file.files]).then(() => (file.value = "")) });
	const sendButton = submitButton("Send");
	const stopButton = button("Stop", () => running?.abort(), { className: "danger", hidden: true });
	const composer = form("form.group.composer", sendTurn, attachments.parts, input,
		h("div.row.spread", h("span.row", quiet("Attach", () => file.click(), { title: "Text files, and images and PDF where the model takes them" }), file, h("small", "Enter sends, Shift+Enter adds a line, Esc stops")), h("span.row", stopButton, sendButton)));
	const bar = h("div.row");
	/** The requests that run: an AbortController, with the nodes of their answers. */
	let running = null;
	const views = new WeakMap();
	const articles = new Map();

	const chosenModels = () => [settings.model, ...(settings.second ? [settings.second] : [])];

	function sendTurn() {
		const text = input.value.trim();
		if (running || (!text && attachments.isEmpty())) return;
		const parent = state.current.path().at(-1)?.id ?? null;
		const node = state.current.add({ parent, role: "user", text, ...attachments.take() });
		input.value = "";
		answer(node);
	}

	document.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());

	/** Request an answer to a node from each chosen model, as new branches below it. */
	async function answer(parent) {
		if (running) return;
		const chat = state.current;
		const models = chosenModels();
		const pair = models.length > 1 ? `${Date.now()}` : undefined;
		const nodes = models.map((model) => chat.add({ parent: parent.id, role: "assistant", dialect: settings.dialect, model, pair, reply: newReply(), wire: {} }));
		chat.choose(nodes[0]);
		setRunning(Object.assign(new AbortController(), { nodes }));
		render();
		const { signal } = running;
		await Promise.all(nodes.map((node) => answerWith(node, chat.conversation(parent), signal)));
		setRunning(null);
		state.save();
		render();
		const { reply } = nodes[0];
		announcer.textContent = reply.error ? `Error: ${reply.error.message}` : `Answer: ${reply.text || "a tool call"}`;
		[app.node] = nodes;
		// The request has loaded the model.
		if (!models.every((model) => state.hasCapability("generation", model))) state.loadModels().then(app.refresh, () => {});
	}

	async function answerWith(node, conversation, signal) {
		const { dialect, model, reply, wire } = node;
		const onchange = throttle(() => {
			// Scroll down only if the user has not scrolled up.
			const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
			articles.get(node)?.update();
			if (isAtEnd) log.scrollTop = log.scrollHeight;
		});
		try {
			await ask(dialect, conversation, state.readOptions(model), { reply, wire, signal, onchange });
		} catch ({ message }) {
			reply.error = { message };
		}
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
		articles.clear();
		log.replaceChildren(...path.map(renderNode));
		if (!path.length) log.append(h("div.group.empty", h("h2", "Ask the model"), h("p", "Through any API, with the tokens and raw events behind every answer."), h("div.row.centre", SUGGESTIONS.map(suggest))));
		log.scrollTop = log.scrollHeight;
		history.refresh();
	}

	function renderNode(node) {
		if (node.role !== "assistant") return renderTurn(node);
		const both = node.pair ? state.current.childrenOf(node.parent).filter(({ pair }) => pair === node.pair) : [node];
		return both.length > 1 ? h("div.compare", both.map((one) => renderAnswer(one, one === node))) : renderAnswer(node, true);
	}

	const suggest = (text) => button(text, () => {
		input.value = text;
		composer.requestSubmit();
	});

	const choose = (node) => {
		if (running) return;
		state.current.choose(node);
		render();
	};

	function renderHead(node, name, actions) {
		// Answers to compare are one branch.
		const keyOf = ({ id, pair }) => pair || id;
		const siblings = state.current.childrenOf(node.parent).filter((one, at, all) => all.findIndex((other) => keyOf(other) === keyOf(one)) === at);
		const at = siblings.findIndex((one) => keyOf(one) === keyOf(node));
		const go = (label, step, name) => quiet(label, () => choose(siblings[at + step]), { ariaLabel: name, disabled: !siblings[at + step] });
		const branches = siblings.length > 1 && h("span.row", go("‹", -1, "Previous branch"), `${at + 1}/${siblings.length}`, go("›", 1, "Next branch"));
		return h("div.head", h("strong", name), branches, h("span.actions", actions));
	}

	function renderTurn(node) {
		const body = h("div.body");
		const isUser = node.role === "user";
		const show = () => body.replaceChildren(...(isUser
			? [...(node.images || []).map(drawImage), ...(node.files || []).map(drawFile), h("div.text", { dir: "auto" }, node.text)]
			: node.role === "tool" ? node.results.map((result) => h("div.call", h("strong", result.name), h("pre", result.text)))
				: node.answers.map(({ approve }) => h("div", approve ? "Approved" : "Denied"))));
		const edit = () => {
			const area = h("textarea", { rows: 4, value: node.text, ariaLabel: "Edit message" });
			const resend = () => running || answer(state.current.add({ ...node, id: undefined, text: area.value }));
			body.replaceChildren(area, h("div.row.end", quiet("Cancel", show), button("Send as a new branch", resend, { className: "primary" })));
			area.focus();
		};
		show();
		const name = { user: "You", tool: "Tool result", approval: "Approval" }[node.role];
		return h("article.turn", { ariaLabel: name }, renderHead(node, name, isUser ? [copyButton(() => node.text), quiet("Edit", edit)] : []), body);
	}

	function renderAnswer(node, isChosen) {
		const { reply } = node;
		const isLast = isChosen && node === state.current.path().at(-1);
		const isRunning = Boolean(running?.nodes.includes(node));
		const thoughts = h("pre", "");
		const reasoning = h("details.reasoning", { open: isRunning }, h("summary", "Reasoning"), thoughts);
		const calls = h("div.group");
		if (!views.has(reply)) views.set(reply, new MarkdownView());
		const view = views.get(reply);
		const article = h("article.turn", { ariaLabel: "Answer" });
		article.update = () => {
			reasoning.hidden = !reply.reasoning;
			thoughts.firstChild.appendData(reply.reasoning.slice(thoughts.firstChild.length));
			view.update(reply.text);
			calls.replaceChildren(...reply.calls.map(renderCall));
		};
		article.update();
		articles.set(node, article);
		const actions = [
			copyButton(() => reply.text),
			quiet("Regenerate", () => answer(state.current.find(node.parent))),
			["Tokens", "Wire"].map((name) => quiet(name, () => app.inspect(name.toLowerCase(), node))),
		];
		article.append(renderHead(node, `${node.model} · ${DIALECTS[node.dialect].label}`, isRunning ? [] : actions),
			h("div.body", reasoning, view.element, reply.calls.length > 0 || isRunning ? calls : "", isRunning && h("span.cursor"),
				reply.error && renderError(reply.error), showWarnings(reply.warnings),
				!isRunning && isLast && reply.calls.length > 0 && renderPending(node)));
		if (!isRunning) article.append(h("div.meta", describe(reply)), isChosen ? "" : h("div.row", button("Continue with this answer", () => choose(node))));
		return article;
	}

	/** Ask for what the answer waits for: results of the client's calls, approvals of the server's. */
	function renderPending({ id: parent, reply }) {
		const areas = clientCalls(reply.calls).map((call) => [call, h("textarea.code", { rows: 2 })]);
		const requests = reply.calls.filter(({ state }) => state === "approval");
		const decided = new Map();
		let isFilled = !areas.length;
		const proceed = () => {
			if (running || !isFilled || decided.size < requests.length) return;
			const results = areas.map(([{ id, name }, { value }]) => ({ id, name, text: value }));
			let node = { id: parent };
			if (areas.length) node = state.current.add({ parent, role: "tool", results });
			if (requests.length) node = state.current.add({ parent: node.id, role: "approval", answers: requests.map(({ id }) => ({ id, approve: decided.get(id) })) });
			answer(node);
		};
		const decide = (id, approve, label, props) => button(label, (event) => {
			decided.set(id, approve);
			for (const other of event.target.parentElement.querySelectorAll("button")) other.ariaPressed = other === event.target;
			proceed();
		}, props);
		return [
			...requests.map(({ id, name, server }) => h("div.row", h("span", `${server} wants to run ${name}.`), h("span.row", decide(id, true, "Approve", { className: "primary" }), decide(id, false, "Deny")))),
			areas.length > 0 && form("form.group", () => {
				isFilled = true;
				proceed();
			}, areas.map(([call, area]) => field(`Result of ${call.name}`, area)), h("div.row.end", submitButton("Send result"))),
		];
	}

	function drawBar() {
		const models = state.models.map(({ id }) => id);
		const pick = (name) => (value) => {
			saveSettings({ [name]: value });
			app.refresh();
		};
		const first = select(models, settings.model, pick("model"));
		const second = select([["", "Compare"], ...models], settings.second || "", pick("second"));
		first.ariaLabel = "Model";
		second.ariaLabel = "Second model";
		bar.replaceChildren(toggles.history, first, second, h("span.actions", toggles.side));
	}

	const history = createHistory(() => {
		if (matchMedia(NARROW).matches) setPanel("history", false);
		running?.abort();
		render();
	});
	const panels = { history: history.element, side: createSettings() };
	const toggles = Object.fromEntries([["history", "Chats"], ["side", "Settings"]].map(([name, label]) =>
		[name, quiet(label, () => setPanel(name, panels[name].hidden), { "aria-controls": panels[name].id })]));

	function setPanel(name, isOpen) {
		panels[name].hidden = !isOpen;
		toggles[name].setAttribute("aria-expanded", isOpen);
		if (!matchMedia(NARROW).matches) saveSettings({ closed: Object.keys(panels).filter((one) => panels[one].hidden) });
		else if (isOpen) setPanel(name === "side" ? "history" : "side", false);
	}

	function placePanels() {
		for (const name of Object.keys(panels)) {
			const isOpen = !matchMedia(NARROW).matches && !settings.closed?.includes(name);
			panels[name].hidden = !isOpen;
			toggles[name].setAttribute("aria-expanded", isOpen);
		}
	}

	placePanels();
	matchMedia(NARROW).addEventListener("change", placePanels);
	const element = h("div.chat", panels.history, h("section.main", bar, h("h2.hidden", "Conversation"), log, composer, announcer), panels.side);
	bar.classList.add("bar");
	element.addEventListener("dragover", (event) => event.preventDefault());
	element.addEventListener("drop", (event) => {
		event.preventDefault();
		attachments.add([...event.dataTransfer.files]);
	});
	drawBar();
	render();
	return {
		element,
		show: () => {
			if (!matchMedia(NARROW).matches) input.focus({ preventScroll: true });
			log.scrollTop = log.scrollHeight;
		},
		refresh: drawBar,
	};
}

/** Draw a call: its input, and the output where the server has made it. */
function renderCall({ name, input, server, output, state: status }) {
	const labels = { approval: "needs approval", failed: "failed", called: "called" };
	return h("div.call", h("div.row", h("span.tag", server ? `tool of ${server}` : "tool call"), h("strong", name), server && h("small", labels[status] || "running")),
		h("pre", { tabIndex: 0 }, input), output !== undefined && h("details", h("summary", "Output"), h("pre", { tabIndex: 0 }, output)));
}
