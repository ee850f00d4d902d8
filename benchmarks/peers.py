"""Chairlift beside its peers: the same model, prompts and processors, in one run.

    python benchmarks/peers.py setup                 install the peers (about 8 GB, half an hour)
    python benchmarks/peers.py compare [WORKLOAD ...] [--engines chairlift vllm] [--rounds 3]
    python benchmarks/peers.py settings WORKLOAD     every setting of every engine, one round

A workload is COUNTxINPUT/OUTPUT as named below, or COUNT:INPUT:OUTPUT; requests are sent all at
once, end-of-text is ignored, prefix caching is off.  Engines take turns (A B C, A B C, ...), each
in a process of its own that first runs a quarter of the workload; medians count.  `compare` runs
the settings found fastest for each peer, `settings` shows how they were found.  The limit printed
with each workload is the time that its products would take at the int8 peak of all threads,
measured in the same run.  Memory: about 8 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from rivals.install import Rivals  # noqa: E402
from rivals.workload import NAMED, jobs_of, num_threads  # noqa: E402

HOME = Path(os.environ.get("RIVALS_HOME", "~/.cache/chairlift-peers")).expanduser()
ENGINES = ("chairlift", "openvino", "llama.cpp", "vllm")
MACS_PER_TOKEN = 106_168_320  # of the layers' matrices
MACS_PER_LOGITS = 28_311_552
MACS_PER_CONTEXT_TOKEN = 34_560  # of attention, per token computed


@dataclass(frozen=True)
class Contender:
    """One engine with one group of settings."""

    engine: str
    settings: tuple[str, ...]


CONTENDERS = {
    "chairlift": [
        ("quant_compute=exact",),
        ("quant_compute=fast", "max_num_batched_tokens=1024", "preallocate_kv_cache=true"),
        ("quant_compute=fast",),
        ("kernels=native",),
    ],
    "openvino": [
        ("int8", "f32", "64"),
        ("int8", "f32", "32"),
        ("int8", "bf16", "0"),
        ("int4", "f32", "32"),
    ],
    "llama.cpp": [("Q4_0", "off"), ("Q4_0", "on"), ("Q8_0", "off"), ("Q4_1", "off")],
    "vllm": [("float32",), ("float16",), ("bfloat16",)],
}

COMPARED = {"chairlift": 2, "openvino": 1, "llama.cpp": 1, "vllm": 1}
"""How many of them `compare` runs: both of ours that may be the default, each peer's fastest."""


def command_of(rivals: Rivals, contender: Contender, workload: str) -> list[object]:
    scripts, settings = HERE / "rivals", contender.settings
    if contender.engine == "chairlift":
        script = scripts / "run_chairlift.py"
        return [sys.executable, script, rivals.gguf("Q4_1"), workload, *settings]
    if contender.engine == "openvino":
        folder, *rest = settings
        script = scripts / "run_openvino.py"
        return [rivals.python("openvino"), script, rivals.openvino(folder), workload, *rest]
    if contender.engine == "llama.cpp":
        quantisation, flash = settings
        model = rivals.gguf(quantisation)
        script = scripts / "run_llamacpp.py"
        return [sys.executable, script, rivals.llama_binaries, model, workload, flash]
    return [rivals.python("vllm"), scripts / "run_vllm.py", rivals.checkpoint, workload, *settings]


