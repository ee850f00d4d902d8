"""aiperf: a load over chat completions, and one in which it hangs up on half of its requests."""

# /// script
# dependencies = ["aiperf==0.13.0"]
# ///

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from checklist import URL, keep_promises, metric, model_name, post, promise, run_tool, until

NUM_REQUESTS, OUTPUT_TOKENS = 24, 24

for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
    os.environ.pop(name, None)  # with them it looks for tokenizers in a cache only, in no folder
# It takes a part of itself that ended 15 s ago for a lost one, and may write reports for longer.
os.environ["AIPERF_SERVICE_HEARTBEAT_MISSED_THRESHOLD"] = "100"


def measure(name: str, *words: object, output_tokens: int = OUTPUT_TOKENS) -> dict[str, Any]:
    """The summary of a run."""
    folder = Path(f"aiperf-{name}").resolve()
    run_tool(
        "aiperf", "profile", "--model", model_name(), "--url", URL, "--streaming",
        "--tokenizer", os.environ["CHAIRLIFT_TOKENIZER"], "--use-server-token-count",
        "--concurrency", 8, "--request-count", NUM_REQUESTS, "--random-seed", 7,
        "--isl", 64, "--osl", output_tokens, "--extra-inputs", "ignore_eos:true",
        "--artifact-dir", folder, "--ui", "none", *words,
    )  # fmt: skip
    text = (folder / "profile_export_aiperf.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def num_ended(reason: str) -> float:
    return metric("chairlift:requests_finished_total", reason=reason)


@promise
def a_chat_load_is_measured() -> None:
    summary = measure("chat", "--endpoint-type", "chat")
    assert summary["request_count"]["avg"] == NUM_REQUESTS
    assert summary["output_sequence_length"]["min"] == OUTPUT_TOKENS
    assert summary["time_to_first_token"]["p99"] > 0


@promise
def a_text_load_is_measured() -> None:
    summary = measure("text", "--endpoint-type", "completions")
    assert summary["request_count"]["avg"] == NUM_REQUESTS
    assert summary["output_sequence_length"]["min"] == OUTPUT_TOKENS


@promise
def cancelled_requests_leave_nothing_behind() -> None:
    body = {"model": model_name(), "prompt": "The snow is", "max_tokens": 16, "temperature": 0}
    expected = post("/v1/completions", body)["choices"]
    aborted, ended = num_ended("abort"), num_ended("length")
    measure(
        "cancel", "--endpoint-type", "chat", "--request-cancellation-rate", 50,
        "--request-cancellation-delay", 0.3, output_tokens=400,
    )  # fmt: skip
    until(lambda: metric("chairlift:num_requests_running") == 0)
    assert metric("chairlift:num_requests_waiting") == 0
    assert num_ended("abort") - aborted >= NUM_REQUESTS / 4
    assert num_ended("length") > ended
    assert metric("chairlift:client_disconnects_total") >= NUM_REQUESTS / 4
    assert post("/v1/completions", body)["choices"] == expected


keep_promises()
