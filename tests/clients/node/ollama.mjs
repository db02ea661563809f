// What Ollama's client for Node makes of a server: one line of JSON for each trial. Usage: node ollama.mjs ADDRESS
import { Ollama } from "ollama";

const [address] = process.argv.slice(2);
const ollama = new Ollama({ host: address });

const LOOP = '[[think Sums.]] [[tool add {"a": 2, "b": 3}]] [[tool add {"a": 4, "b": 4}]] [[then]] [[say 5 and 8]]';
const BROKEN = "[[say So far]] [[error 503 out of memory]]";
const NUMBERS = { type: "object", properties: { a: { type: "integer" }, b: { type: "integer" } }, required: ["a", "b"] };
const PERSON = { type: "object", properties: { name: { enum: ["Ann", "Bob"] } }, required: ["name"] };
const TOOLS = [{ type: "function", function: { name: "add", description: "Adds", parameters: NUMBERS } }];
const user = (content) => [{ role: "user", content }];

async function say(name, work) {
  let told;
  try {
    told = await work();
  } catch (error) {
    told = { error: error.constructor.name, status: error.status_code, message: error.message };
  }
  console.log(JSON.stringify({ name, ...told }));
}

function folded(chunks) {
  const messages = chunks.map((chunk) => chunk.message);
  const last = chunks[chunks.length - 1];
  return {
    text: messages.map((message) => message.content).join(""),
    thinking: messages.map((message) => message.thinking ?? "").join(""),
    calls: messages.flatMap((message) => message.tool_calls ?? []).map((call) => [call.function.name, call.function.arguments]),
    counts: [last.prompt_eval_count, last.eval_count, last.done_reason],
    dated: !Number.isNaN(Date.parse(last.created_at)),
  };
}

async function collected(stream) {
  const chunks = [];
  for await (const chunk of await stream) chunks.push(chunk);
  return chunks;
}

const looped = { model: "scripted", messages: user(LOOP), tools: TOOLS };
await say("whole", async () => folded([await ollama.chat(looped)]));
await say("streamed", async () => folded(await collected(ollama.chat({ ...looped, stream: true }))));
await say("loop", async () => {
  const messages = user(LOOP);
  for (;;) {
    const { message } = await ollama.chat({ ...looped, messages });
    messages.push(message);
    if (!message.tool_calls) return { text: message.content };
    for (const { function: called } of message.tool_calls) {
      messages.push({ role: "tool", tool_name: called.name, content: `${called.arguments.a + called.arguments.b}` });
    }
  }
});
await say("think", async () => folded([await ollama.chat({ model: "tiny", messages: user("What is 17 + 26?"), think: "high" })]));
await say("format", async () => {
  const reply = await ollama.chat({ model: "tiny", messages: user("Who are you?"), format: PERSON });
  return { valid: ["Ann", "Bob"].includes(JSON.parse(reply.message.content).name) };
});
await say("generate", async () => {
  const chunks = await collected(ollama.generate({ model: "tiny", prompt: "What is the capital of Japan?", stream: true }));
  return { text: chunks.map((chunk) => chunk.response).join("") };
});
await say("embed", async () => ({ sizes: (await ollama.embed({ model: "tiny", input: ["a", "b"] })).embeddings.map((v) => v.length) }));
await say("show", async () => ({ capabilities: (await ollama.show({ model: "tiny" })).capabilities }));
await say("list", async () => ({ names: (await ollama.list()).models.map((model) => model.name) }));
await say("version", async () => ollama.version());
await say("pull", async () => ({ statuses: (await collected(ollama.pull({ model: "tiny", stream: true }))).map((part) => part.status) }));
await say("unknown", async () => ollama.chat({ model: "llama3.2", messages: user("a") }));
await say("broken", async () => folded(await collected(ollama.chat({ model: "scripted", messages: user(BROKEN), stream: true }))));
