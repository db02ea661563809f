// What the Vercel AI SDK makes of a server, dialect by dialect: one line of JSON for each. Usage: node vercel.mjs ADDRESS
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [address] = process.argv.slice(2);
const told = { apiKey: "none", baseURL: `${address}/v1` };
const openai = createOpenAI(told);
const compatible = createOpenAICompatible({ ...told, name: "dragoman", includeUsage: true, supportsStructuredOutputs: true });
const models = (name) => ({
  responses: openai.responses(name),
  chat: openai.chat(name),
  completions: openai.completion(name),
  compatible: compatible.chatModel(name),
  messages: createAnthropic(told)(name),
});

const add = tool({
  description: "Adds two numbers",
  inputSchema: z.object({ a: z.number(), b: z.number() }),
  execute: async ({ a, b }) => `${a + b}`,
});
const LOOP = '[[think Two numbers.]] [[tool add {"a": 2, "b": 3}]] [[tool add {"a": 4, "b": 4}]] [[then]] [[say 5 and 8]]';

const facts = (made) => ({
  text: made.text,
  reasoning: made.steps.map((step) => step.reasoningText ?? "").join(""),
  finish: made.finishReason,
  usage: [made.totalUsage.inputTokens, made.totalUsage.outputTokens],
  calls: made.steps.flatMap((step) => step.toolCalls.map((call) => call.input)),
  results: made.steps.flatMap((step) => step.toolResults.map((result) => result.output)),
});

async function streamed(asked) {
  const failures = [];
  const stream = streamText({ ...asked, onError: ({ error }) => failures.push(error.message ?? JSON.stringify(error)) });
  let text = "";
  for await (const delta of stream.textStream) text += delta;
  const made = {};
  for (const name of ["finishReason", "totalUsage", "steps"]) made[name] = await stream[name];
  return { ...facts({ ...made, text: made.steps.at(-1).text }), deltas: text, failures };
}

async function tried(work) {
  try {
    return await work();
  } catch (error) {
    return { error: error.name, status: error.statusCode, message: error.message };
  }
}

function say(name, what) {
  console.log(JSON.stringify({ name, ...what }));
}

for (const [name, model] of Object.entries(models("scripted"))) {
  const asked = { model, prompt: LOOP, maxRetries: 0 };
  if (name !== "completions") Object.assign(asked, { tools: { add }, stopWhen: stepCountIs(3) });
  else asked.prompt = "[[say 5 and 8]]";
  say(`${name} whole`, await tried(async () => facts(await generateText(asked))));
  say(`${name} streamed`, await tried(() => streamed(asked)));
  const broken = { model, prompt: "[[error 503 out of memory]]", maxRetries: 0 };
  say(`${name} refused`, await tried(async () => facts(await generateText(broken))));
  say(`${name} broken`, await tried(() => streamed({ ...broken, prompt: "[[say So far]] [[error 503 out of memory]]" })));
}

const shape = z.object({ name: z.string().max(8), age: z.number().int().min(0).max(120) });
for (const [name, model] of Object.entries(models("tiny"))) {
  if (name === "completions") continue;
  const made = await tried(() =>
    generateText({ model, prompt: "Who are you?", maxRetries: 0, temperature: 0, output: Output.object({ schema: shape }) }),
  );
  say(`${name} object`, made.error ? made : { object: made.output, valid: shape.safeParse(made.output).success });
}
const vectors = await embedMany({ model: openai.embeddingModel("tiny"), values: ["a cat", "a dog"] });
say("embeddings", { sizes: vectors.embeddings.map((vector) => vector.length), usage: vectors.usage.tokens });
