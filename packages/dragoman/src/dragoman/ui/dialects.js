// The APIs: each builds a body from a conversation, and reads its events into a reply.
//
// conversation: {system, messages: [{role: "user" | "assistant" | "tool", text, images, calls, results}]}
// options: as `readOptions` returns them

export const newReply = () => ({
	text: "",
	reasoning: "",
	calls: [], // {id, name, input}, the input as text; with `server`, a call that the server makes: {output, state}
	items: [], // of Responses, if it has calls that the server makes
	finish: null,
	usage: null, // {prompt, cached, completion, reasoning}
	tokens: [], // {id, text, logprob, top: [{text, logprob}], part}
	promptIds: null,
	error: null,
	warnings: [],
});

const some = (list) => (list.length ? list : undefined);

/** Read the functions of tools in the form of Chat Completions, Responses or Messages. */
const readTools = (tools) => (tools || []).map((tool) => {
	const { name, description, parameters, input_schema: schema, strict } = tool.function || tool;
	return { name, description, parameters: parameters || schema, strict };
});

/** Whether the server itself calls a tool, as of type "mcp". */
const isHosted = (tool) => Boolean(tool?.type) && !["function", "custom"].includes(tool.type);

/** Validate a list of tools: what is wrong, or an empty text. */
export function checkTools(tools) {
	if (!Array.isArray(tools)) return "Tools are a list: [ ... ]";
	const at = tools.findIndex((tool) => !isHosted(tool) && !(tool && typeof readTools([tool])[0].name === "string" && readTools([tool])[0].name));
	return at < 0 ? "" : `Tool ${at + 1} has no name.`;
}

const wrapTools = (tools) => some(readTools(tools).map((tool) => ({ type: "function", function: tool })));
/** The calls that the client answers. */
export const clientCalls = (calls) => calls.filter(({ server }) => !server);
const sampling = ({ temperature, topP, topK, seed }) => ({ temperature, top_p: topP, top_k: topK, seed });
const scores = ({ logprobs, alternatives }) => (logprobs ? { logprobs, top_logprobs: alternatives } : {});

export function splitDataUrl(url) {
	const [head, data] = url.split(",");
	return { type: head.slice(5).split(";")[0], data };
}

/** Join a user's text files and text: every API takes text. */
function joinText({ text, files = [] }) {
	const parts = files.filter((file) => file.text !== undefined).map((file) => `File ${file.name}:\n${file.text}`);
	return [...parts, text].filter(Boolean).join("\n\n");
}

/** A converter of a user's turn. type: of text parts; drawImage, drawPdf: build other parts. */
const convertUser = (type, drawImage, drawPdf) => (node) => {
	const pdfs = (node.files || []).filter(({ url }) => url);
	const media = [...(node.images || []).map(drawImage), ...pdfs.map(drawPdf)];
	const text = joinText(node);
	return { role: "user", content: media.length ? [...media, ...(text ? [{ type, text }] : [])] : text };
};

const withSystem = (system, sent) => (system ? [{ role: "system", content: system }, ...sent] : sent);

/** Convert the messages by role; a converter returns a list. */
const convert = (messages, converters) => messages.flatMap((message) => converters[message.role]?.({ ...message, calls: clientCalls(message.calls || []) }) ?? []);

/** Add tokens. skipped: number of ids before the first log-probability; only text has these. */
function addTokens(reply, ids, logprobs, part, skipped = 0) {
	const scored = logprobs || [];
	for (let at = 0; at < Math.max(ids?.length || 0, scored.length); at++) {
		const { token: text = null, logprob = null, top_logprobs: top = [] } = scored[at - skipped] || {};
		reply.tokens.push({ id: ids?.[at] ?? null, text, logprob, top: top.map((other) => ({ text: other.token, logprob: other.logprob })), part });
	}
}

/** Read OpenAI's usage, whose field names differ between its APIs. */
const readUsage = (usage, prompt, answer) => ({
	prompt: usage[`${prompt}_tokens`], cached: usage[`${prompt}_tokens_details`]?.cached_tokens,
	completion: usage[`${answer}_tokens`], reasoning: usage[`${answer}_tokens_details`]?.reasoning_tokens,
});

