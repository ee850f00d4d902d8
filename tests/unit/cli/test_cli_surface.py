"""The frozen list of commands and flags: it changes on purpose, never by accident."""

from __future__ import annotations

import dataclasses
from typing import Any

import typer.main

from chairlift.cli.main import app
from chairlift.config import EngineConfig
from chairlift.sampling_params import SamplingParams

SAMPLING = {
    "--allowed-token-ids",
    "--bad-words",
    "--frequency-penalty",
    "--ignore-eos/--no-ignore-eos",
    "--include-stop-str-in-output/--no-include-stop-str-in-output",
    "--logit-bias",
    "--max-tokens",
    "--min-p",
    "--min-tokens",
    "--presence-penalty",
    "--repetition-penalty",
    "--seed",
    "--skip-special-tokens/--no-skip-special-tokens",
    "--stop",
    "--stop-token-ids",
    "--temperature",
    "--top-k",
    "--top-p",
}
ENGINE = {
    "--batch-wait-ms",
    "--batching-policy",
    "--block-size",
    "--enable-chunked-prefill/--no-enable-chunked-prefill",
    "--enable-prefix-caching/--no-enable-prefix-caching",
    "--enforce-eager/--no-enforce-eager",
    "--gpu-memory-utilization",
    "--kernels",
    "--kv-cache-dtype",
    "--kv-cache-memory",
    "--long-prefill-token-threshold",
    "--max-model-len",
    "--max-num-batched-tokens",
    "--max-num-seqs",
    "--preallocate-kv-cache/--no-preallocate-kv-cache",
    "--preemption-mode",
    "--prefill-policy",
    "--preset",
    "--quant-compute",
    "--scheduling-policy",
    "--static-batch-size",
    "--swap-path",
    "--swap-space",
    "--tensor-parallel-size",
    "--threads",
}
MODEL = {"--model -m", "--trace"}
SURFACE = {
    "": {"--version"},
    "bench": set(),
    "bench accuracy": {
        "--against",
        "--all-modes",
        "--json",
        "--kernels",
        "--kv-cache-dtype",
        "--model -m",
        "--quant-compute",
        "--text",
        "--threads",
        "--windows",
    },
    "bench kernels": {"MODEL", "--json", "--only", "--quick", "--threads"},
    "bench latency": ENGINE
    | {
        "--model -m",
        "--seed",
        "--batch-size",
        "--input-len",
        "--num-iters",
        "--num-iters-warmup",
        "--output-json",
        "--output-len",
    },
    "bench structured": ENGINE
    | {
        "--model -m",
        "--seed",
        "--input-len",
        "--num-prompts",
        "--output-json",
        "--output-len",
        "--rounds",
        "--temperature",
    },
    "bench policies": {
        "--concurrency",
        "--json",
        "--kernels",
        "--model -m",
        "--num-requests",
        "--plot",
        "--scale",
        "--seed",
        "--threads",
        "--workload",
    },
    "bench throughput": ENGINE
    | {
        "--model -m",
        "--seed",
        "--compare-policies",
        "--input-len",
        "--limit",
        "--num-prompts",
        "--output-json",
        "--output-len",
        "--rounds",
    },
    "bench serve": {
        "MORE_GOODPUT",
        "--api-key",
        "--base-url",
        "--burstiness",
        "--dataset-name",
        "--dataset-path",
        "--endpoint",
        "--extra-body",
        "--goodput",
        "--header",
        "--ignore-eos/--no-ignore-eos",
        "--input-len",
        "--max-concurrency",
        "--metric-percentiles",
        "--model -m",
        "--num-prefixes",
        "--num-prompts",
        "--num-warmups",
        "--output-json",
        "--output-len",
        "--percentile-metrics",
        "--plot",
        "--prompt-form",
        "--request-rate",
        "--result-dir",
        "--save-detailed",
        "--save-result",
        "--seed",
        "--shared-prefix-len",
        "--temperature",
        "--timed-trace-chunk-hash-size",
        "--timed-trace-sec-multiplier",
        "--timeout",
        "--token-ids",
        "--wait-ready",
    },
    "chat": SAMPLING | ENGINE | MODEL | {"--system", "--verbose"},
    "demo": {
        "--kernels",
        "--model -m",
        "--num-requests",
        "--out",
        "--seats",
        "--seed",
        "--threads",
    },
    "generate": SAMPLING
    | ENGINE
    | MODEL
    | {
        "PROMPTS",
        "--file",
        "--json",
        "--logprobs",
        "--n",
        "--prompt-logprobs",
        "--stream/--no-stream",
        "--quiet",
    },
    "info": ENGINE | {"MODEL", "--json"},
    "pull": {"NAME"},
    "serve": ENGINE
    | MODEL
    | {
        "MODEL_NAME",
        "--access-log/--no-access-log",
        "--allowed-host",
        "--api-key",
        "--api-key-file",
        "--chat-template",
        "--cors-origin",
        "--host",
        "--insecure/--no-insecure",
        "--key-weight",
        "--log-format",
        "--log-prompts/--no-log-prompts",
        "--max-body-size",
        "--max-connections",
        "--max-queued-requests",
        "--max-queued-requests-per-key",
        "--max-queued-tokens",
        "--max-queued-tokens-per-key",
        "--ping-interval",
        "--pooling-type",
        "--port",
        "--request-timeout",
        "--seed",
        "--served-model-name",
        "--metrics-compat",
        "--otlp-traces-endpoint",
        "--public-metrics/--no-public-metrics",
        "--shutdown-timeout",
        "--slow-client-timeout",
        "--ssl-certfile",
        "--ssl-keyfile",
        "--step-timeout",
        "--store",
        "--store-days",
        "--store-size",
        "--strict-fields/--no-strict-fields",
        "--tool-parser --tool-call-parser",
        "--enable-auto-tool-choice/--no-enable-auto-tool-choice",
        "--reasoning-parser",
        "--uds",
        "--usage-timings/--no-usage-timings",
    },
}


def _flags(command: Any) -> set[str]:
    found = set()
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            found.add(parameter.name.upper())
        elif parameter.secondary_opts:
            found.add("/".join([*parameter.opts, *parameter.secondary_opts]))
        else:
            found.add(" ".join(parameter.opts))
    return found


def _walk(name: str, command: Any) -> dict[str, set[str]]:
    found = {name: _flags(command)}
    for child_name, child in getattr(command, "commands", {}).items():
        found |= _walk(f"{name} {child_name}".strip(), child)
    return found


def test_commands_and_flags() -> None:
    assert _walk("", typer.main.get_command(app)) == SURFACE


def test_generate_has_every_option_of_a_request_and_the_engine() -> None:
    """But for `detokenize`: without text there is nothing to show; what has several parts; and
    what the parsers of a server's answers want to see, or embeddings need."""
    fields = dataclasses.fields(SamplingParams) + dataclasses.fields(EngineConfig)
    names = {"--" + field.name.replace("_", "-") for field in fields} - {
        "--detokenize",
        "--structured-outputs",
        "--pooling-type",
        "--kept-special-token-ids",
    }
    flags = {flag.split("/")[0].split(" ")[0] for flag in SURFACE["generate"]}
    assert names <= flags
