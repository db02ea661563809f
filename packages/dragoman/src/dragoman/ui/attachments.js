// Reads the files that a user attaches: images, PDF, and text of any kind.

import { splitDataUrl } from "./dialects.js";
import { h, quiet } from "./dom.js";

const MAX_TEXT = 1 << 20;
const MAX_BYTES = 20 << 20;

const readAs = (file, method) => new Promise((resolve, reject) => {
	const reader = new FileReader();
	reader.onload = () => resolve(reader.result);
	reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
	reader[method](file);
});

/** Read a file: {image} or {file}. Throws an Error for the user. accepts: a feature's name to whether the model has it. */
export async function readAttachment(file, accepts) {
	const { name, size, type } = file;
	const kind = type.startsWith("image/") && type !== "image/svg+xml" ? "images" : type === "application/pdf" ? "files" : "text";
	const limit = kind === "text" ? MAX_TEXT : MAX_BYTES;
	if (size > limit) throw new Error(`${name} is larger than ${limit >> 20} MiB.`);
	if (kind === "images") {
		if (!accepts("images")) throw new Error(`${name}: this model takes no images.`);
		return { image: await readAs(file, "readAsDataURL") };
	}
	if (kind === "files") {
		if (!accepts("files")) throw new Error(`${name}: this model takes no PDF files.`);
		return { file: { name, url: await readAs(file, "readAsDataURL") } };
	}
	try {
		const text = new TextDecoder("utf-8", { fatal: true }).decode(await readAs(file, "readAsArrayBuffer"));
		if (text.includes("\0")) throw new TypeError();
		return { file: { name, text } };
	} catch (error) {
		if (error instanceof TypeError) throw new Error(`${name} is neither an image, a PDF file nor text in UTF-8.`);
		throw error;
	}
}

/** Draw an image on a canvas: the page's policy forbids data: URLs in an <img>. */
export function drawImage(url) {
	const canvas = h("canvas", { role: "img", ariaLabel: "Image" });
	const { type, data } = splitDataUrl(url);
	const decode = async () => createImageBitmap(new Blob([Uint8Array.from(atob(data), (character) => character.charCodeAt(0))], { type }));
	decode().then((bitmap) => {
		const scale = Math.min(1, 320 / Math.max(bitmap.width, bitmap.height));
		Object.assign(canvas, { width: Math.ceil(bitmap.width * scale), height: Math.ceil(bitmap.height * scale) });
		canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
	}, () => canvas.replaceWith("An image that this browser cannot show."));
	return canvas;
}

/** Draw a file: its name, and its text when opened. */
export const drawFile = ({ name, text }) => (text === undefined ? h("div.file", h("span.tag", "PDF"), " ", name)
	: h("details.file", h("summary", name), h("pre", { tabIndex: 0 }, text.slice(0, 20_000), text.length > 20_000 && "\n…")));

/** What is attached to the next message, shown above the composer. */
export function createAttachments(accepts) {
	const element = h("div.row.previews");
	const problem = h("p.bad", { role: "alert" });
	let images = [];
	let files = [];

	function draw() {
		const show = (name, content, remove) => h("span.row.preview", content, quiet("×", () => {
			remove();
			draw();
		}, { ariaLabel: `Remove ${name}` }));
		element.replaceChildren(
			...images.map((url) => show("image", drawImage(url), () => (images = images.filter((other) => other !== url)))),
			...files.map((file) => show(file.name, h("span.tag", file.name), () => (files = files.filter((other) => other !== file)))));
	}

	async function add(list) {
		const problems = [];
		for (const one of list) {
			try {
				const { image, file } = await readAttachment(one, accepts);
				if (image) images.push(image);
				else files.push(file);
			} catch ({ message }) {
				problems.push(message);
			}
		}
		problem.textContent = problems.join(" ");
		draw();
	}

	function take() {
		const taken = { images, files };
		[images, files] = [[], []];
		problem.textContent = "";
		draw();
		return taken;
	}

	return { parts: [element, problem], add, take, isEmpty: () => !images.length && !files.length };
}