const readPart = (reasoning, calls, text) => (reasoning ? "reasoning" : calls?.length ? "call" : text ? "text" : "end");
const extend = (reply, item, text) => (reply.calls.find((call) => call.item === item).input += text);

const chat = {
	label: "Chat Completions",
	path: "/v1/chat/completions",
	build({ system, messages }, options) {
		const sent = convert(messages, {
			user: convertUser("text", (url) => ({ type: "image_url", image_url: { url } }), ({ name, url }) => ({ type: "file", file: { filename: name, file_data: url } })),
			assistant: ({ text, calls }) => ({
				role: "assistant", content: text || null, tool_calls: some(calls.map(({ id, name, input }) => ({ id, type: "function", function: { name, arguments: input } }))),
			}),
			tool: ({ results }) => results.map(({ id, text }) => ({ role: "tool", tool_call_id: id, content: text })),
		});
		return {
			messages: withSystem(system, sent),
			...sampling(options),
			max_completion_tokens: options.maxTokens,
			stop: options.stop,
			reasoning_effort: options.effort,
			tools: wrapTools(options.tools),
			tool_choice: options.toolChoice,
			response_format: options.schema && { type: "json_schema", json_schema: { name: "answer", schema: options.schema } },
			...scores(options),
			return_token_ids: options.logprobs,
			stream_options: options.stream ? { include_usage: true } : undefined,
		};
	},
	read(reply, data) {
		if (data.prompt_token_ids) reply.promptIds = data.prompt_token_ids;
		const choice = data.choices?.[0];
		if (choice) {
			const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta || choice.message || {};
			reply.reasoning += reasoning || "";
			reply.text += content || "";
			(calls || []).forEach(({ index, id, function: made }, at) => {
				const call = (reply.calls[index ?? at] ||= { id, name: "", input: "" });
				call.name ||= made?.name || "";
				call.input += made?.arguments || "";
			});
			const scores = choice.logprobs?.content;
			// Markers precede the text of a chunk. A whole answer ends with its stop token;
			// after reasoning or calls, the place of the text is unknown.
			const skipped = choice.delta ? choice.token_ids?.length - scores?.length : 0;
			const isKnown = choice.delta || !(reasoning || calls);
			addTokens(reply, choice.token_ids, isKnown ? scores : null, readPart(reasoning, calls, content), skipped || 0);
			reply.finish = choice.finish_reason || reply.finish;
		}
		if (data.usage) reply.usage = readUsage(data.usage, "prompt", "completion");
	},
};

const describeProblem = (error) => (typeof error === "string" ? error : error.message || JSON.stringify(error));

const readHosted = ({ type, id, name, arguments: input, server_label: server, output, error }) => ({
	id, name, input: input || "", server, output: error ? describeProblem(error) : output ?? undefined,
	state: type === "mcp_approval_request" ? "approval" : error ? "failed" : "called",
});

const stripMessage = (item) => (item.type === "message"
	? { type: "message", role: "assistant", content: item.content.filter(({ type }) => type === "output_text").map(({ type, text }) => ({ type, text })) } : item);

