// Requests to the server of this page only.

/** The page is at BASE/ui, also behind a proxy or a mounting application that adds a prefix. */
export const BASE = new URL(".", location.href).href.slice(0, -1);

const KEY = "dragoman.key";
let askForKey = () => {};

export const onKeyWanted = (callback) => (askForKey = callback);
export const readKey = () => sessionStorage.getItem(KEY) || "";
export const saveKey = (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));

/** {message, code} of an error in any dialect, or null. */
export function readError(body) {
	const error = body?.error || body?.response?.error || (body?.type === "error" && body);
	if (!error) return null;
	return typeof error === "string" ? { message: error } : { message: error.message, code: error.code || error.type };
}

const fail = (message, facts) => {
	throw Object.assign(new Error(message), facts);
};

/** Send a request. Throws an Error with `status` (0: no response) and `code`. quiet: a 401 does not open the dialog. */
export async function send(path, { body, method = body ? "POST" : "GET", headers, signal, quiet = false } = {}) {
	const all = { ...headers };
	if (body) all["content-type"] = "application/json";
	if (readKey()) all.authorization = `Bearer ${readKey()}`;
	let response;
	try {
		response = await fetch(BASE + path, { method, headers: all, body: JSON.stringify(body), signal, credentials: "omit" });
	} catch (error) {
		if (error.name === "AbortError") throw error;
		fail("The server cannot be reached.", { status: 0 });
	}
	if (response.ok) return response;
	if (response.status === 401 && !quiet) askForKey();
	const text = await response.text();
	const problem = readError(tryParse(text)) || { message: text.slice(0, 300) || response.statusText };
	fail(problem.message, { status: response.status, code: problem.code });
}

export const get = async (path, options) => (await send(path, options)).json();
export const post = (path, body, options) => get(path, { body, ...options });

/** Send a request and pass on every event: {at, name, data, json}; `at` is in seconds, the name ":" a comment. */
export async function generate(path, body, headers, signal, onevent) {
	const started = performance.now();
	const now = () => (performance.now() - started) / 1000;
	const response = await send(path, { body, headers, signal });
	const emit = (name, data) => onevent({ at: now(), name, data, json: tryParse(data) });
	const type = response.headers.get("content-type") || "";
	if (type.startsWith("application/json")) emit("", await response.text());
	else if (type.includes("ndjson")) await readText(response.body, "\n", (line) => emit("", line));
	else await readText(response.body, /\r?\n\r?\n/, (block) => parseEvent(block, emit));
	return response.headers;
}

function tryParse(data) {
	try {
		return JSON.parse(data);
	} catch {
		return null; // "[DONE]", a comment, a proxy's error page
	}
}

async function readText(stream, separator, ontext) {
	const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
	let rest = "";
	for (;;) {
		const { done, value } = await reader.read();
		const parts = (rest + (value || "")).split(separator);
		rest = done ? "" : parts.pop();
		parts.filter(Boolean).forEach(ontext);
		if (done) return;
	}
}

/** https://html.spec.whatwg.org/multipage/server-sent-events.html, as far as servers of these dialects use it. */
function parseEvent(block, emit) {
	let name = "";
	const data = [];
	for (const line of block.split(/\r?\n/)) {
		if (line.startsWith(":")) emit(":", line.slice(1).trim());
		else if (line.startsWith("event:")) name = line.slice(6).trim();
		else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
	}
	if (data.length) emit(name, data.join("\n"));
}
