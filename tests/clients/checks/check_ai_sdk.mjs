// The AI SDK with @ai-sdk/openai-compatible: generateText, streamText, tools, objects, errors, abort.

// /// script
// dependencies = ["@ai-sdk/openai-compatible@3.0.92", "ai@7.0.173"]
// ///

import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import {
  APICallError,
  embed,
  embedMany,
  generateObject,
  generateText,
  jsonSchema,
  stepCountIs,
  streamObject,
  streamText,
  tool,
} from "ai";
import { apiKey, keepPromises, metric, modelName, promise, until, url } from "./checklist.mjs";

const provider = createOpenAICompatible({
  name: "chairlift",
  baseURL: `${url}/v1`,
  apiKey,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const name = await modelName();
const chat = provider(name);
const short = {
  model: chat,
  prompt: "Name three colours of the rainbow.",
  temperature: 0,
  maxOutputTokens: 24,
  maxRetries: 0,
};
const long = {
  ...short,
  maxOutputTokens: 6000,
  providerOptions: { chairlift: { ignore_eos: true } },
};

const numAborted = () => metric("chairlift:requests_finished_total", 'reason="abort"');

promise("generateText answers with usage", async () => {
  const result = await generateText(short);
  assert.ok(result.text);
  assert.ok(["stop", "length"].includes(result.finishReason));
  assert.ok(result.usage.inputTokens > 5);
  assert.ok(result.usage.outputTokens >= 1 && result.usage.outputTokens <= 24);
  assert.equal((await generateText(short)).text, result.text);
});

promise("streamText has the text of generateText", async () => {
  const whole = await generateText(short);
  const result = streamText({ ...short, onError: () => undefined });
  const parts = [];
  for await (const part of result.fullStream) parts.push(part);
  assert.deepEqual(parts.filter((part) => part.type === "error"), []);
  const text = parts
    .filter((part) => part.type === "text-delta")
    .map((part) => part.text)
    .join("");
  assert.equal(text, whole.text);
  assert.equal(await result.finishReason, whole.finishReason);
  assert.equal((await result.usage).outputTokens, whole.usage.outputTokens);
});

promise("conversations and system texts are understood", async () => {
  const messages = [
    { role: "user", content: [{ type: "text", text: "Say yes." }] },
    { role: "assistant", content: "Yes." },
    { role: "user", content: "Say it again." },
  ];
  const { prompt, ...rest } = short;
  const result = await generateText({ ...rest, messages, stopSequences: ["."] });
  assert.ok(prompt && !result.text.includes("."));
});

promise("text completions work", async () => {
  const model = provider.completionModel(name);
  const options = { ...short, model, prompt: "The capital of France is" };
  const whole = await generateText(options);
  let text = "";
  for await (const delta of streamText(options).textStream) text += delta;
  assert.ok(text && text === whole.text);
});

promise("several at once are as one alone", async () => {
  const prompts = ["One is", "Two is", "Three is", "Four is"];
  const ask = async (prompt) => (await generateText({ ...short, prompt })).text;
  const together = await Promise.all(prompts.map(ask));
  for (const [index, prompt] of prompts.entries()) {
    assert.equal(await ask(prompt), together[index]);
  }
});

promise("embedMany gives the vectors of embed, in order", async () => {
  const model = (provider.embeddingModel ?? provider.textEmbeddingModel)(name);
  const values = ["A cat sits on the mat.", "Shares fell sharply today."];
  const many = await embedMany({ model, values, maxRetries: 0 });
  assert.equal(many.embeddings.length, 2);
  assert.ok(many.usage.tokens > 5);
  for (const [index, value] of values.entries()) {
    const one = await embed({ model, value, maxRetries: 0 });
    assert.deepEqual(one.embedding, many.embeddings[index]);
  }
});

promise("errors carry status, message and whether to try again", async () => {
  const cases = [
    [{ ...short, model: provider("no-such-model") }, 404],
    [{ ...short, temperature: 9 }, 400],
  ];
  for (const [options, status] of cases) {
    await assert.rejects(generateText(options), (error) => {
      assert.ok(APICallError.isInstance(error), String(error));
      assert.equal(error.statusCode, status);
      assert.equal(error.isRetryable, false);
      assert.equal(error.data.error.type, "invalid_request_error");
      assert.equal(error.message, error.data.error.message);
      return true;
    });
  }
});

promise("an error in a stream is a part of it", async () => {
  const providerOptions = { chairlift: { ignore_eos: true, timeout: 1.0 } };
  const result = streamText({ ...long, providerOptions, onError: () => undefined });
  const errors = [];
  for await (const part of result.fullStream) if (part.type === "error") errors.push(part.error);
  assert.equal(errors.length, 1);
  assert.match(JSON.stringify(errors[0]) + String(errors[0]), /time was up/);
});

promise("aborting streamText ends the request in the server", async () => {
  const before = await numAborted();
  const controller = new AbortController();
  const result = streamText({ ...long, abortSignal: controller.signal, onError: () => undefined });
  let text = "";
  for await (const delta of result.textStream) {
    text += delta;
    controller.abort();
  }
  assert.ok(text);
  await until(async () => (await numAborted()) > before);
});

promise("aborting generateText ends the request in the server", async () => {
  const before = await numAborted();
  const controller = new AbortController();
  const answer = generateText({ ...long, abortSignal: controller.signal });
  answer.catch(() => undefined);
  await until(async () => (await metric("chairlift:num_requests_running")) > 0);
  controller.abort();
  await assert.rejects(answer, { name: "AbortError" });
  await until(async () => (await numAborted()) > before);
});

const place = {
  type: "object",
  properties: {
    city: { enum: ["Paris", "Rome"] },
    days: { type: "integer", minimum: 1, maximum: 9 },
  },
  required: ["city", "days"],
  additionalProperties: false,
};
const isPlace = ({ city, days }) => ["Paris", "Rome"].includes(city) && days >= 1 && days <= 9;
const weather = { ...short, prompt: "How is the weather in Paris for 3 days?", maxOutputTokens: 400 };

function withTools(executed) {
  const lookUp = tool({
    description: "Looks the weather up",
    inputSchema: jsonSchema(place),
    execute: async (input) => {
      executed.push(input);
      return { weather: "sunny" };
    },
  });
  const providerOptions = { chairlift: { parallel_tool_calls: false } };
  return { ...weather, tools: { lookUp }, toolChoice: "required", providerOptions };
}

promise("a required tool is called, run and answered", async () => {
  const executed = [];
  const result = await generateText({
    ...withTools(executed),
    stopWhen: stepCountIs(2),
    prepareStep: ({ stepNumber }) => (stepNumber ? { toolChoice: "none" } : {}),
  });
  assert.equal(executed.length, 1);
  assert.ok(isPlace(executed[0]));
  assert.equal(result.steps.length, 2);
  assert.equal(result.steps[0].finishReason, "tool-calls");
  assert.ok(result.text);
});

promise("a streamed call is that of generateText", async () => {
  const executed = [];
  const whole = await generateText(withTools(executed));
  const result = streamText({ ...withTools(executed), onError: () => undefined });
  const parts = [];
  for await (const part of result.fullStream) parts.push(part);
  const types = parts.map((part) => part.type);
  assert.deepEqual(parts.filter((part) => part.type === "error"), []);
  for (const type of ["tool-input-start", "tool-input-delta", "tool-input-end", "tool-call"]) {
    assert.ok(types.includes(type), `${type} is not in ${types}`);
  }
  assert.deepEqual((await result.toolCalls)[0].input, whole.toolCalls[0].input);
  assert.equal(await result.finishReason, "tool-calls");
  assert.deepEqual(executed[1], executed[0]);
});

promise("a tool can be named", async () => {
  const options = { ...withTools([]), toolChoice: { type: "tool", toolName: "lookUp" } };
  const result = await generateText(options);
  assert.equal(result.toolCalls.length, 1);
  assert.ok(isPlace(result.toolCalls[0].input));
});

promise("objects fit their schema, whole and streamed", async () => {
  const options = { ...weather, schema: jsonSchema(place) };
  const { object } = await generateObject(options);
  assert.ok(isPlace(object));
  const result = streamObject({ ...options, onError: () => undefined });
  for await (const part of result.partialObjectStream) assert.ok(part);
  assert.deepEqual(await result.object, object);
});

await keepPromises();
