// What the official SDKs for Node make of a server: one line of JSON for each trial. Usage: node sdks.mjs ADDRESS
import Anthropic from "@anthropic-ai/sdk";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [address] = process.argv.slice(2);
const openai = new OpenAI({ apiKey: "none", baseURL: `${address}/v1`, maxRetries: 0 });
const anthropic = new Anthropic({ apiKey: "none", baseURL: address, maxRetries: 0 });

const LOOP = '[[think Sums.]] [[tool add {"a": 2, "b": 3}]] [[tool add {"a": 4, "b": 4}]] [[then]] [[say 5 and 8]]';
const BROKEN = "[[say So far]] [[error 503 out of memory]]";
const NUMBERS = { type: "object", properties: { a: { type: "integer" }, b: { type: "integer" } }, required: ["a", "b"] };
const sum = ({ a, b }) => `${a + b}`;
const Person = z.object({ name: z.enum(["Ann", "Bob"]), age: z.number().int() });
const user = (content) => [{ role: "user", content }];
const valid = (made) => ({ valid: Person.safeParse(made).success });

async function say(name, work) {
  let told;
  try {
    told = await work();
  } catch (error) {
    told = { error: error.constructor.name, status: error.status, message: error.message };
  }
  console.log(JSON.stringify({ name, ...told }));
}

const callable = { name: "add", description: "Adds", parameters: NUMBERS, parse: JSON.parse, function: sum };
const chat = { model: "scripted", messages: user(LOOP), tools: [{ type: "function", function: callable }] };

async function ran(runner) {
  const results = [];
  runner.on("message", (message) => message.role === "tool" && results.push(message.content));
  const text = await runner.finalContent();
  const usage = await runner.totalUsage();
  return { text, results, usage: [usage.prompt_tokens, usage.completion_tokens] };
}

await say("chat whole", () => ran(openai.chat.completions.runTools(chat)));
await say("chat streamed", () =>
  ran(openai.chat.completions.runTools({ ...chat, stream: true, stream_options: { include_usage: true } })),
);
await say("chat object", async () => {
  const asked = { model: "tiny", messages: user("Who are you?"), response_format: zodResponseFormat(Person, "person") };
  return valid((await openai.chat.completions.parse(asked)).choices[0].message.parsed);
});
await say("chat streamed object", async () => {
  const asked = { model: "tiny", messages: user("Who are you?"), response_format: zodResponseFormat(Person, "person") };
  return valid((await openai.chat.completions.stream(asked).finalChatCompletion()).choices[0].message.parsed);
});
await say("chat refused", () => openai.chat.completions.create({ model: "scripted", messages: user("[[error 429 slowly]]") }));
await say("chat broken", () => openai.chat.completions.stream({ model: "scripted", messages: user(BROKEN) }).finalContent());

const answered = ({ output, usage }) => ({
  items: output.map((item) => item.type),
  calls: output.filter((item) => item.type === "function_call").map((item) => item.arguments),
  usage: [usage.input_tokens, usage.output_tokens],
});
const response = { model: "scripted", input: LOOP, tools: [{ type: "function", name: "add", parameters: NUMBERS, strict: false }] };

await say("responses whole", async () => answered(await openai.responses.create(response)));
await say("responses streamed", async () => answered(await openai.responses.stream(response).finalResponse()));
await say("responses object", async () =>
  valid((await openai.responses.parse({ model: "tiny", input: "Who are you?", text: { format: zodTextFormat(Person, "p") } })).output_parsed),
);
await say("responses streamed object", async () => {
  const asked = { model: "tiny", input: "Who are you?", text: { format: zodTextFormat(Person, "p") } };
  return valid((await openai.responses.stream(asked).finalResponse()).output_parsed);
});
await say("responses refused", () => openai.responses.create({ model: "scripted", input: "[[error 429 slowly]]" }));
await say("responses broken", () => openai.responses.stream({ model: "scripted", input: BROKEN }).finalResponse());
await say("responses resumed", async () => {
  const asked = { model: "scripted", input: "[[say one two three]]", background: true, stream: true };
  let id, seen;
  for await (const event of await openai.responses.create(asked)) {
    id = event.response?.id ?? id;
    seen = event.sequence_number;
    if (seen >= 3) break;
  }
  const rest = openai.responses.stream({ response_id: id, starting_after: seen });
  return { text: (await rest.finalResponse()).output_text };
});

const tool = { type: "custom", name: "add", description: "Adds", input_schema: NUMBERS, run: sum, parse: (input) => input };
const message = { model: "scripted", max_tokens: 200, messages: user(LOOP), tools: [tool] };
const said = ({ content, stop_reason, usage }) => ({
  blocks: content.map((block) => block.input ?? block.text ?? block.thinking),
  stop: stop_reason,
  usage: [usage.input_tokens, usage.output_tokens],
});

await say("messages whole", async () => said(await anthropic.messages.create(message)));
await say("messages streamed", async () => said(await anthropic.messages.stream(message).finalMessage()));
await say("messages runner", async () => ({ text: (await anthropic.beta.messages.toolRunner(message)).content[0].text }));
await say("messages streamed runner", async () => {
  let last;
  for await (const stream of anthropic.beta.messages.toolRunner({ ...message, stream: true })) last = await stream.finalMessage();
  return { text: last.content[0].text };
});
await say("messages object", async () => {
  const asked = { model: "tiny", max_tokens: 200, messages: user("Who are you?"), output_config: { format: zodOutputFormat(Person) } };
  return valid((await anthropic.messages.parse(asked)).parsed_output);
});
await say("messages streamed object", async () => {
  const asked = { model: "tiny", max_tokens: 200, messages: user("Who are you?"), output_config: { format: zodOutputFormat(Person) } };
  return valid((await anthropic.messages.stream(asked).finalMessage()).parsed_output);
});
await say("messages refused", () => anthropic.messages.create({ ...message, messages: user("[[error 429 slowly]]") }));
await say("messages broken", () => anthropic.messages.stream({ ...message, messages: user(BROKEN) }).finalMessage());
await say("messages file", async () => {
  const file = await anthropic.files.upload({ file: new File(["%PDF-1.4"], "a.pdf", { type: "application/pdf" }) });
  const content = [{ type: "document", source: { type: "file", file_id: file.id } }, { type: "text", text: "[[say read]]" }];
  const reply = await anthropic.messages.create({ ...message, messages: user(content) });
  return { text: reply.content[0].text, filename: file.filename, mime: file.mime_type };
});
