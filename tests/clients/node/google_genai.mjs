// What Google's client for Node makes of a server: one line of JSON for each trial. Usage: node google_genai.mjs ADDRESS
import { FunctionCallingConfigMode, GoogleGenAI, Type } from "@google/genai";

const [address] = process.argv.slice(2);
const { models, chats } = new GoogleGenAI({ apiKey: "none", httpOptions: { baseUrl: address, retryOptions: { attempts: 1 } } });

const LOOP = '[[think Sums.]] [[tool add {"a": 2, "b": 3}]] [[tool add {"a": 4, "b": 4}]] [[then]] [[say 5 and 8]]';
const BROKEN = "[[say So far]] [[error 503 out of memory]]";
const CAPITAL = "What is the capital of Japan?";
const WHO = "Who are you?";
const NUMBERS = { type: Type.OBJECT, properties: { a: { type: Type.INTEGER }, b: { type: Type.INTEGER } }, required: ["a", "b"] };
const PERSON = { type: Type.OBJECT, properties: { name: { type: Type.STRING, enum: ["Ann", "Bob"] }, age: { type: Type.INTEGER } }, required: ["name", "age"] };
const PERSON_JSON = { type: "object", properties: { name: { enum: ["Ann", "Bob"] }, age: { type: "integer" } }, required: ["name", "age"], additionalProperties: false };
const tools = [{ functionDeclarations: [{ name: "add", description: "Adds", parameters: NUMBERS }] }];

async function say(name, work) {
  let told;
  try {
    told = await work();
  } catch (error) {
    told = { error: error.constructor.name, status: error.status, message: error.message };
  }
  console.log(JSON.stringify({ name, ...told }));
}

function summarize(chunks) {
  const parts = chunks.flatMap((chunk) => chunk.candidates?.[0]?.content?.parts ?? []);
  const texts = (thought) => parts.filter((part) => part.text && Boolean(part.thought) === thought).map((part) => part.text).join("");
  const { candidates, usageMetadata: usage } = chunks.at(-1);
  return {
    text: texts(false),
    thoughts: texts(true),
    calls: parts.filter((part) => part.functionCall).map(({ functionCall }) => [functionCall.name, functionCall.args]),
    signed: parts.some((part) => part.thoughtSignature),
    reason: candidates[0].finishReason,
    usage: [usage.promptTokenCount, usage.candidatesTokenCount, usage.totalTokenCount],
  };
}

async function collect(stream) {
  const chunks = [];
  for await (const chunk of await stream) chunks.push(chunk);
  return chunks;
}

async function both(name, asked) {
  await say(name, async () => summarize([await models.generateContent(asked)]));
  await say(`${name} streamed`, async () => summarize(await collect(models.generateContentStream(asked))));
}

const thinking = { temperature: 0, thinkingConfig: { includeThoughts: true, thinkingBudget: -1 } };
await both("calls", { model: "scripted", contents: LOOP, config: { tools, thinkingConfig: { includeThoughts: true } } });
await both("text", { model: "tiny", contents: CAPITAL, config: { temperature: 0 } });
await both("thoughts", { model: "tiny", contents: "What is 17 + 26?", config: thinking });
await both("length", { model: "tiny", contents: CAPITAL, config: { temperature: 0, maxOutputTokens: 2 } });

const forced = { functionCallingConfig: { mode: FunctionCallingConfigMode.ANY, allowedFunctionNames: ["add"] } };
await say("forced", async () =>
  summarize([await models.generateContent({ model: "tiny", contents: "What is 17 + 26?", config: { temperature: 0, tools, toolConfig: forced } })]),
);

// Turns of a chat, the first of them with calls.
async function converse(isStream) {
  const chat = chats.create({ model: "scripted", config: { tools } });
  const send = async (message) => (isStream ? collect(chat.sendMessageStream({ message })) : [await chat.sendMessage({ message })]);
  const { calls } = summarize(await send(LOOP));
  const results = calls.map(([name, { a, b }]) => ({ functionResponse: { name, response: { output: a + b } } }));
  const turns = [await send(results), await send("[[say again]]")].map(summarize);
  return { texts: turns.map((turn) => turn.text), prompts: turns.map((turn) => turn.usage[0]) };
}

await say("chat", () => converse(false));
await say("chat streamed", () => converse(true));

async function shape(name, config) {
  const asked = { model: "tiny", contents: WHO, config: { temperature: 0, responseMimeType: "application/json", ...config } };
  const valid = (text) => ({ valid: ["Ann", "Bob"].includes(JSON.parse(text).name) && Number.isInteger(JSON.parse(text).age) });
  await say(`${name} object`, async () => valid((await models.generateContent(asked)).text));
  await say(`${name} streamed object`, async () => valid(summarize(await collect(models.generateContentStream(asked))).text));
}

await shape("openapi", { responseSchema: PERSON });
await shape("json", { responseJsonSchema: PERSON_JSON });
await say("counted", async () => ({ tokens: (await models.countTokens({ model: "tiny", contents: CAPITAL })).totalTokens }));
await say("embed", async () => ({
  sizes: (await models.embedContent({ model: "tiny", contents: ["a cat", "a dog"] })).embeddings.map(({ values }) => values.length),
}));
await say("list", async () => ({ names: (await collect(models.list())).map((model) => model.name) }));
await say("show", async () => ({ model: (await models.get({ model: "tiny" })).name }));

await say("unknown", () => models.generateContent({ model: "other", contents: "a" }));
await say("audio", () => models.generateContent({ model: "tiny", contents: "a", config: { responseModalities: ["AUDIO"] } }));
await say("refused", () => models.generateContent({ model: "scripted", contents: "[[error 429 slowly]]" }));
await say("broken", () => models.generateContent({ model: "scripted", contents: BROKEN }));
await say("broken stream", () => collect(models.generateContentStream({ model: "scripted", contents: BROKEN })));
