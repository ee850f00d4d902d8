// Claude Code without an account: prompts, streams of its own, tools, errors.

// /// script
// dependencies = ["@anthropic-ai/claude-code@2.1.197"]
// [tool.client]
// serve = ["--served-model-name", "smollm2", "--served-model-name", "claude-sonnet-4-5"]
// ///

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { join } from "node:path";
import { keepPromises, metric, promise, url } from "./checklist.mjs";

const wrapper = new URL("node_modules/@anthropic-ai/claude-code/cli-wrapper.cjs", import.meta.url);
const home = mkdtempSync(join(process.cwd(), "home-"));
const env = {
  PATH: process.env.PATH,
  HOME: home,
  ANTHROPIC_BASE_URL: url,
  ANTHROPIC_API_KEY: "unused",
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
  CLAUDE_CODE_MAX_OUTPUT_TOKENS: "96",
  CLAUDE_CODE_MAX_RETRIES: "0",
  DISABLE_AUTOUPDATER: "1",
};

/** Runs it on a prompt that the context of a small model holds; the last object it prints. */
function claude(prompt, ...options) {
  const given = ["-p", prompt, "--system-prompt", "Be brief.", "--output-format", "json"];
  return new Promise((resolve, reject) => {
    const words = [wrapper.pathname, ...given, ...options];
    const child = spawn(process.execPath, words, { env, cwd: home, stdio: ["ignore", "pipe", "pipe"] });
    let output = "";
    let errors = "";
    child.stdout.on("data", (data) => (output += data));
    child.stderr.on("data", (data) => (errors += data));
    child.on("error", reject);
    child.on("close", () => {
      try {
        resolve(JSON.parse(output.trim().split("\n").at(-1)));
      } catch {
        reject(new Error(`it printed ${output.slice(-500)} ${errors.slice(-500)}`));
      }
    });
  });
}

const numAnswered = () =>
  metric("chairlift:http_requests_total", 'endpoint="messages",status="200"');

promise("a prompt is answered", async () => {
  const before = await numAnswered();
  const told = await claude("Name three colours.", "--model", "smollm2", "--tools", "");
  assert.ok(await numAnswered() > before);
  assert.ok(Object.keys(told.modelUsage).includes("smollm2"));
  assert.ok(told.modelUsage.smollm2.inputTokens + told.modelUsage.smollm2.cacheReadInputTokens > 5);
  assert.ok(told.modelUsage.smollm2.outputTokens > 0);
});

promise("a name of Anthropic's is an alias", async () => {
  const before = await numAnswered();
  await claude("Name three colours.", "--model", "claude-sonnet-4-5", "--tools", "");
  assert.ok(await numAnswered() > before);
});

promise("tools are taken", async () => {
  const before = await numAnswered();
  const told = await claude("Name three colours.", "--model", "smollm2", "--tools", "Read", "--max-turns", "2");
  assert.ok(await numAnswered() > before);
  assert.ok(told.modelUsage.smollm2.inputTokens > 100, "the prompt tells of the tool");
});

promise("an unknown model is an error that is told", async () => {
  const told = await claude("Name three colours.", "--model", "no-such-model", "--tools", "");
  assert.equal(told.is_error, true);
  assert.match(JSON.stringify(told), /no-such-model|404/);
});

await keepPromises();
