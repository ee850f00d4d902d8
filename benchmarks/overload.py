"""What is left of a server's goodput when it is asked for many times what it can do.

    python benchmarks/overload.py [--work 64/64] [--clients 32] [--seconds 60] [-- FLAGS]

A closed loop finds the capacity; then an open loop (random arrivals, whatever the server does)
offers multiples of it.  Each request brings a deadline as its `timeout`: twice what it took in the
closed loop, unless one is given.  Goodput is the output
tokens per second of answers that were complete within the deadline of the moment at which the
request was to be sent; what was turned away, came too late or was cut counts nothing.  The first
deadline's length of a run, while the queue fills, is left out.  Goal: at ten times the capacity at
least 90 % of the best goodput.  Client and server share the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from rivals.served import served, split_flags  # noqa: E402

from chairlift.bench.serve.load_config import LoadConfig  # noqa: E402
from chairlift.bench.serve.load_report import LoadReport  # noqa: E402
from chairlift.bench.serve.load_session import measure_server  # noqa: E402

GOAL = 0.90
DEADLINE_FACTOR = 2
"""Of the median time that an answer takes in the closed loop."""


def measure(base_url: str, asked: argparse.Namespace, seed: int, **options: Any) -> LoadReport:
    prompt, _, output = asked.work.partition("/")
    return measure_server(
        LoadConfig(
            base_url=base_url,
            input_len=prompt,
            output_len=output,
            ignore_eos=True,
            seed=seed,
            **options,
        )
    )


def capacity(base_url: str, asked: argparse.Namespace) -> tuple[float, float]:
    """Requests per second completed when there is always enough to do, and seconds for each."""
    report = measure(
        base_url, asked, 1, num_prompts=4 * asked.clients, max_concurrency=asked.clients,
        num_warmups=asked.clients,
    )  # fmt: skip
    metrics = report.metrics
    if metrics.failures:
        raise RuntimeError(f"the closed loop failed:\n{report.text()}")
    return metrics.per_second(len(metrics.completed)), metrics.latency_ms("e2el").median / 1e3


def overload(base_url: str, asked: argparse.Namespace, load: float, rate: float) -> dict[str, Any]:
    """One open loop; its goodput and how those fared that got no answer."""
    count = max(1, round(load * rate * (asked.seconds + asked.deadline)))
    report = measure(
        base_url, asked, round(100 * load), num_prompts=count, request_rate=load * rate,
        extra_body=json.dumps({"timeout": asked.deadline}),
    )  # fmt: skip
    records = report.run.records
    start_s, end_s = asked.deadline, max(record.intended_s for record in records)
    good = sum(
        record.num_output_tokens
        for record in report.metrics.completed
        if start_s <= record.finished_s <= end_s and (record.e2el_ms or 0) <= 1e3 * asked.deadline
    )
    refusals_ms = sorted(
        1e3 * (record.finished_s - record.sent_s)
        for record in records
        if record.failure is not None and record.failure.cause == "http_429"
    )
    return {
        "load": load,
        "requests_per_second": round(load * rate, 2),
        "num_requests": count,
        "goodput": round(good / (end_s - start_s), 1),
        "num_completed": len(report.metrics.completed),
        "failures": dict(report.metrics.failures),
        "finish_reasons": dict(Counter(record.finish_reason for record in records)),
        "e2el_p99_ms": round(report.metrics.latency_ms("e2el").percentile(99)),
        "p50_to_429_ms": round(refusals_ms[len(refusals_ms) // 2], 1) if refusals_ms else None,
        "p99_to_429_ms": (
            round(refusals_ms[int(0.99 * (len(refusals_ms) - 1))], 1) if refusals_ms else None
        ),
        "client_cpu_share": round(report.run.client.cpu_share, 3),
    }


def main() -> None:
    words, flags = split_flags(sys.argv[1:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", default="64/64", help="tokens of prompt and answer")
    parser.add_argument("--clients", type=int, default=32, help="of the closed loop")
    parser.add_argument("--deadline", type=float, help="seconds")
    parser.add_argument("--seconds", type=float, default=60.0, help="measured of each load")
    parser.add_argument("--loads", default="0.9,1,10", help="multiples of the capacity")
    parser.add_argument("--output-json", type=Path)
    asked = parser.parse_args(words)

    def command(port: int) -> list[object]:
        serve = [sys.executable, "-m", "chairlift", "serve", "--port", port, "--no-access-log"]
        return [*serve, "--no-enable-prefix-caching", *flags]

    results = []
    with served(command) as base_url:
        rate, answer_s = capacity(base_url, asked)
        asked.deadline = asked.deadline or DEADLINE_FACTOR * answer_s
        print(
            f"capacity: {rate:.2f} requests/s of {asked.work} tokens, {answer_s:.1f} s for each of"
            f" {asked.clients} clients; deadline {asked.deadline:.1f} s",
            flush=True,
        )
        for load in map(float, asked.loads.split(",")):
            results.append(overload(base_url, asked, load, rate))
            print(json.dumps(results[-1]), flush=True)
    peak = max(result["goodput"] for result in results)
    kept = results[-1]["goodput"] / peak
    verdict = "meets" if kept >= GOAL else "misses"
    print(f"at {results[-1]['load']:g}x: {kept:.1%} of the best goodput ({verdict} {GOAL:.0%})")
    if asked.output_json is not None:
        result = {"work": asked.work, "deadline_s": asked.deadline, "flags": flags}
        result |= {"capacity_requests_per_second": rate, "kept": kept, "loads": results}
        asked.output_json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
