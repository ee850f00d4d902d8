"""guidellm: closed loops over text and chat completions, each answer with the tokens asked for."""

# /// script
# dependencies = ["guidellm==0.8.1", "torch==2.13.0"]
# ///

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from checklist import URL, keep_promises, metric, model_name, promise, run_tool

NUM_REQUESTS, NUM_STREAMS, PROMPT_TOKENS, OUTPUT_TOKENS = 12, 4, 40, 16


def measure(request_format: str, *, stream: bool = True) -> dict[str, Any]:
    """The one benchmark of a run."""
    report = Path(f"guidellm-{request_format.count('/')}-{stream}.json").resolve()
    report.unlink(missing_ok=True)
    backend = {
        "kind": "openai_http",
        "target": URL,
        "model": model_name(),
        "request_format": request_format,
        "stream": stream,
    }
    data = {
        "kind": "synthetic_text",
        "prompt_tokens": PROMPT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
    }
    run_tool(
        "guidellm", "run", "--backend", json.dumps(backend), "--data", json.dumps(data),
        "--profile", f"kind=concurrent,streams=[{NUM_STREAMS}]",
        "--constraint", f"kind=max_requests,count={NUM_REQUESTS}",
        "--tokenizer", f"kind=huggingface_auto,model={os.environ['CHAIRLIFT_TOKENIZER']}",
        "--output", f"kind=json,path={report}", "--disable-console",
    )  # fmt: skip
    (benchmark,) = json.loads(report.read_text(encoding="utf-8"))["benchmarks"]
    return dict(benchmark)


def check_requests(benchmark: dict[str, Any]) -> None:
    requests = benchmark["requests"]
    assert not requests["errored"], requests["errored"][0]
    good = requests["successful"]
    assert len(good) == NUM_REQUESTS
    for request in good:
        assert request["output_metrics"]["text_tokens"] == OUTPUT_TOKENS, request
        assert request["output"]


@promise
def streamed_text_completions_are_measured() -> None:
    benchmark = measure("/v1/completions")
    check_requests(benchmark)
    first_token = benchmark["metrics"]["time_to_first_token_ms"]["successful"]
    assert first_token["count"] == NUM_REQUESTS and first_token["median"] > 0
    for request in benchmark["requests"]["successful"]:
        assert abs(request["prompt_tokens"] - PROMPT_TOKENS) <= 2


@promise
def streamed_chat_completions_are_measured() -> None:
    check_requests(measure("/v1/chat/completions"))


@promise
def whole_answers_are_measured() -> None:
    check_requests(measure("/v1/chat/completions", stream=False))


@promise
def the_server_counted_the_same_tokens() -> None:
    assert metric("chairlift:generation_tokens_total") >= 3 * NUM_REQUESTS * OUTPUT_TOKENS


keep_promises()