def environment_of(rivals: Rivals, engine: str) -> dict[str, str]:
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if engine == "vllm":
        cores = sorted(os.sched_getaffinity(0))[: num_threads()]
        env["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
        env["VLLM_CPU_KVCACHE_SPACE"] = "6"
        env["VLLM_LOGGING_LEVEL"] = "ERROR"
        env["VLLM_TARGET_DEVICE"] = "cpu"  # the package's name does not tell it
        openmp = next((rivals.home / "vllm").glob("lib/**/libiomp5.so"), None)
        if openmp is not None:
            env["LD_PRELOAD"] = str(openmp)
    return env


def measure(rivals: Rivals, contender: Contender, workload: str) -> dict[str, float | str]:
    """Raises RuntimeError if the engine gave no figure."""
    command = [str(word) for word in command_of(rivals, contender, workload)]
    env = environment_of(rivals, contender.engine)
    done = subprocess.run(command, env=env, text=True, capture_output=True)
    for line in done.stdout.splitlines():
        if line.startswith("ROW "):
            return json.loads(line[4:])
    raise RuntimeError(f"{contender.engine}: no figure:\n{(done.stdout + done.stderr)[-2000:]}")


def products_of(workload: str) -> float:
    """Multiply-adds of a workload, attention included; logits once per new token."""
    total = 0.0
    for job in jobs_of(workload):
        computed = len(job.prompt) + job.num_tokens - 1
        total += MACS_PER_TOKEN * computed + MACS_PER_LOGITS * job.num_tokens
        total += MACS_PER_CONTEXT_TOKEN * computed * (computed + 1) / 2
    return total


def measure_peak() -> float:
    """int8 products per second of all threads."""
    code = (
        "from chairlift.kernels.cpu.int8 import Int8Kernels;"
        f"print(Int8Kernels({num_threads()})._linears.measure_int8_dot())"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    return 1e9 * float(done.stdout)


def compare(rivals: Rivals, contenders: list[Contender], workload: str, rounds: int) -> None:
    """Rounds in turn, then a table of medians."""
    rows: dict[Contender, list[dict[str, float | str]]] = {}
    peaks = []
    for _ in range(rounds):
        peaks.append(measure_peak())
        for contender in contenders:
            try:
                row = measure(rivals, contender, workload)
            except RuntimeError as error:
                print(error, file=sys.stderr, flush=True)
                continue
            rows.setdefault(contender, []).append(row)
            note(f"{workload}  {row['engine']:<10}{row['output_tokens_per_s']:>8.1f} tok/s")
    if rows:
        print_table(workload, rows, statistics.median(peaks))


def print_table(
    workload: str, rows: dict[Contender, list[dict[str, float | str]]], peak: float
) -> None:
    output = sum(job.num_tokens for job in jobs_of(workload))
    limit = output / (products_of(workload) / peak)
    print(f"\n### {workload}\nint8 peak {peak / 1e9:.0f} GMAC/s: limit {limit:.0f} tok/s\n")
    print("| engine | output tok/s | of the limit | rounds | settings |")
    print("| --- | --- | --- | --- | --- |")
    medians = {
        contender: statistics.median(float(row["output_tokens_per_s"]) for row in own)
        for contender, own in rows.items()
    }
    for contender, own in rows.items():
        rounds = " ".join(f"{row['output_tokens_per_s']:.0f}" for row in own)
        speed, settings = medians[contender], own[-1]["settings"]
        share = f"{speed / limit:.0%}"
        print(f"| {contender.engine} | {speed:.1f} | {share} | {rounds} | {settings} |")
    ours = [speed for contender, speed in medians.items() if contender.engine == "chairlift"]
    others = [speed for contender, speed in medians.items() if contender.engine != "chairlift"]
    if ours and others:
        print(f"\nChairlift is {max(ours) / max(others):.2f}x the fastest peer.")
    sys.stdout.flush()


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = result.add_subparsers(dest="command", required=True)
    commands.add_parser("setup")
    for name in ("compare", "settings"):
        command = commands.add_parser(name)
        command.add_argument("workloads", nargs="*", default=list(NAMED))
        command.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
        command.add_argument("--rounds", type=int, default=3 if name == "compare" else 1)
    return result


def main() -> None:
    asked = parser().parse_args()
    rivals = Rivals(HOME, note)
    if asked.command == "setup":
        from chairlift.weights.model_source import resolve_model

        rivals.install(resolve_model("smollm2", progress=True))
        return
    is_compare = asked.command == "compare"
    contenders = [
        Contender(engine, settings)
        for engine in asked.engines
        for settings in CONTENDERS[engine][: COMPARED[engine] if is_compare else None]
    ]
    for workload in asked.workloads:
        compare(rivals, contenders, workload, asked.rounds)


if __name__ == "__main__":
    main()
