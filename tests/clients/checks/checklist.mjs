// What the checks in JavaScript share: a promise is a function; each ends as one printed line.

export const url = process.env.CHAIRLIFT_URL;
export const apiKey = process.env.CHAIRLIFT_API_KEY || "unused";

const promises = [];

/** Registers what is promised and the function that shows it. */
export function promise(name, show) {
  promises.push([name, show]);
}

/** Runs all of them in order; the exit code is 1 if one was broken. */
export async function keepPromises() {
  for (const [name, show] of promises) {
    try {
      await show();
      console.log(`ok ${name}`);
    } catch (error) {
      console.error(error);
      const said = `${error.name}: ${error.message}`.replaceAll("\n", " ").slice(0, 500);
      console.log(`FAILED ${name}: ${said}`);
      process.exitCode = 1;
    }
  }
}

/** Waits for something to become true; a pause of the machine counts for little. */
export async function until(condition, timeoutMs = 60_000) {
  let waitedMs = 0;
  let lastMs = performance.now();
  while (!(await condition())) {
    if (waitedMs > timeoutMs) throw new Error("waited in vain");
    await new Promise((resolve) => setTimeout(resolve, 100));
    waitedMs += Math.min(500, performance.now() - lastMs);
    lastMs = performance.now();
  }
}

/** A value of /metrics, summed over its labels; `label` is a text such as reason="abort". */
export async function metric(name, label = "") {
  const answer = await fetch(`${url}/metrics`, { headers: { authorization: `Bearer ${apiKey}` } });
  const lines = (await answer.text()).split("\n");
  return lines
    .filter((line) => line.startsWith(`${name} `) || line.startsWith(`${name}{`))
    .filter((line) => line.includes(label))
    .reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(" "))), 0);
}

/** What the server calls its model. */
export async function modelName() {
  const headers = { authorization: `Bearer ${apiKey}` };
  const answer = await fetch(`${url}/v1/models`, { headers });
  return (await answer.json()).data[0].id;
}
