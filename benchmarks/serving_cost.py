"""What HTTP costs: output tokens per second through `chairlift serve`, measured by `chairlift
bench serve`, and from the engine alone, by `chairlift bench throughput`, on the same work in the
same run.

    python benchmarks/serving_cost.py [128x512/128 128x16/256 ...] [--rounds 3] [-- FLAGS]

A workload is COUNTxINPUT/OUTPUT.  All of its requests are sent at once, each as a stream of its
own, by a client on the same cores.  FLAGS are options of the engine, such as --kernels int8, for
both.  Both are warmed up and take turns, alone on the machine; medians count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from rivals.served import served, split_flags  # noqa: E402

from chairlift.bench.serve.load_config import LoadConfig  # noqa: E402
from chairlift.bench.serve.load_report import LoadReport  # noqa: E402
from chairlift.bench.serve.load_session import measure_server  # noqa: E402

WORKLOADS = ("128x512/128", "128x16/256")
GOAL = 0.92


def parts_of(workload: str) -> tuple[int, str, str]:
    """128x512/128 -> 128, "512", "128" """
    count, _, lengths = workload.partition("x")
    prompt, _, output = lengths.partition("/")
    return int(count), prompt, output


def engine_flags(count: int, flags: list[str]) -> list[str]:
    """The same for both; random prompts would not hit a prefix cache."""
    return ["--max-num-seqs", str(count), "--no-enable-prefix-caching", *flags]


def measure_offline(workload: str, flags: list[str], seed: int) -> float:
    """Output tokens per second, in a process of its own."""
    count, prompt, output = parts_of(workload)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [sys.executable, "-m", "chairlift", "bench", "throughput"]
        command += ["--num-prompts", str(count), "--input-len", prompt, "--output-len", output]
        command += ["--seed", str(seed), "--output-json", str(path), *engine_flags(count, flags)]
        done = subprocess.run(command, text=True, capture_output=True)
        if done.returncode != 0:
            raise RuntimeError((done.stdout + done.stderr)[-2000:])
        return float(json.loads(path.read_text())["output_tokens_per_second"])


def measure_served(workload: str, flags: list[str], seed: int) -> LoadReport:
    """The same lengths over HTTP, by a server of its own with the same options."""
    count, prompt, output = parts_of(workload)

    def command(port: int) -> list[object]:
        serve = [sys.executable, "-m", "chairlift", "serve", "--port", port]
        return [*serve, *engine_flags(count, flags)]

    with served(command) as base_url:
        report = measure_server(
            LoadConfig(
                base_url=base_url,
                num_prompts=count,
                num_warmups=max(1, count // 4),
                max_concurrency=count,
                input_len=prompt,
                output_len=output,
                ignore_eos=True,
                seed=seed,
            )
        )
    metrics = report.metrics
    if metrics.failures or metrics.total_output_tokens != metrics.num_output_tokens_asked:
        raise RuntimeError(f"not what was asked for:\n{report.text()}")
    return report


def compare(workload: str, flags: list[str], rounds: int) -> None:
    offline: list[float] = []
    over_http: list[LoadReport] = []
    for number in range(rounds):
        # In turn, and the other way round each time: a machine that gets slower favours nobody.
        for is_http in (False, True) if number % 2 == 0 else (True, False):
            if is_http:
                over_http.append(measure_served(workload, flags, seed=number))
            else:
                offline.append(measure_offline(workload, flags, seed=number))
    speeds = [r.metrics.per_second(r.metrics.total_output_tokens) for r in over_http]
    ratio = statistics.median(speeds) / statistics.median(offline)
    client = statistics.median(report.run.client.cpu_share for report in over_http)
    print(
        f"| {workload} | {figures(offline)} | {figures(speeds)} | {ratio:.1%} | {client:.1%} |",
        flush=True,
    )


def figures(values: list[float]) -> str:
    """The median, and the rounds behind it."""
    return f"{statistics.median(values):.1f} ({' '.join(f'{value:.0f}' for value in values)})"


def main() -> None:
    words, flags = split_flags(sys.argv[1:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(words)
    print(f"chairlift {' '.join(flags)}; goal for 128x512/128: {GOAL:.0%}\n")
    print("| requests x in/out | offline tok/s | over HTTP tok/s | ratio | client, of a core |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    for workload in asked.workloads:
        compare(workload, flags, asked.rounds)


if __name__ == "__main__":
    main()
