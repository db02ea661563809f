// The list of conversations: search, rename, delete, export and import.

import { field, form, h, quiet, sureButton } from "./dom.js";
import * as state from "./state.js";

/** onchange: called after another conversation is shown. */
export function createHistory(onchange) {
	const list = h("ul.chats");
	const problem = h("p.note", { role: "status" });
	const search = h("input", { type: "search", placeholder: "Search", ariaLabel: "Search conversations", oninput: () => draw() });
	const file = h("input.hidden", { type: "file", accept: ".json,application/json", tabIndex: -1, ariaLabel: "File of conversations", onchange: () => read(file.files[0]) });
	const change = (act) => () => {
		problem.textContent = "";
		act();
		onchange();
	};
	const foot = h("div.row");
	const element = h("aside.history", { id: "history", ariaLabel: "Conversations" },
		h("div.row", quiet("New conversation", change(() => {
			search.value = "";
			state.newChat();
		}), { className: "wide" })), search, list, problem, foot, file);

	async function read(chosen) {
		if (!chosen) return;
		try {
			const count = state.importChats(await chosen.text());
			onchange();
			problem.textContent = `${count} imported.`;
		} catch ({ message }) {
			problem.textContent = message;
		}
		file.value = "";
	}

	function rename(chat, row) {
		const input = h("input", { value: chat.title, maxLength: 200 });
		const cancel = (event) => event.key === "Escape" && draw();
		row.replaceChildren(form("form.group", () => {
			chat.rename(input.value);
			draw();
		}, field("Name", input), h("div.row.end", quiet("Cancel", () => draw()), h("button", "Save"))));
		row.addEventListener("keydown", cancel, { once: true });
		input.select();
	}

	function drawChat(chat) {
		const isCurrent = chat === state.current;
		const row = h("li", h("button.chat-title", {
			type: "button", ariaCurrent: isCurrent ? "true" : null, title: chat.title,
			onclick: change(() => state.openChat(chat)),
		}, h("span", { dir: "auto" }, chat.title), chat.nodes.length > 0 && h("small", new Date(chat.updated).toLocaleDateString(undefined, { month: "short", day: "numeric" }))));
		if (isCurrent && chat.nodes.length) {
			row.append(h("div.row", quiet("Rename", () => rename(chat, row)), quiet("Export", () => download([chat])),
				sureButton("Delete", "Delete this?", change(() => state.deleteChat(chat)))));
		}
		return row;
	}

	function draw() {
		const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
		const found = words.length ? state.chats.filter((chat) => chat.matches(words)) : state.chats;
		list.replaceChildren(...found.map(drawChat));
		if (!found.length) list.append(h("li.note", "No conversation has these words."));
		const kept = state.chats.filter(({ nodes }) => nodes.length).length;
		foot.replaceChildren(quiet("Import", () => file.click()), ...(kept ? [quiet("Export all", () => download(state.chats)),
			sureButton("Delete all", `Delete all ${kept}?`, change(state.deleteAllChats))] : []));
	}

	return { element, refresh: draw };
}

function download(chats) {
	const url = URL.createObjectURL(new Blob([state.exportChats(chats)], { type: "application/json" }));
	h("a", { href: url, download: "conversations.json" }).click();
	setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
