// The page: a view per tab, the API key, and the state that the views share.

import { get, onKeyWanted, readKey, saveKey } from "./api.js";
import { createChat } from "./chat.js";
import { addRovingFocus, button } from "./dom.js";
import { createServer } from "./server.js";
import { createSimulator } from "./simulator.js";
import { loadModels } from "./state.js";
import { createTokens } from "./tokens.js";
import { createWire } from "./wire.js";

const VIEWS = { chat: createChat, tokens: createTokens, wire: createWire, server: createServer, simulator: createSimulator };

const find = (id) => document.getElementById(id);
const panel = find("panel");
const tabs = {};
const views = {};
let shown = null;

const app = {
	/** The answer that the Tokens and Wire views show. */
	node: null,
	inspect: (name, node) => {
		app.node = node;
		show(name);
	},
	refresh: () => Object.values(views).forEach((view) => view.refresh?.()),
};

function show(name) {
	views[shown]?.hide?.();
	shown = name;
	const view = (views[name] ||= VIEWS[name](app));
	for (const [other, tab] of Object.entries(tabs)) {
		tab.setAttribute("aria-selected", other === name);
		tab.tabIndex = other === name ? 0 : -1;
	}
	panel.setAttribute("aria-labelledby", tabs[name].id);
	panel.replaceChildren(view.element);
	view.refresh?.();
	view.show?.();
	history.replaceState(null, "", `#${name}`);
}

for (const name of Object.keys(VIEWS)) {
	tabs[name] = button(name[0].toUpperCase() + name.slice(1), () => show(name), { id: `tab-${name}`, role: "tab", "aria-controls": "panel" });
}
find("tabs").append(...Object.values(tabs));
addRovingFocus(find("tabs"), () => Object.values(tabs).filter((tab) => !tab.hidden), (tab) => {
	show(tab.id.slice(4));
	tab.focus();
});

const dialog = find("key-dialog");
const openDialog = () => dialog.open || dialog.showModal();
const showKey = () => (find("key-button").textContent = readKey() ? "Key set" : "Key");
find("key-button").addEventListener("click", openDialog);
onKeyWanted(() => {
	find("key-problem").textContent = readKey() && "The server rejects this key.";
	openDialog();
});
dialog.querySelector("form").addEventListener("submit", (event) => {
	saveKey(event.submitter.value === "forget" ? "" : find("key-input").value.trim());
	find("key-input").value = find("key-problem").textContent = "";
	showKey();
	start();
});

async function start() {
	try {
		await loadModels();
		app.refresh();
		const { data } = await get("/dragoman/simulator", { quiet: true });
		tabs.simulator.hidden = !data.length;
	} catch {
		// A 401 has opened the dialog. Only administrators may read the simulation's state.
	}
}

showKey();
show(location.hash.slice(1) in VIEWS ? location.hash.slice(1) : "chat");
start();
