// The AI SDK with @ai-sdk/openai, whose models speak /v1/responses.

// /// script
// dependencies = ["@ai-sdk/openai@4.0.118", "ai@7.0.173", "zod@4.6.7"]
// ///

import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { APICallError, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { apiKey, keepPromises, metric, modelName, promise, until, url } from "./checklist.mjs";

const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey });
const name = await modelName();
const short = {
  model: provider.responses(name),
  prompt: "Name three colours of the rainbow.",
  temperature: 0,
  maxOutputTokens: 24,
  maxRetries: 0,
};
const numAborted = () => metric("chairlift:requests_finished_total", 'reason="abort"');
const weather = (cities) =>
  tool({
    description: "The weather in a city.",
    inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }),
    execute: async ({ city }) => {
      cities.push(city);
      return `It is sunny in ${city}.`;
    },
  });

promise("generateText answers with usage and an id", async () => {
  const result = await generateText(short);
  assert.ok(result.text);
  assert.ok(["stop", "length"].includes(result.finishReason));
  assert.ok(result.usage.inputTokens > 5);
  assert.ok(result.usage.outputTokens >= 1 && result.usage.outputTokens <= 24);
  assert.match(result.response.id, /^resp_/);
  assert.equal((await generateText(short)).text, result.text);
});

promise("streamText has the text of generateText", async () => {
  const whole = await generateText(short);
  const result = streamText({ ...short, onError: () => undefined });
  const parts = [];
  for await (const part of result.fullStream) parts.push(part);
  assert.deepEqual(parts.filter((part) => part.type === "error"), []);
  const deltas = parts.filter((part) => part.type === "text-delta");
  assert.ok(deltas.length > 3);
  assert.equal(deltas.map((part) => part.text).join(""), whole.text);
  assert.equal(await result.finishReason, whole.finishReason);
  assert.equal((await result.usage).outputTokens, whole.usage.outputTokens);
});

promise("a conversation goes on, spelled out or by what is kept", async () => {
  const first = await generateText({ ...short, prompt: "My name is Ada." });
  const said = [{ role: "user", content: "My name is Ada." }, ...first.response.messages];
  const messages = [...said, { role: "user", content: "What is my name?" }];
  const { prompt, ...rest } = short;
  assert.ok(prompt);
  const spelled = await generateText({ ...rest, messages });
  const unkept = await generateText({
    ...rest,
    messages,
    providerOptions: { openai: { store: false } },
  });
  const followed = await generateText({
    ...short,
    prompt: "What is my name?",
    providerOptions: { openai: { previousResponseId: first.response.id } },
  });
  assert.equal(followed.text, spelled.text);
  assert.equal(unkept.text, spelled.text);
});

promise("a tool is run and its output goes back", async () => {
  const cities = [];
  const options = {
    ...short,
    prompt: "What is the weather in Paris?",
    maxOutputTokens: 60,
    tools: { get_weather: weather(cities) },
    stopWhen: stepCountIs(2),
    providerOptions: { openai: { parallelToolCalls: false } },
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
  };
  const result = await generateText(options);
  assert.equal(result.steps.length, 2);
  assert.equal(result.steps[0].toolCalls[0].toolName, "get_weather");
  assert.ok(cities.length === 1 && result.text);
  const streamed = streamText({ ...options, onError: () => undefined });
  const kinds = [];
  for await (const part of streamed.fullStream) kinds.push(part.type);
  for (const kind of ["tool-input-start", "tool-input-delta", "tool-call", "tool-result"]) {
    assert.ok(kinds.includes(kind), kind);
  }
  assert.ok(!kinds.includes("error"));
  assert.equal(await streamed.text, result.text);
});

promise("an object is what its schema says", async () => {
  const schema = z.object({ is_warm: z.boolean(), count: z.number().int() });
  const options = { ...short, prompt: "Is red warm?", output: Output.object({ schema }) };
  const result = await generateText({ ...options, maxOutputTokens: 100 });
  assert.equal(typeof result.output.is_warm, "boolean");
  assert.ok(Number.isInteger(result.output.count));
});

promise("errors carry status, message and whether to try again", async () => {
  const cases = [
    [{ ...short, model: provider.responses("no-such-model") }, 404],
    [{ ...short, temperature: 9 }, 400],
  ];
  for (const [options, status] of cases) {
    await assert.rejects(generateText(options), (error) => {
      assert.ok(APICallError.isInstance(error), String(error));
      assert.equal(error.statusCode, status);
      assert.equal(error.isRetryable, false);
      return true;
    });
  }
});

promise("aborting streamText ends the request in the server", async () => {
  const before = await numAborted();
  const controller = new AbortController();
  const result = streamText({
    ...short,
    maxOutputTokens: 6000,
    prompt: "Count from one to ten thousand.",
    abortSignal: controller.signal,
    onError: () => undefined,
  });
  for await (const delta of result.textStream) {
    assert.equal(typeof delta, "string");
    controller.abort();
  }
  await until(async () => (await numAborted()) > before);
});

await keepPromises();
