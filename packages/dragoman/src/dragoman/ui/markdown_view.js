// Renders Markdown as elements and text nodes while it grows. Blocks that can no longer change are
// left alone, so that the work for each piece of a stream does not grow with the answer.

import { copyButton, h, pre } from "./dom.js";
import { closesFence, dedent, parseMarkdown } from "./markdown.js";

/** Show the characters that turn the direction of text: code and addresses must read as they run. */
export const showBidi = (text) => text.replace(/[\u202a-\u202e\u2066-\u2069]/g, (character) => `[U+${character.charCodeAt(0).toString(16).toUpperCase()}]`);

export class MarkdownView {
	constructor() {
		this.element = h("div.text");
		/** Where the text that may still change begins, and its elements. */
		this.offset = 0;
		this.tail = [];
		/** The list at the end whose first items are final. */
		this.list = null;
		this.fence = null;
		this.level = 2;
		/** Characters parsed, for tests. */
		this.work = 0;
	}

	/** Show a text that begins with the one shown before. */
	update(text) {
		if (this.fence && !this.extendFence(text)) return;
		for (const node of this.tail) node.remove();
		this.tail = [];
		const rest = text.slice(this.offset);
		this.work += rest.length;
		const blocks = parseMarkdown(rest);
		const starts = findLineStarts(rest);
		// The last line may still become another block: "#" is a heading, "#1" a paragraph.
		// What makes a table is its second line.
		const isFinal = (next) => next && next.line + (next.type === "table" ? 1 : 0) < starts.length - 1;
		let done = 0;
		while (isFinal(blocks[done + 1])) done++;
		for (const block of blocks.slice(0, done)) this.commit(block);
		const base = this.offset;
		if (done) {
			this.offset = base + starts[blocks[done].line];
			this.list = null;
		}
		const [last, ...unsure] = blocks.slice(done);
		if (last?.type === "list") this.openList(last, isFinal, starts, base);
		else if (last?.fence && !last.isClosed && !unsure.length && last.line < starts.length - 1) this.openFence(last, text, base + starts[last.line + 1]);
		else if (last) this.addTail(this.element, render(last, this.level));
		for (const block of unsure) this.addTail(this.element, render(block, this.level));
	}

	commit(block) {
		if (this.list && block.type === "list") block.items.forEach((item) => this.list.append(renderItem(item)));
		else this.element.append(render(block, this.level));
		if (block.type === "heading") this.level = levelOf(block, this.level);
		this.list = null;
	}

	addTail(parent, node) {
		parent.append(node);
		this.tail.push(node);
	}

	openList(block, isFinal, starts, base) {
		const { items } = block;
		let done = 0;
		while (isFinal(items[done + 1])) done++;
		if (done && !this.list) {
			this.list = renderList(block, []);
			this.element.append(this.list);
		}
		for (const item of items.slice(0, done)) this.list.append(renderItem(item));
		if (done) this.offset = base + starts[items[done].line];
		if (!this.list) this.addTail(this.element, render(block, this.level));
		else for (const item of items.slice(done)) this.addTail(this.list, renderItem(item));
	}

	openFence({ fence, language }, text, at) {
		const shown = pre();
		const [lines, partial] = [new Text(), new Text()];
		shown.append(lines, partial);
		this.fence = { ...fence, at, lines, partial, code: "", isEmpty: true };
		const { fence: state } = this;
		this.element.append(frameCode(language, shown, () => state.code + state.partial.data));
		this.list = null;
		this.extendFence(text);
	}

	/** Add to the open fence; whether it has been closed. */
	extendFence(text) {
		const { fence } = this;
		const addLine = (line) => (fence.isEmpty ? "" : "\n") + dedent(line.replace(/\r$/, ""), fence.indent);
		const added = [];
		let isClosed = false;
		for (let end; !isClosed && (end = text.indexOf("\n", fence.at)) >= 0; fence.at = end + 1) {
			const line = text.slice(fence.at, end);
			isClosed = closesFence(line, fence);
			if (!isClosed) {
				added.push(addLine(line));
				fence.isEmpty = false;
			}
		}
		const code = added.join("");
		fence.code += code;
		fence.lines.appendData(showBidi(code));
		const rest = isClosed ? "" : text.slice(fence.at);
		this.work += code.length + rest.length;
		// A closing fence without a line end may still be code.
		fence.partial.data = isClosed || closesFence(rest, fence) ? "" : showBidi(addLine(rest));
		if (isClosed) {
			this.offset = fence.at;
			this.fence = null;
		}
		return isClosed;
	}
}

/** Render a whole text. */
export function renderMarkdown(text) {
	const view = new MarkdownView();
	view.update(text);
	return view.element;
}

function findLineStarts(text) {
	const starts = [0];
	for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) starts.push(at + 1);
	return starts;
}

// The page has the levels 1 and 2; models begin with any, and leave some out.
const levelOf = ({ level }, before) => Math.min(level + 2, before + 1, 6);

const renderBlocks = (blocks, level) => blocks.map((block) => render(block, level));
const renderItem = ({ isDone, blocks }) => h(isDone === null ? "li" : "li.task", { dir: "auto" }, isDone !== null && (isDone ? "☑ " : "☐ "), blocks.map((block, at) => (at === 0 && block.type === "paragraph" ? renderInline(block.inline) : render(block, 2))));
const renderList = ({ isOrdered, items: [{ number }] }, items) => h(isOrdered ? "ol" : "ul", isOrdered ? { start: number } : {}, items);

function render(block, level) {
	switch (block.type) {
		case "heading": return h(`h${levelOf(block, level)}`, { dir: "auto" }, renderInline(block.inline));
		case "code": return frameCode(block.language, pre(showBidi(block.text)), () => block.text);
		case "quote": return h("blockquote", renderBlocks(block.blocks, level));
		case "list": return renderList(block, block.items.map(renderItem));
		case "table": return renderTable(block);
		case "math": return h("pre.math", { tabIndex: 0 }, showBidi(block.text));
		case "rule": return h("hr");
		default: return h("p", { dir: "auto" }, renderInline(block.inline));
	}
}

const frameCode = (language, code, read) => h("div.fence", { dir: "ltr" }, h("div.row.spread", h("span", showBidi(language.slice(0, 40)) || "code"), copyButton(read)), code);

function renderTable({ aligns, head, rows }) {
	const cells = (tag, row) => row.map((cell, column) => h(`${tag}.${aligns[column]}`, { dir: "auto" }, renderInline(cell)));
	return h("div.scroll", { tabIndex: 0, role: "group", ariaLabel: "Table" }, h("table",
		h("thead", h("tr", cells("th", head))), h("tbody", rows.map((row) => h("tr", cells("td", row))))));
}

const TAGS = { strong: "strong", emphasis: "em", deleted: "s" };

function renderInline(nodes) {
	return nodes.map((node) => {
		if (typeof node === "string") return showBidi(node);
		const { type, text, url, children } = node;
		if (type === "break") return h("br");
		if (type === "code") return h("code", showBidi(text));
		if (type === "math") return h("code.math", showBidi(text));
		if (type === "link") return h("a", { href: url, title: url, target: "_blank", rel: "noopener noreferrer nofollow" }, renderInline(children));
		return h(TAGS[type], renderInline(children));
	});
}
