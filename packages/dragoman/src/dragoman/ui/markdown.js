// Parses the Markdown of answers into plain objects: blocks and inline nodes. Pure, and
// linear in the length of the text, also where nothing is closed.
//
// A subset of CommonMark (https://spec.commonmark.org), with GitHub's tables, tasks and deletions.
// HTML is text. Formulas keep their source.

/** Deeper quotes and lists are text. */
const MAX_DEPTH = 12;
/** Longer paragraphs are plain text. */
const MAX_INLINE = 20_000;
/** Deeper emphasis is text: browsers lay out elements recursively. */
const MAX_NESTED = 32;
const MAX_URL = 2000;
const MAX_CELLS = 64;
/** Lines of a formula. */
const MAX_FORMULA = 100;

export const LINE_END = /\r?\n/;
const FENCE = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})\s*(\S*)/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t](.*))?$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( {1,4})(?=\S)|[ \t]*$| )/;
const UNDERLINE = /^ {0,3}(=+|-+)[ \t]*$/;
const DELIMITERS = /^[-:| \t]*-[-:| \t]*$/;
const MATH = /^ {0,3}(\$\$|\\\[)/;
const isBlank = (line) => !line.trim();

/** Count the columns before the text of a line; a tab goes to the next multiple of four. */
function indentOf(line) {
	let columns = 0;
	for (let at = 0; line[at] === " " || line[at] === "\t"; at++) columns += line[at] === " " ? 1 : 4 - (columns % 4);
	return columns;
}

/** Remove up to `columns` of indentation. A tab that goes beyond is removed too. */
export function dedent(line, columns) {
	let at = 0;
	for (let left = columns; left > 0 && (line[at] === " " || line[at] === "\t"); at++) left -= line[at] === " " ? 1 : 4;
	return line.slice(at);
}

/** The fence that a line opens: {marker, language, indent}, or null. */
export function openFence(line) {
	const [, marker, language] = line.match(FENCE) || [];
	return marker ? { marker, language, indent: indentOf(line) } : null;
}

/** Whether a line closes a fence: its own character, at least as often, and nothing else. */
export function closesFence(line, { marker }) {
	const text = line.trim();
	return text.length >= marker.length && indentOf(line) < 4 && text === marker[0].repeat(text.length);
}

/** Parse a text: its blocks, each with `line` and `end`, the lines it takes. */
export const parseMarkdown = (text) => parseLines(text.split(LINE_END), 0);

function parseLines(lines, depth) {
	const blocks = [];
	let at = 0;
	while (at < lines.length) {
		if (isBlank(lines[at])) at++;
		else {
			const block = readBlock(lines, at, depth);
			blocks.push({ line: at, ...block });
			at = block.end;
		}
	}
	return blocks;
}

function readBlock(lines, at, depth) {
	const line = lines[at];
	const fence = openFence(line);
	if (fence) return readFence(lines, at, fence);
	if (indentOf(line) >= 4) return readIndented(lines, at);
	const heading = line.match(HEADING);
	if (heading) return { type: "heading", level: heading[1].length, inline: parseInline(` ${heading[2] || ""}`.trimEnd().replace(/[ \t]#+$/, "").trim()), end: at + 1 };
	if (RULE.test(line)) return { type: "rule", end: at + 1 };
	if (depth < MAX_DEPTH) {
		if (QUOTE.test(line)) return readQuote(lines, at, depth);
		if (ITEM.test(line)) return readList(lines, at, depth);
	}
	if (isTable(lines, at)) return readTable(lines, at);
	const math = line.match(MATH);
	return (math && readMath(lines, at, math[1])) || readParagraph(lines, at, depth);
}

function readFence(lines, at, fence) {
	let end = at + 1;
	while (end < lines.length && !closesFence(lines[end], fence)) end++;
	const code = lines.slice(at + 1, end).map((line) => dedent(line, fence.indent)).join("\n");
	return { type: "code", fence, language: fence.language, text: code, isClosed: end < lines.length, end: Math.min(end + 1, lines.length) };
}

function readIndented(lines, at) {
	let end = at;
	for (let next = at; next < lines.length && (isBlank(lines[next]) || indentOf(lines[next]) >= 4); next++) {
		if (!isBlank(lines[next])) end = next + 1;
	}
	return { type: "code", language: "", text: lines.slice(at, end).map((line) => dedent(line, 4)).join("\n"), isClosed: true, end };
}

function readQuote(lines, at, depth) {
	const inner = [];
	let end = at;
	// A paragraph of a quote goes on in lines without the mark.
	for (; end < lines.length && !isBlank(lines[end]); end++) {
		if (!QUOTE.test(lines[end]) && (isBlank(inner.at(-1)) || startsBlock(lines, end, depth))) break;
		inner.push(lines[end].replace(QUOTE, ""));
	}
	return { type: "quote", blocks: parseLines(inner, depth + 1), end };
}

const kindOf = (marker) => (/\d/.test(marker) ? `1${marker.at(-1)}` : marker);

function readList(lines, at, depth) {
	const kind = kindOf(lines[at].match(ITEM)[2]);
	const items = [];
	let next = at;
	for (;;) {
		const found = next < lines.length && !RULE.test(lines[next]) && lines[next].match(ITEM);
		if (!found || kindOf(found[2]) !== kind) break;
		const item = readItem(lines, next, found, depth);
		items.push({ line: next, number: Number.parseInt(found[2], 10), ...item });
		next = item.end;
		while (next < lines.length && isBlank(lines[next])) next++;
	}
	return { type: "list", kind, isOrdered: kind[0] === "1", items, end: items.at(-1).end };
}

function readItem(lines, at, [head, space, marker], depth) {
	const inner = [lines[at].slice(head.length)];
	// Models indent what belongs to an item by two columns, also below "1. ".
	const least = space.length + 2;
	let end = at + 1;
	let fence = openFence(inner[0]);
	for (let next = end; next < lines.length; next++) {
		const line = lines[next];
		if (isBlank(line)) inner.push("");
		else if (indentOf(line) >= least) {
			// An inner list keeps its own indentation, since `least` is below the text's column.
			const part = dedent(line, Math.max(least, Math.min(head.length, indentOf(line))));
			if (fence) fence = closesFence(part, fence) ? null : fence;
			else fence = openFence(part);
			inner.push(part);
			end = next + 1;
		} else if (!fence && !isBlank(inner.at(-1)) && !ITEM.test(line) && !startsBlock(lines, next, depth)) {
			inner.push(line);
			end = next + 1;
		} else break;
	}
	inner.length = end - at;
	const task = inner[0].match(/^\[([ xX])\] /);
	if (task) inner[0] = inner[0].slice(4);
	return { isDone: task ? task[1] !== " " : null, blocks: parseLines(inner, depth + 1), end };
}

/** Whether a line begins another block than a paragraph. */
function startsBlock(lines, at, depth) {
	const line = lines[at];
	const item = depth < MAX_DEPTH && line.match(ITEM);
	return Boolean(openFence(line)) || HEADING.test(line) || RULE.test(line) || (depth < MAX_DEPTH && QUOTE.test(line)) || MATH.test(line)
		// "1986. A year" within a paragraph is no list.
		|| Boolean(item && item[3] && (!/\d/.test(item[2]) || Number.parseInt(item[2], 10) <= 1));
}

function isTable(lines, at) {
	if (at + 1 === lines.length || indentOf(lines[at]) >= 4 || !lines[at].includes("|") || !DELIMITERS.test(lines[at + 1])) return false;
	const delimiters = splitRow(lines[at + 1]);
	return delimiters.every((cell) => /^:?-+:?$/.test(cell)) && delimiters.length === splitRow(lines[at]).length;
}

/** Split a row at its bars, but not within code or after a backslash. */
function splitRow(line) {
	const cells = [""];
	for (const [part] of line.trim().replace(/^\||(?<!\\)\|$/g, "").matchAll(/\\\||`[^`]*`|[^|`\\]+|[|`\\]/g)) {
		if (part === "|" && cells.length < MAX_CELLS) cells.push("");
		else cells[cells.length - 1] += part === "\\|" ? "|" : part;
	}
	return cells.map((cell) => cell.trim());
}

function readTable(lines, at) {
	const aligns = splitRow(lines[at + 1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left"));
	const readRow = (line) => {
		const cells = splitRow(line);
		return aligns.map((_, column) => parseInline(cells[column] || ""));
	};
	let end = at + 2;
	while (end < lines.length && !isBlank(lines[end]) && lines[end].includes("|")) end++;
	return { type: "table", aligns, head: readRow(lines[at]), rows: lines.slice(at + 2, end).map(readRow), end };
}

/** Read a formula up to its closing mark. One without a mark before a blank line is a paragraph. */
function readMath(lines, at, open) {
	const close = open === "$$" ? "$$" : "\\]";
	const most = Math.min(lines.length, at + MAX_FORMULA);
	let end = at;
	for (; end < most && !isBlank(lines[end]); end++) {
		const found = lines[end].indexOf(close, end === at ? lines[at].indexOf(open) + 2 : 0);
		if (found < 0) continue;
		if (!isBlank(lines[end].slice(found + 2))) return null;
		return makeMath(lines, at, end + 1);
	}
	// At the end of the text the rest may still come.
	return end >= lines.length - 1 ? makeMath(lines, at, end) : null;
}

const makeMath = (lines, at, end) => ({ type: "math", text: lines.slice(at, end).join("\n").trim(), end });

function readParagraph(lines, at, depth) {
	let end = at + 1;
	for (; end < lines.length && !isBlank(lines[end]); end++) {
		const underline = lines[end].match(UNDERLINE);
		if (underline) return { type: "heading", level: underline[1][0] === "=" ? 1 : 2, inline: parseInline(lines.slice(at, end).join("\n").trim()), end: end + 1 };
		if (startsBlock(lines, end, depth) || isTable(lines, end)) break;
	}
	return { type: "paragraph", inline: parseInline(lines.slice(at, end).join("\n").trim()), end };
}

/** The address of a link that may be followed, or null: no scheme runs a program or reads data of its own. */
export function safeUrl(text) {
	// Control characters and spaces are left out by URL parsers, so "java\nscript:" is a scheme.
	if (text.length > MAX_URL || !/^(?:https?:\/\/|mailto:)[^\s\0-\x20<>"\u202a-\u202e\u2066-\u2069]+$/i.test(text)) return null;
	try {
		const { href, protocol, username, password } = new URL(text);
		// A name before "@" would hide the host.
		return ["http:", "https:", "mailto:"].includes(protocol) && !username && !password ? href : null;
	} catch {
		return null;
	}
}

const SPECIAL = /\\\(|\\[!-/:-@[-`{-~]|\\?\n|`+|\*+|_+|~~|!?\[|\]|<br ?\/?>|<https?:[^\s<>]{1,2000}>|https?:\/\/[^\s<>"]{1,2000}|\$[^\s$](?:[^$\n]{0,998}[^\s$])?\$(?!\d)|[^\\\n`*_~![\]<h$]+|[^]/g;
const isWord = (character) => /[\p{L}\p{N}_]/u.test(character || "");
const isSpace = (character) => !character || /\s/.test(character);
const isPunctuation = (character) => /[\p{P}\p{S}]/u.test(character || "");

/** Parse the text of a paragraph: a list of texts and {type, ...}. */
export function parseInline(text) {
	if (text.length > MAX_INLINE) return [text];
	return new Inline(text).parse();
}

class Inline {
	/** inLink: the text of a link has no links of its own. */
	constructor(text, inLink = false) {
		this.text = text;
		this.inLink = inLink;
		this.frames = [{ marker: "", children: [] }];
		this.open = new Map();
		this.ends = findEnds(text);
	}

	parse() {
		let at = 0;
		while (at < this.text.length) at = this.step(at);
		this.flatten(1);
		return merge(this.frames[0].children);
	}

	add(...nodes) {
		this.frames.at(-1).children.push(...nodes);
	}

	step(at) {
		SPECIAL.lastIndex = at;
		const [part] = SPECIAL.exec(this.text);
		const end = at + part.length;
		const first = part[0];
		if (first === "`") return this.readCode(at, part);
		if (part === "\\(") return this.readFormula(at);
		if (part === "\n" || part === "\\\n") this.readBreak(part);
		else if (first === "\\" && part.length === 2) this.add(part[1]);
		else if (part.startsWith("<br")) this.add({ type: "break" });
		else if (first === "*" || first === "_" || part === "~~") this.readDelimiters(at, part);
		else if (part === "[" || part === "![") return this.readLink(at, part);
		else if (/^<?https?:/.test(part)) return this.readUrl(at, part);
		else if (first === "$" && part.length > 2) this.add({ type: "math", text: part });
		else this.add(part);
		return end;
	}

	readCode(at, marks) {
		const end = this.ends.code(at, marks.length);
		if (end < 0) {
			this.add(marks);
			return at + marks.length;
		}
		const code = this.text.slice(at + marks.length, end).replaceAll("\n", " ");
		this.add({ type: "code", text: /^ .*\S.* $/.test(code) ? code.slice(1, -1) : code });
		return end + marks.length;
	}

	readFormula(at) {
		const end = this.text.slice(at, at + 1000).indexOf("\\)") + at;
		if (end < at) {
			this.add("(");
			return at + 2;
		}
		this.add({ type: "math", text: this.text.slice(at, end + 2) });
		return end + 2;
	}

	readBreak(part) {
		const { children } = this.frames.at(-1);
		const isHard = part !== "\n" || /  $/.test(typeof children.at(-1) === "string" ? children.at(-1) : "");
		this.add(isHard ? { type: "break" } : "\n");
	}

	readUrl(at, part) {
		// Punctuation at the end belongs to the sentence.
		const isMarked = part[0] === "<";
		const shown = isMarked ? part.slice(1, -1) : part.replace(/[?!.,:;*_~'"`\]]+$/, "").replace(/\)+$/, (tail) => (part.includes("(") ? tail : ""));
		const url = !this.inLink && safeUrl(shown);
		this.add(url ? { type: "link", url, children: [shown] } : isMarked ? part : shown);
		return at + (isMarked ? part.length : shown.length);
	}

	readLink(at, part) {
		const from = at + part.length;
		const close = this.ends.bracket(from - 1);
		const target = close > 0 && !this.inLink && this.text[close + 1] === "(" && readTarget(this.text, close + 2);
		if (!target) {
			this.add(part);
			return from;
		}
		const label = this.text.slice(from, close);
		const children = new Inline(label, true).parse();
		const url = safeUrl(target.url);
		// An image would be loaded from elsewhere, which the page's policy forbids.
		if (url) this.add({ type: "link", url, children: label ? children : [target.url] });
		else this.add(...children, ` (${target.url})`);
		return target.end;
	}

	// https://spec.commonmark.org/0.31.2/#delimiter-run, without its rule of three.
	readDelimiters(at, run) {
		const [before, after] = [this.text[at - 1], this.text[at + run.length]];
		const isLeft = !isSpace(after) && (!isPunctuation(after) || isSpace(before) || isPunctuation(before));
		const isRight = !isSpace(before) && (!isPunctuation(before) || isSpace(after) || isPunctuation(after));
		const isInner = run[0] === "_" && isWord(before) && isWord(after);
		let left = run.length;
		if (isRight && !isInner) while (left && this.close(run[0], left)) left -= this.closed;
		if (!isLeft || isInner) {
			if (left) this.add(run.slice(0, left));
			return;
		}
		if (run[0] === "~") return left && this.push("~~");
		if (left > 3) return this.add(run.slice(0, left));
		if (left % 2) this.push(run[0]);
		if (left >= 2) this.push(run[0].repeat(2));
	}

	push(marker) {
		if (this.frames.length > MAX_NESTED) return this.add(marker);
		this.frames.push({ marker, children: [] });
		this.open.set(marker, (this.open.get(marker) || 0) + 1);
	}

	/** Close the innermost emphasis that a run of `left` characters can close. */
	close(character, left) {
		const fits = [character, character.repeat(2)].filter((marker) => marker.length <= left && this.open.get(marker));
		if (!fits.length) return false;
		let at = this.frames.length - 1;
		while (!fits.includes(this.frames[at].marker)) at--;
		this.flatten(at + 1);
		const { marker, children } = this.frames.pop();
		this.open.set(marker, this.open.get(marker) - 1);
		this.closed = marker.length;
		const type = marker === "~~" ? "deleted" : marker.length === 2 ? "strong" : "emphasis";
		this.add(children.length ? { type, children: merge(children) } : marker + marker);
		return true;
	}

	/** Turn the markers from `at` on into text, which nothing has closed. */
	flatten(at) {
		const rest = this.frames.splice(at);
		const { children } = this.frames.at(-1);
		for (const frame of rest) {
			this.open.set(frame.marker, this.open.get(frame.marker) - 1);
			children.push(frame.marker);
			for (const child of frame.children) children.push(child);
		}
	}
}

/** Join texts that follow each other. */
function merge(nodes) {
	const merged = [];
	for (const node of nodes) {
		if (typeof node === "string" && typeof merged.at(-1) === "string") merged.push(merged.pop() + node);
		else merged.push(node);
	}
	return merged;
}

/** Read the address of a link, and its title: {url, end}, or null. */
function readTarget(text, at) {
	const [whole, marked, plain] = text.slice(at, at + MAX_URL + 200).match(/^\s*(?:<([^<>\n]*)>|((?:[^\s()]|\([^\s()]*\))*))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/) || [];
	const url = marked ?? plain;
	return url ? { url, end: at + whole.length } : null;
}

/** Find where code spans and brackets end, each in one pass over the text. */
function findEnds(text) {
	const runs = new Map();
	for (const { 0: run, index } of text.matchAll(/`+/g)) {
		if (!runs.has(run.length)) runs.set(run.length, { starts: [], next: 0 });
		runs.get(run.length).starts.push(index);
	}
	const code = (at, length) => {
		const list = runs.get(length);
		if (!list) return -1;
		while (list.starts[list.next] <= at) list.next++;
		return list.starts[list.next] ?? -1;
	};
	const ends = new Map();
	const stack = [];
	for (const { 0: part, index } of text.matchAll(/\\.|`+[^`]*`+|[[\]]/g)) {
		if (part === "[") stack.push(index);
		else if (part === "]" && stack.length) ends.set(stack.pop(), index);
	}
	return { code, bracket: (at) => ends.get(at) ?? -1 };
}
