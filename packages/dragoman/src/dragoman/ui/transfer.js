// Exports conversations as JSON, and reads such files: what a file says is checked field by field.

import { DIALECTS } from "./dialects.js";

const FORMAT = "dragoman.conversations";
const ROLES = ["user", "assistant", "tool", "approval"];

export const exportConversations = (chats) => ({ format: FORMAT, version: 1, conversations: chats });

/** Read an exported file: plain conversations. Throws an Error with a sentence for the user. */
export function readConversations(text) {
	let content;
	try {
		content = JSON.parse(text);
	} catch {
		throw new Error("This file is not JSON.");
	}
	if (content?.format !== FORMAT) throw new Error(`This file has no conversations of this page: its "format" is not "${FORMAT}".`);
	if (content.version !== 1) throw new Error(`This file has version ${JSON.stringify(content.version)}; this page reads version 1.`);
	if (!Array.isArray(content.conversations)) throw new Error('"conversations" is not a list.');
	return content.conversations.map((chat, at) => {
		try {
			return readConversation(chat);
		} catch ({ message }) {
			throw new Error(`Conversation ${at + 1}: ${message}`);
		}
	});
}

const isText = (value) => typeof value === "string";
const textOf = (value) => (isText(value) ? value : "");
const list = (value) => (Array.isArray(value) ? value : []);
const numberOf = (value) => (Number.isFinite(value) ? value : undefined);
const isRecord = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const records = (value) => list(value).filter(isRecord);

/** Read a conversation, with the fields that the page knows. */
export function readConversation(chat) {
	if (!isRecord(chat) || !Array.isArray(chat.nodes)) throw new Error('it has no list "nodes".');
	const ids = new Set();
	const nodes = chat.nodes.map((node, at) => {
		const fail = (reason) => {
			throw new Error(`message ${at + 1} ${reason}`);
		};
		if (!isRecord(node)) fail("is not an object.");
		if (!isText(node.id) || ids.has(node.id)) fail('has no "id" of its own.');
		// A parent stands before its children, so that no message is its own ancestor.
		if (node.parent !== null && !ids.has(node.parent)) fail("does not follow one that stands before it.");
		if (!ROLES.includes(node.role)) fail(`has the role ${JSON.stringify(node.role)}.`);
		ids.add(node.id);
		return { id: node.id, parent: node.parent, role: node.role, ...READERS[node.role](node) };
	});
	const chosen = Object.fromEntries(Object.entries(isRecord(chat.chosen) ? chat.chosen : {}).filter(([, id]) => ids.has(id)));
	return { name: textOf(chat.name), updated: numberOf(chat.updated), nodes, chosen };
}

const READERS = {
	user: ({ text, images, files }) => ({
		text: textOf(text),
		images: list(images).filter((url) => isText(url) && /^data:image\/[\w.+-]+;base64,[\w+/=]*$/.test(url)),
		files: records(files).filter(({ name, text, url }) => isText(name) && (isText(text) || /^data:application\/pdf;base64,[\w+/=]*$/.test(url))),
	}),
	tool: ({ results }) => ({ results: records(results).map(({ id, name, text }) => ({ id: textOf(id), name: textOf(name), text: textOf(text) })) }),
	approval: ({ answers }) => ({ answers: records(answers).map(({ id, approve }) => ({ id: textOf(id), approve: approve === true })) }),
	assistant: ({ model, dialect, pair, reply }) => ({ model: textOf(model), dialect: Object.hasOwn(DIALECTS, dialect) ? dialect : "chat", pair: isText(pair) ? pair : undefined, reply: readReply(isRecord(reply) ? reply : {}) }),
};

function readReply({ text, reasoning, calls, items, finish, usage, error, warnings, seconds, first, last, steps }) {
	const readCall = ({ id, name, input, server, output, state }) => ({
		id: textOf(id), name: textOf(name), input: textOf(input), server: isText(server) ? server : undefined,
		output: isText(output) ? output : undefined, state: isText(state) ? state : undefined,
	});
	return {
		text: textOf(text), reasoning: textOf(reasoning), calls: records(calls).map(readCall), items: records(items),
		finish: isText(finish) ? finish : null, warnings: list(warnings).filter(isText),
		usage: isRecord(usage) ? Object.fromEntries(Object.entries(usage).filter(([, value]) => Number.isFinite(value))) : null,
		error: isRecord(error) ? { message: textOf(error.message), status: numberOf(error.status), code: isText(error.code) ? error.code : undefined } : null,
		seconds: numberOf(seconds), first: numberOf(first), last: numberOf(last), steps: numberOf(steps), tokens: [], promptIds: null,
	};
}
