// openai for Node: answers, streams, the stream helper, errors, retries, aborts.

// /// script
// dependencies = ["openai@7.59.0"]
// [tool.client]
// serve = ["--api-key", "sk-clients", "--max-num-seqs", "4", "--max-queued-requests", "4"]
// ///

import assert from "node:assert/strict";
import OpenAI from "openai";
import { apiKey, keepPromises, metric, modelName, promise, until, url } from "./checklist.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const model = await modelName();
const messages = [{ role: "user", content: "Name three colours of the rainbow." }];
const short = { model, messages, temperature: 0, max_tokens: 24 };
const long = { ...short, max_tokens: 6000, ignore_eos: true };

const numAborted = () => metric("chairlift:requests_finished_total", 'reason="abort"');

async function textOf(stream) {
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
  return text;
}

promise("models are listed and found", async () => {
  const listed = [];
  for await (const one of client.models.list()) listed.push(one);
  assert.equal(listed.length, 1);
  assert.deepEqual(await client.models.retrieve(model), listed[0]);
});

promise("a chat answers with usage and a request id", async () => {
  const answer = await client.chat.completions.create(short);
  assert.ok(answer.choices[0].message.content);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  assert.ok(answer._request_id);
  const again = await client.chat.completions.create(short);
  assert.deepEqual(again.choices, answer.choices);
  assert.ok(again.usage.prompt_tokens_details.cached_tokens > 0);
});

promise("a stream has the text of the whole answer", async () => {
  const whole = await client.chat.completions.create(short);
  const options = { stream: true, stream_options: { include_usage: true } };
  const stream = await client.chat.completions.create({ ...short, ...options });
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  assert.equal(text, whole.choices[0].message.content);
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.equal(chunks.at(-1).usage.total_tokens, whole.usage.total_tokens);
  const reasons = chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.finish_reason));
  assert.deepEqual(reasons.filter(Boolean), [whole.choices[0].finish_reason]);
});

promise("the stream helper accumulates", async () => {
  const runner = client.chat.completions.stream(short);
  let text = "";
  runner.on("content", (delta) => (text += delta));
  const final = await runner.finalChatCompletion();
  assert.equal(text, final.choices[0].message.content);
  const whole = await client.chat.completions.create(short);
  assert.equal(text, whole.choices[0].message.content);
});

promise("raw answers show headers", async () => {
  const raw = await client.chat.completions.create(short).withResponse();
  assert.equal(raw.response.headers.get("content-type"), "application/json");
  assert.ok(Number(raw.response.headers.get("openai-processing-ms")) >= 0);
  assert.equal(raw.request_id, raw.response.headers.get("x-request-id"));
});

promise("completions score a prompt", async () => {
  const prompt = "The sky is blue and the grass is green";
  const options = { model, prompt, echo: true, logprobs: 2, max_tokens: 1, temperature: 0 };
  const [choice] = (await client.completions.create(options)).choices;
  const { tokens, token_logprobs, top_logprobs, text_offset } = choice.logprobs;
  assert.equal(tokens.join(""), choice.text);
  assert.equal(token_logprobs[0], null);
  for (const list of [token_logprobs, top_logprobs, text_offset]) {
    assert.equal(list.length, tokens.length);
  }
});

promise("completions stream any script", async () => {
  const options = { model, prompt: "naïve 🙂 日本語:", echo: true, max_tokens: 12, temperature: 0 };
  const whole = await client.completions.create(options);
  let text = "";
  for await (const chunk of await client.completions.create({ ...options, stream: true })) {
    text += chunk.choices[0]?.text ?? "";
  }
  assert.equal(text, whole.choices[0].text);
  assert.ok(text.startsWith(options.prompt));
});

promise("vectors are the same in both encodings", async () => {
  const options = { model, input: ["A cat sits on the mat.", "Shares fell sharply today."] };
  const answer = await client.embeddings.create(options);
  const floats = await client.embeddings.create({ ...options, encoding_format: "float" });
  assert.equal(answer.data.length, 2);
  assert.ok(answer.data[0].embedding.length > 1);
  for (const index of [0, 1]) {
    const [ours, theirs] = [answer, floats].map(({ data }) => Array.from(data[index].embedding));
    assert.deepEqual(ours, theirs);
  }
  assert.ok(answer.usage.prompt_tokens > 5);
});

promise("errors are the right exceptions", async () => {
  const cases = [
    [OpenAI.BadRequestError, 400, null, { ...short, temperature: 9 }],
    [OpenAI.BadRequestError, 400, null, { ...short, messages: [] }],
    [OpenAI.NotFoundError, 404, "model_not_found", { ...short, model: "no-such-model" }],
  ];
  for (const [kind, status, code, body] of cases) {
    await assert.rejects(client.chat.completions.create(body), (error) => {
      assert.ok(error instanceof kind);
      assert.equal(error.status, status);
      assert.equal(error.code, code);
      assert.ok(error.requestID);
      return true;
    });
  }
  const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: "sk-wrong", maxRetries: 0 });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
});

promise("an error in a stream is raised", async () => {
  await assert.rejects(async () => {
    await textOf(await client.chat.completions.create({ ...long, stream: true, timeout: 1.0 }));
  }, (error) => error instanceof OpenAI.APIError && error.code === "deadline_exceeded");
});

promise("aborting a stream ends the request in the server", async () => {
  const before = await numAborted();
  const stream = await client.chat.completions.create({ ...long, stream: true });
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    stream.controller.abort();
  }
  await until(async () => (await numAborted()) > before);
});

promise("aborting a plain request ends it in the server", async () => {
  const before = await numAborted();
  const controller = new AbortController();
  const answer = client.chat.completions.create(long, { signal: controller.signal });
  answer.catch(() => undefined);
  await until(async () => (await metric("chairlift:num_requests_running")) > 0);
  controller.abort();
  await assert.rejects(answer, OpenAI.APIUserAbortError);
  await until(async () => (await numAborted()) > before);
});

promise("a full queue is 429 and retries get through", async () => {
  const running = [];
  for (let i = 0; i < 4; i += 1) {
    running.push(await client.chat.completions.create({ ...long, stream: true }));
  }
  const waiting = new AbortController();
  const queued = [1, 2, 3, 4].map(() =>
    client.chat.completions.create({ ...long, stream: true }, { signal: waiting.signal }),
  );
  for (const one of queued) one.catch(() => undefined);
  await until(async () => (await metric("chairlift:num_requests_waiting")) === 4);
  await assert.rejects(client.chat.completions.create(short), (error) => {
    assert.ok(error instanceof OpenAI.RateLimitError);
    assert.equal(error.code, "queue_full");
    assert.ok(Number(error.headers.get("retry-after")) >= 1);
    return true;
  });
  const refused = await metric("chairlift:http_requests_total", 'status="429"');
  const patient = client.chat.completions.create(short, { maxRetries: 8 });
  await until(async () => (await metric("chairlift:http_requests_total", 'status="429"')) > refused);
  waiting.abort();
  for (const stream of running) stream.controller.abort();
  const answer = await patient;
  const whole = await client.chat.completions.create(short);
  assert.deepEqual(answer.choices, whole.choices);
});

await keepPromises();