const responses = {
	label: "Responses",
	path: "/v1/responses",
	build({ system, messages }, options) {
		const input = convert(messages, {
			user: convertUser("input_text", (url) => ({ type: "input_image", image_url: url }), ({ name, url }) => ({ type: "input_file", filename: name, file_data: url })),
			assistant: ({ text, calls, items }) => (items?.length ? items : [
				...(text ? [{ type: "message", role: "assistant", content: [{ type: "output_text", text }] }] : []),
				...calls.map(({ id, name, input }) => ({ type: "function_call", call_id: id, name, arguments: input })),
			]),
			approval: ({ answers }) => answers.map(({ id, approve }) => ({ type: "mcp_approval_response", approval_request_id: id, approve })),
			tool: ({ results }) => results.map(({ id, text }) => ({ type: "function_call_output", call_id: id, output: text })),
		});
		return {
			instructions: system,
			input,
			...sampling(options),
			max_output_tokens: options.maxTokens,
			stop: options.stop,
			reasoning: options.effort && { effort: options.effort },
			tools: some((options.tools || []).map((tool) => (isHosted(tool) ? tool : { type: "function", ...readTools([tool])[0] }))),
			tool_choice: options.toolChoice,
			text: options.schema && { format: { type: "json_schema", name: "answer", schema: options.schema } },
			top_logprobs: scores(options).top_logprobs,
			store: false,
		};
	},
	read(reply, data) {
		const { type, delta, item } = data;
		if (type === "response.output_text.delta") {
			reply.text += delta;
			addTokens(reply, null, data.logprobs, "text");
		} else if (type === "response.reasoning_text.delta") reply.reasoning += delta;
		else if (type === "response.output_item.added" && item.type === "function_call") {
			reply.calls.push({ id: item.call_id, name: item.name, input: "", item: data.output_index });
		} else if (type === "response.output_item.added" && item.type === "mcp_call") {
			reply.calls.push({ ...readHosted(item), input: "", item: data.output_index });
		} else if (/^response\.(function|mcp)_call_arguments\.delta$/.test(type)) extend(reply, data.output_index, delta);
		else if (type === "response.output_item.done") this.readHostedItem(reply, item, data.output_index);
		else if (["response.completed", "response.incomplete", "response.failed"].includes(type)) this.finish(reply, data.response);
		else if (data.object === "response") {
			for (const made of data.output) {
				this.readHostedItem(reply, made);
				if (made.type === "function_call") reply.calls.push({ id: made.call_id, name: made.name, input: made.arguments });
				for (const part of made.content || []) {
					reply[part.type === "output_text" ? "text" : "reasoning"] += part.text || "";
					addTokens(reply, null, part.logprobs, "text");
				}
			}
			this.finish(reply, data);
		}
	},
	/** Read a completed item of a tool that the server calls. */
	readHostedItem(reply, item, index) {
		if (item.type === "mcp_list_tools" && item.error) reply.warnings.push(`The tools of ${item.server_label} could not be listed: ${describeProblem(item.error)}`);
		if (item.type !== "mcp_call" && item.type !== "mcp_approval_request") return;
		const known = index !== undefined && reply.calls.find((call) => call.item === index);
		if (known) Object.assign(known, readHosted(item));
		else reply.calls.push(readHosted(item));
	},
	finish(reply, { status, incomplete_details: details, usage, output = [] }) {
		// A request that continues them repeats these items as they are.
		if (output.some(({ type }) => type.startsWith("mcp_"))) reply.items = output.filter(({ type }) => type !== "reasoning").map(stripMessage);
		reply.finish = details?.reason || status;
		reply.usage = usage && readUsage(usage, "input", "output");
	},
};

