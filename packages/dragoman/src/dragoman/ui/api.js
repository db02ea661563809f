// Requests to the server of this page.

/** The prefix of all paths, which a proxy may add: the page is BASE/ui. */
export const BASE = new URL(".", location.href).href.slice(0, -1);

const KEY = "dragoman.key";
let askForKey = () => {};

export const onKeyWanted = (callback) => (askForKey = callback);
export const readKey = () => sessionStorage.getItem(KEY) || "";
export const saveKey = (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));

/** Read {message, code} from an error of any dialect, or null. */
export function readError(body) {
	const error = body?.error || body?.response?.error || (body?.type === "error" && body);
	if (!error) return null;
	return typeof error === "string" ? { message: error } : { message: error.message, code: error.code || error.type };
}

const fail = (message, facts) => {
	throw Object.assign(new Error(message), facts);
};

// quiet: a 401 does not open the dialog for the key.
/** Send a request. Throws an Error with `status` (0: no response) and `code`. */
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

// at: seconds since the request. name: ":" for a comment.
/** Send a request and pass on each event of its stream: {at, name, data, json}. */
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
		return null; // "[DONE]", a comment, or the error page of a proxy
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

// https://html.spec.whatwg.org/multipage/server-sent-events.html
/** Parse server-sent events, as far as servers of these dialects use them. */
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
