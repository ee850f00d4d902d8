"""Servers beside each other under the same load: a closed loop of 32 clients, mixed lengths.

    python benchmarks/peers.py setup           once: installs the peers
    python benchmarks/serving_peers.py [--engines chairlift llama.cpp vllm] [--rounds 3]
    python benchmarks/serving_peers.py --all-settings --rounds 1      how the settings were found

The load generator is that of `chairlift bench serve`: token ids for prompts, the same in all
servers of a round, others in the next; end-of-text ignored, prefix caching off.  Servers take
turns, alone on the machine; medians count.  Peers lie where RIVALS_HOME says.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from rivals.install import Rivals  # noqa: E402
from rivals.served import served  # noqa: E402
from rivals.workload import MAX_MODEL_LEN, num_threads  # noqa: E402

from chairlift.bench.serve.load_config import LoadConfig  # noqa: E402
from chairlift.bench.serve.load_session import measure_server  # noqa: E402

HOME = Path(os.environ.get("RIVALS_HOME", "~/.cache/chairlift-peers")).expanduser()

CONTENDERS: dict[str, list[tuple[str, ...]]] = {
    "chairlift": [("kernels=int8",), ("kernels=int8", "quant_compute=fast"), ("kernels=native",)],
    "llama.cpp": [("Q4_0", "off"), ("Q4_0", "on"), ("Q8_0", "off"), ("Q4_1", "off")],
    "vllm": [("float32",), ("float16",), ("bfloat16",)],
}
"""Settings by engine, the fastest first."""


@dataclass(frozen=True)
class Load:
    """What every server is asked to do."""

    clients: int
    num_prompts: int
    input_len: str
    output_len: str

    @property
    def longest(self) -> int:
        """Prompt and output of the longest request."""
        return sum(int(text.split("-")[-1]) for text in (self.input_len, self.output_len))


@dataclass(frozen=True)
class Contender:
    engine: str
    settings: tuple[str, ...]


def command_of(contender: Contender, rivals: Rivals, load: Load) -> Callable[[int], list[object]]:
    settings = contender.settings
    if contender.engine == "chairlift":
        flags = [part for text in settings for part in chairlift_flag(text)]
        flags += ["--max-model-len", MAX_MODEL_LEN, "--max-num-seqs", load.clients]
        flags += ["--threads", num_threads(), "--no-enable-prefix-caching"]
        start: list[object] = [sys.executable, "-m", "chairlift", "serve", rivals.gguf("Q4_1")]
        return lambda port: [*start, *flags, "--port", port]
    if contender.engine == "llama.cpp":
        quantisation, flash = settings
        context = load.clients * (load.longest + 16)
        start = [rivals.llama_binaries / "llama-server", "-m", rivals.gguf(quantisation)]
        start += ["-t", num_threads(), "-np", load.clients, "-c", context, "-fa", flash]
        start += ["-b", 2048, "-ub", 512, "--cache-ram", 0, "--no-webui", "--host", "127.0.0.1"]
        return lambda port: [*start, "--port", port]
    start = [rivals.python("vllm"), "-m", "vllm.entrypoints.openai.api_server"]
    start += ["--model", rivals.checkpoint, "--dtype", settings[0], "--host", "127.0.0.1"]
    start += ["--max-model-len", MAX_MODEL_LEN, "--max-num-seqs", load.clients]
    start += ["--no-enable-prefix-caching", "--disable-log-stats"]
    return lambda port: [*start, "--port", port]


def chairlift_flag(text: str) -> list[str]:
    """quant_compute=fast -> --quant-compute fast"""
    name, _, value = text.partition("=")
    return [f"--{name.replace('_', '-')}", value]


def environment_of(contender: Contender, rivals: Rivals) -> dict[str, str]:
    env = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if contender.engine == "llama.cpp":
        env["LD_LIBRARY_PATH"] = str(rivals.llama_binaries)
    if contender.engine == "vllm":
        env["VLLM_TARGET_DEVICE"] = "cpu"  # the package's name does not tell it
        cores = sorted(os.sched_getaffinity(0))[: num_threads()]
        env["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
        env["VLLM_CPU_KVCACHE_SPACE"] = "6"
        openmp = next((rivals.home / "vllm").glob("lib/**/libiomp5.so"), None)
        if openmp is not None:
            env["LD_PRELOAD"] = str(openmp)
    return env


def measure(contender: Contender, rivals: Rivals, load: Load, seed: int) -> dict[str, float]:
    """The figures of one run.  Raises RuntimeError if a request failed or was cut short."""
    command = command_of(contender, rivals, load)
    with served(command, environment_of(contender, rivals)) as base_url:
        report = measure_server(
            LoadConfig(
                base_url=base_url,
                num_prompts=load.num_prompts,
                num_warmups=load.clients,
                max_concurrency=load.clients,
                input_len=load.input_len,
                output_len=load.output_len,
                ignore_eos=True,
                prompt_form="ids",
                extra_body='{"cache_prompt":false}' if contender.engine == "llama.cpp" else None,
                metric_percentiles="50,99",
                seed=seed,
            )
        )
    metrics = report.metrics
    if metrics.failures or metrics.total_output_tokens != metrics.num_output_tokens_asked:
        raise RuntimeError(f"{contender.engine}: not what was asked for\n{report.text()}")
    return {
        name: value for name, value in report.to_json().items() if isinstance(value, int | float)
    }


def print_table(rows: dict[Contender, list[dict[str, float]]]) -> None:
    print(
        "| server | settings | output tok/s | TTFT p50 | TTFT p99 | ITL p99 | tokens a chunk |"
        " answered at once |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    for contender, runs in rows.items():

        def median(name: str, runs: Sequence[dict[str, float]] = runs) -> float:
            return statistics.median(run[name] for run in runs)

        rounds = " ".join(f"{run['output_throughput']:.0f}" for run in runs)
        print(
            f"| {contender.engine} | {' '.join(contender.settings)} |"
            f" {median('output_throughput'):.1f} ({rounds}) |"
            f" {median('p50_ttft_ms'):.0f} ms | {median('p99_ttft_ms'):.0f} ms |"
            f" {median('p99_itl_ms'):.0f} ms | {median('tokens_per_chunk'):.2f} |"
            f" {median('mean_answering'):.1f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--all-settings", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--num-prompts", type=int, default=320)
    parser.add_argument("--input-len", default="16-512")
    parser.add_argument("--output-len", default="16-256")
    asked = parser.parse_args()
    load = Load(asked.clients, asked.num_prompts, asked.input_len, asked.output_len)
    rivals = Rivals(HOME, lambda text: print(text, file=sys.stderr, flush=True))
    contenders = [
        Contender(engine, settings)
        for engine in asked.engines
        for settings in CONTENDERS[engine][: None if asked.all_settings else 1]
    ]
    rows: dict[Contender, list[dict[str, float]]] = {}
    for number in range(asked.rounds):
        for contender in contenders:
            try:
                found = measure(contender, rivals, load, seed=number)
            except (RuntimeError, ValueError, OSError) as error:
                print(f"{contender.engine}: {error}", file=sys.stderr, flush=True)
                continue
            rows.setdefault(contender, []).append(found)
            print(
                f"{contender.engine} {' '.join(contender.settings)}:"
                f" {found['output_throughput']:.1f} tok/s",
                file=sys.stderr,
                flush=True,
            )
    print(f"{load}, {num_threads()} threads\n")
    print_table(rows)


if __name__ == "__main__":
    main()
