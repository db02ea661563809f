// State in local storage: settings and conversations. Never the key.

import { get } from "./api.js";
import { checkTools } from "./dialects.js";
import { parseJson } from "./dom.js";

const SETTINGS = "dragoman.settings";
const CHATS = "dragoman.chats";

const load = (name) => {
	try {
		return JSON.parse(localStorage.getItem(name)) || {};
	} catch {
		return {};
	}
};

export const settings = {
	dialect: "chat", tools: "", schema: "", stream: true, logprobs: true, alternatives: "5", ...load(SETTINGS),
};

const NUMBERS = ["temperature", "topP", "topK", "maxTokens", "seed", "alternatives"];

export function saveSettings(changes) {
	Object.assign(settings, changes);
	localStorage.setItem(SETTINGS, JSON.stringify(settings));
}

export let models = [];

export async function loadModels() {
	const { data } = await get("/v1/models");
	models = data.filter(({ dragoman }) => dragoman?.capabilities?.includes("generation") ?? true);
	if (!models.some(({ id }) => id === settings.model)) settings.model = models[0]?.id || "";
}

export const hasCapability = (name) => models.find(({ id }) => id === settings.model)?.dragoman?.capabilities?.includes(name) ?? false;

/** Read the options of a request. Throws an Error for the user. */
export function readOptions() {
	const parse = (label, text, check) => {
		const { value, problem } = parseJson(text, check);
		if (problem) throw new Error(`${label}: ${problem}`);
		return value;
	};
	const tools = parse("Tools", settings.tools, checkTools);
	const schema = parse("Output schema", settings.schema);
	const read = ([name, value]) => [name, value === "" ? undefined : NUMBERS.includes(name) ? Number(value) : value];
	const options = Object.fromEntries(Object.entries(settings).map(read));
	const logprobs = (settings.logprobs && hasCapability("logprobs")) || undefined;
	return { ...options, stop: options.stop?.split("\n").filter(Boolean), tools, schema, logprobs };
}

let lastId = 0;
const newId = () => `${Date.now().toString(36)}${++lastId}`;

/** A conversation. Nodes refer to their parent, or null; `chosen` is the visible child. */
class Chat {
	constructor({ id = newId(), nodes = [], chosen = {} } = {}) {
		Object.assign(this, { id, nodes, chosen });
	}

	get title() {
		return this.nodes[0] ? this.nodes[0].text.slice(0, 40) || "Image" : "New conversation";
	}

	find(id) {
		return this.nodes.find((node) => node.id === id);
	}

	childrenOf(parent) {
		return this.nodes.filter((node) => node.parent === parent);
	}

	add(node) {
		const made = { ...node, id: newId() };
		this.nodes.push(made);
		this.choose(made);
		return made;
	}

	choose(node) {
		this.chosen[node.parent ?? ""] = node.id;
		save();
	}

	/** The nodes of the visible branch, from the first turn to the last. */
	path() {
		const path = [];
		for (let children = this.childrenOf(null); children.length; children = this.childrenOf(path.at(-1).id)) {
			const { parent } = children[0];
			path.push(children.find(({ id }) => id === this.chosen[parent ?? ""]) || children.at(-1));
		}
		return path;
	}

	/** The conversation up to a node, in the form of `dialects.js`. */
	conversation(node) {
		const messages = [];
		for (let at = node; at; at = this.find(at.parent)) messages.unshift(at.role === "assistant" ? { ...at, ...at.reply } : at);
		return { system: settings.system, messages };
	}
}

const stored = load(CHATS);
export const chats = (stored.chats || [{}]).map((chat) => new Chat(chat));
export let current = chats.find(({ id }) => id === stored.current) || chats[0];

export function openChat(id) {
	current = chats.find((chat) => chat.id === id);
	save();
}

export function newChat() {
	if (!chats[0].nodes.length) chats.shift();
	chats.unshift(new Chat());
	openChat(chats[0].id);
}

export function deleteChat() {
	chats.splice(chats.indexOf(current), 1);
	if (!chats.length) chats.push(new Chat());
	openChat(chats[0].id);
}

// Tokens and raw events are large, and needed only while the page is open.
const TRANSIENT = ["tokens", "promptIds", "wire"];

export function save() {
	// The quota is about 5 MB: what does not fit is stored without images, or not at all.
	for (const omitted of [TRANSIENT, [...TRANSIENT, "images"]]) {
		try {
			localStorage.setItem(CHATS, JSON.stringify({ current: current.id, chats }, (name, value) => (omitted.includes(name) ? undefined : value)));
			return;
		} catch {
			localStorage.removeItem(CHATS);
		}
	}
}
