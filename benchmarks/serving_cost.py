"""What HTTP costs: output tokens per second through `chairlift serve` and from the offline engine,
on the same work in the same run.

    python benchmarks/serving_cost.py [128x512/128 128x16/256 ...] [--rounds 3] [kernels=int8 ...]

All requests of a workload are sent at once, each as a stream of its own, by the load generator of
`chairlift bench serve` on the same cores; the offline engine gets as many prompts of the same
lengths in one call.  Both are warmed up and take turns, alone on the machine; medians count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from rivals.served import served  # noqa: E402
from rivals.workload import MAX_MODEL_LEN, MAX_SEQS, NAMED, num_threads  # noqa: E402

from chairlift.bench.serve.load_config import LoadConfig  # noqa: E402
from chairlift.bench.serve.load_report import LoadReport  # noqa: E402
from chairlift.bench.serve.load_session import measure_server  # noqa: E402
from chairlift.weights.model_source import resolve_model  # noqa: E402

WORKLOADS = ("128x512/128", "128x16/256")
GOAL = 0.92


def measure_offline(model: str, workload: str, options: list[str]) -> float:
    """Output tokens per second of `LLM.generate`, in a process of its own."""
    command = [sys.executable, str(HERE / "rivals" / "run_chairlift.py"), model, workload, *options]
    done = subprocess.run(command, text=True, capture_output=True)
    for line in done.stdout.splitlines():
        if line.startswith("ROW "):
            return float(json.loads(line[4:])["output_tokens_per_s"])
    raise RuntimeError(f"no figure:\n{(done.stdout + done.stderr)[-2000:]}")


def measure_served(model: str, workload: str, options: list[str], seed: int) -> LoadReport:
    """The same lengths over HTTP, by a server of its own with the same options."""
    count, prompt, output = NAMED.get(workload, workload).split(":")
    flags = [word for option in options for word in flag_of(option)]

    def command(port: int) -> list[object]:
        fixed = ["--max-model-len", MAX_MODEL_LEN, "--max-num-seqs", MAX_SEQS]
        fixed += ["--threads", num_threads(), "--no-enable-prefix-caching", "--port", port]
        return [sys.executable, "-m", "chairlift", "serve", model, *fixed, *flags]

    with served(command) as base_url:
        return measure_server(
            LoadConfig(
                base_url=base_url,
                num_prompts=int(count),
                num_warmups=max(1, int(count) // 4),
                max_concurrency=int(count),
                input_len=prompt,
                output_len=output,
                ignore_eos=True,
                seed=seed,
            )
        )


def flag_of(option: str) -> list[str]:
    """quant_compute=fast -> --quant-compute fast"""
    name, _, value = option.partition("=")
    return [f"--{name.replace('_', '-')}", value]


def compare(model: str, workload: str, options: list[str], rounds: int) -> None:
    offline: list[float] = []
    over_http: list[float] = []
    shares: list[float] = []
    for number in range(rounds):
        # In turn, and the other way round each time: a machine that gets slower favours nobody.
        for is_http in (False, True) if number % 2 == 0 else (True, False):
            if is_http:
                report = measure_served(model, workload, options, seed=number)
                if report.metrics.failures:
                    raise RuntimeError(report.text())
                over_http.append(report.to_json()["output_throughput"])
                shares.append(report.run.client.cpu_share)
            else:
                offline.append(measure_offline(model, workload, options))
    ratio = statistics.median(over_http) / statistics.median(offline)
    print(
        f"| {workload} | {figures(offline)} | {figures(over_http)} | {ratio:.1%} |"
        f" {statistics.median(shares):.1%} |",
        flush=True,
    )


def figures(values: list[float]) -> str:
    """The median, and the rounds behind it."""
    return f"{statistics.median(values):.1f} ({' '.join(f'{value:.0f}' for value in values)})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="WORKLOAD or OPTION=VALUE")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_intermixed_args()
    options = [word for word in asked.words if "=" in word]
    workloads = [word for word in asked.words if "=" not in word] or WORKLOADS
    model = str(resolve_model(asked.model, progress=True))
    print(f"chairlift {' '.join(options)}; goal for 128x512/128: {GOAL:.0%}\n")
    print("| requests x in/out | offline tok/s | over HTTP tok/s | ratio | client, of a core |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    for workload in workloads:
        compare(model, workload, options, asked.rounds)


if __name__ == "__main__":
    main()
