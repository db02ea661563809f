// State in local storage: settings and conversations. Never the key.

import { get } from "./api.js";
import { checkTools } from "./dialects.js";
import { parseJson } from "./dom.js";
import { exportConversations, readConversation, readConversations } from "./transfer.js";

const SETTINGS = "dragoman.settings";
const CHATS = "dragoman.chats";

const PRESETS = "dragoman.presets";

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

/** The settings that a preset keeps. */
const PRESET_SETTINGS = ["system", "effort", "temperature", "topP", "topK", "maxTokens", "seed", "stop"];

export const presets = load(PRESETS);

const savePresets = () => localStorage.setItem(PRESETS, JSON.stringify(presets));

export function savePreset(name) {
	presets[name] = Object.fromEntries(PRESET_SETTINGS.map((setting) => [setting, settings[setting] ?? ""]));
	savePresets();
}

export function deletePreset(name) {
	delete presets[name];
	savePresets();
}

export const usePreset = (name) => saveSettings(presets[name] || Object.fromEntries(PRESET_SETTINGS.map((setting) => [setting, ""])));

export let models = [];

export async function loadModels() {
	const { data } = await get("/v1/models");
	models = data.filter(({ dragoman }) => dragoman?.capabilities?.includes("generation") ?? true);
	const isListed = (name) => models.some(({ id }) => id === name);
	if (!isListed(settings.model)) settings.model = models[0]?.id || "";
	if (!isListed(settings.second)) settings.second = "";
}

const find = (model) => models.find(({ id }) => id === model)?.dragoman;

export const hasCapability = (name, model = settings.model) => find(model)?.capabilities?.includes(name) ?? false;

/** Read the options of a request. Throws an Error for the user. */
export function readOptions(model = settings.model) {
	const parse = (label, text, check) => {
		const { value, problem } = parseJson(text, check);
		if (problem) throw new Error(`${label}: ${problem}`);
		return value;
	};
	const tools = parse("Tools", settings.tools, checkTools);
	const schema = parse("Output schema", settings.schema);
	const read = ([name, value]) => [name, value === "" ? undefined : NUMBERS.includes(name) ? Number(value) : value];
	const options = Object.fromEntries(Object.entries(settings).map(read));
	const logprobs = (settings.logprobs && hasCapability("logprobs", model)) || undefined;
	// An engine that reports fewer alternatives would warn at every answer.
	const most = find(model)?.max_alternatives;
	if (options.alternatives > most) options.alternatives = most;
	return { ...options, model, stop: options.stop?.split("\n").filter(Boolean), tools, schema, logprobs };
}

let lastId = 0;
const newId = () => `${Date.now().toString(36)}${++lastId}`;

/** A conversation. Nodes refer to their parent, or null; `chosen` is the visible child. */
class Chat {
	constructor({ id = newId(), name = "", updated = Date.now(), nodes = [], chosen = {} } = {}) {
		Object.assign(this, { id, name, updated, nodes, chosen });
	}

	get title() {
		return this.name || (this.nodes[0] ? this.nodes[0].text.slice(0, 60) || "Attachment" : "New conversation");
	}

	rename(name) {
		this.name = name.trim();
		save();
	}

	/** Whether all words occur in the title or in a message. */
	matches(words) {
		const texts = [this.title, ...this.nodes.map(({ text, reply }) => text || reply?.text || "")].join("\n").toLowerCase();
		return words.every((word) => texts.includes(word));
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
		this.updated = Date.now();
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

/** Read what an earlier version of the page, or anything else, has stored. */
function restore(chat) {
	try {
		return [new Chat({ id: chat.id, ...readConversation(chat) })];
	} catch {
		return [];
	}
}

export const chats = [].concat(stored.chats || []).flatMap(restore);
if (!chats.length) chats.push(new Chat());
export let current = chats.find(({ id }) => id === stored.current) || chats[0];

export function openChat(chat) {
	current = chat;
	save();
}

export function newChat() {
	if (!chats[0].nodes.length) chats.shift();
	chats.unshift(new Chat());
	openChat(chats[0]);
}

export function deleteChat(chat) {
	chats.splice(chats.indexOf(chat), 1);
	if (!chats.length) chats.push(new Chat());
	openChat(chat === current ? chats[0] : current);
}

export function deleteAllChats() {
	chats.length = 0;
	chats.push(new Chat());
	openChat(chats[0]);
}

/** Export conversations as the text of a file. */
export const exportChats = (list) => JSON.stringify(exportConversations(list.filter(({ nodes }) => nodes.length)), omit(TRANSIENT), 1);

/** Add the conversations of an exported file. Throws an Error for the user. */
export function importChats(text) {
	const added = readConversations(text).map((chat) => new Chat(chat));
	if (!added.length) throw new Error("This file has no conversations.");
	chats.unshift(...added);
	openChat(added[0]);
	return added.length;
}

// Tokens and raw events are large, and needed only while the page is open.
const TRANSIENT = ["tokens", "promptIds", "wire"];
const omit = (names) => (name, value) => (names.includes(name) ? undefined : value);

export function save() {
	// The quota is about 5 MB: what does not fit is stored without attachments, or not at all.
	for (const names of [TRANSIENT, [...TRANSIENT, "images", "files"]]) {
		try {
			localStorage.setItem(CHATS, JSON.stringify({ current: current.id, chats }, omit(names)));
			return;
		} catch {
			localStorage.removeItem(CHATS);
		}
	}
}
