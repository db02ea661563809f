// Generates programs that send a request of the page.

import { DIALECTS } from "./dialects.js";
import { pretty } from "./dom.js";

export const SNIPPETS = ["curl", ["openai", "Python, openai"], ["anthropic", "Python, anthropic"], ["ollama", "Python, ollama"], ["javascript", "JavaScript"]];
/** Fields that an SDK's method lacks, passed in `extra_body`. */
const EXTRA = { chat: ["top_k", "return_token_ids"], responses: ["top_k", "seed", "stop"], messages: ["temperature", "top_p", "top_k", "seed"], ollama: [] };

function python(value, indent = "    ") {
	const inner = `${indent}    `;
	if (Array.isArray(value)) return `[${value.map((item) => python(item, indent)).join(", ")}]`;
	if (value && typeof value === "object") return `{\n${Object.entries(value).map(([key, item]) => `${inner}${JSON.stringify(key)}: ${python(item, inner)},\n`).join("")}${indent}}`;
	const text = JSON.stringify(value);
	return { true: "True", false: "False", null: "None" }[text] ?? text;
}

/** hasKey: the program reads the key from the environment, and never contains it. */
export function snippet(language, base, dialect, body, hasKey) {
	const { path, headers } = DIALECTS[dialect];
	const all = Object.entries({ "content-type": "application/json", ...headers });
	if (language === "curl") {
		const flags = all.map(([name, value]) => `-H '${name}: ${value}'`);
		if (hasKey) flags.push('-H "authorization: Bearer $DRAGOMAN_API_KEY"');
		return [`curl -N ${base}${path}`, ...flags, `-d '${pretty(body).replaceAll("'", "'\\''")}'\n`].join(" \\\n  ");
	}
	if (language === "javascript") {
		const list = all.map(([name, value]) => `"${name}": "${value}"`);
		if (hasKey) list.push("authorization: `Bearer ${process.env.DRAGOMAN_API_KEY}`");
		return `const response = await fetch("${base}${path}", {\n  method: "POST",\n  headers: { ${list.join(", ")} },\n  body: JSON.stringify(${pretty(body).replaceAll("\n", "\n  ")}),\n});\nfor await (const chunk of response.body.pipeThrough(new TextDecoderStream())) console.log(chunk);\n`;
	}
	const method = {
		openai: { chat: "chat.completions.create", responses: "responses.create" },
		anthropic: { messages: "messages.create" },
		ollama: { ollama: "chat" },
	}[language][dialect];
	if (!method) return `# The package ${language} speaks another API: choose that API above.\n`;
	const key = hasKey ? 'os.environ["DRAGOMAN_API_KEY"]' : '"none"';
	const client = {
		openai: `OpenAI(base_url="${base}/v1", api_key=${key})`,
		anthropic: `Anthropic(base_url="${base}", api_key=${key})`,
		ollama: `Client(host="${base}"${hasKey ? `, headers={"authorization": "Bearer " + ${key}}` : ""})`,
	}[language];
	const { true: extra, false: known } = Object.groupBy(Object.entries(body), ([name]) => EXTRA[dialect].includes(name));
	if (extra) known.push(["extra_body", Object.fromEntries(extra)]);
	const fields = known.map(([name, value]) => `    ${name}=${python(value)},\n`).join("");
	const show = body.stream ? "for event in reply:\n    print(event)\n" : "print(reply)\n";
	return `${hasKey ? "import os\n\n" : ""}import ${language}\n\nclient = ${language}.${client}\nreply = client.${method}(\n${fields})\n${show}`;
}