const messages = {
	label: "Messages",
	path: "/v1/messages",
	headers: { "anthropic-version": "2023-06-01" },
	build({ system, messages: list }, options) {
		const readImage = (url) => {
			const { type, data } = splitDataUrl(url);
			return { type: "image", source: { type: "base64", media_type: type, data } };
		};
		const sent = convert(list, {
			user: convertUser("text", readImage, ({ name, url }) => ({ ...readImage(url), type: "document", title: name })),
			assistant: ({ text, calls }) => ({
				role: "assistant",
				content: [...(text ? [{ type: "text", text }] : []), ...calls.map(({ id, name, input }) => ({ type: "tool_use", id, name, input: JSON.parse(input || "{}") }))],
			}),
			tool: ({ results }) => ({ role: "user", content: results.map(({ id, text }) => ({ type: "tool_result", tool_use_id: id, content: text })) }),
		});
		const effort = options.effort === "none" ? undefined : options.effort;
		const format = options.schema && { type: "json_schema", schema: options.schema };
		return {
			system,
			messages: sent,
			max_tokens: options.maxTokens ?? 4096, // the API requires it
			...sampling(options),
			stop_sequences: options.stop,
			thinking: options.effort && { type: effort ? "adaptive" : "disabled" },
			output_config: effort || format ? { effort, format } : undefined,
			tools: some(readTools(options.tools).map(({ parameters, ...tool }) => ({ ...tool, input_schema: parameters || { type: "object", properties: {} } }))),
			tool_choice: options.toolChoice && { type: options.toolChoice === "required" ? "any" : options.toolChoice },
		};
	},
	read(reply, data) {
		const { type, delta, index } = data;
		if (type === "message_start") this.readUsage(reply, data.message.usage);
		else if (type === "content_block_start") this.readBlock(reply, { ...data.content_block, input: undefined }, index);
		else if (type === "content_block_delta") {
			reply.text += delta.text || "";
			reply.reasoning += delta.thinking || "";
			if (delta.partial_json) extend(reply, index, delta.partial_json);
		} else if (type === "message_delta" || type === "message") {
			(data.content || []).forEach((block) => this.readBlock(reply, block));
			reply.finish = (delta || data).stop_reason;
			this.readUsage(reply, data.usage);
		}
	},
	readBlock(reply, { type, id, name, input, text, thinking }, item) {
		if (type === "tool_use") reply.calls.push({ id, name, input: input ? JSON.stringify(input) : "", item });
		reply.text += text || "";
		reply.reasoning += thinking || "";
	},
	readUsage(reply, usage) {
		const cached = usage.cache_read_input_tokens || 0;
		reply.usage = {
			prompt: usage.input_tokens + cached + (usage.cache_creation_input_tokens || 0), cached,
			completion: usage.output_tokens, reasoning: usage.output_tokens_details?.thinking_tokens,
		};
	},
};

const ollama = {
	label: "Ollama",
	path: "/api/chat",
	build({ system, messages: list }, options) {
		const sent = convert(list, {
			user: (node) => {
				if (node.files?.some(({ url }) => url)) throw new Error("Ollama's API takes no PDF files: choose another API.");
				return { role: "user", content: joinText(node), images: some((node.images || []).map((url) => splitDataUrl(url).data)) };
			},
			assistant: ({ text, calls }) => ({
				role: "assistant", content: text, tool_calls: some(calls.map(({ name, input }) => ({ function: { name, arguments: JSON.parse(input || "{}") } }))),
			}),
			tool: ({ results }) => results.map(({ name, text }) => ({ role: "tool", tool_name: name, content: text })),
		});
		return {
			messages: withSystem(system, sent),
			think: options.effort && options.effort !== "none" && options.effort,
			format: options.schema,
			tools: wrapTools(options.tools),
			options: { ...sampling(options), num_predict: options.maxTokens, stop: options.stop },
			...scores(options),
		};
	},
	read(reply, data) {
		const { content, thinking, tool_calls: calls } = data.message || {};
		reply.text += content || "";
		reply.reasoning += thinking || "";
		for (const { id, function: made } of calls || []) {
			reply.calls.push({ id: id || `call_${reply.calls.length}`, name: made.name, input: JSON.stringify(made.arguments) });
		}
		addTokens(reply, null, data.logprobs, readPart(thinking, calls, content));
		if (data.done) {
			reply.finish = data.done_reason;
			if ("eval_count" in data) reply.usage = { prompt: data.prompt_eval_count, completion: data.eval_count };
		}
	},
};

export const DIALECTS = { chat, responses, messages, ollama };

/** Build the body of a request; JSON leaves out undefined fields. */
export function buildBody(name, conversation, options) {
	const { model, stream } = options;
	if (name !== "responses" && options.tools?.some(isHosted)) throw new Error(`Tools of type ${JSON.stringify(options.tools.find(isHosted).type)} need the API Responses.`);
	return JSON.parse(JSON.stringify({ model, ...DIALECTS[name].build(conversation, options), stream }));
}

export const DIALECT_NAMES = Object.entries(DIALECTS).map(([name, { label }]) => [name, label]);
