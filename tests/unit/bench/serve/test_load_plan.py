"""The same seed sends the same bytes; lengths, prefixes and times are what was asked for."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from chairlift.bench.serve.load_config import LoadConfig
from chairlift.bench.serve.load_plan import plan_requests, warmup_bodies
from chairlift.bench.serve.planned_request import PlannedRequest
from chairlift.bench.serve.prompt_form import TextPrompts, TokenPrompts
from chairlift.errors import ConfigError

IDS, TEXT = TokenPrompts(1000, 30000), TextPrompts(1.25, 10.0)


def plan(form: Any = IDS, **options: Any) -> list[PlannedRequest]:
    return plan_requests(LoadConfig(**{"num_prompts": 6, **options}), "m", form)


def bodies(requests: list[PlannedRequest]) -> list[dict[str, Any]]:
    return [json.loads(request.body) for request in requests]


def prompts(requests: list[PlannedRequest]) -> list[list[int]]:
    return [body["prompt"] for body in bodies(requests)]


def test_a_seed_fixes_every_byte() -> None:
    options: dict[str, Any] = {
        "input_len": "lognormal:100,1,1-400",
        "output_len": "8-64",
        "shared_prefix_len": 32,
        "num_prefixes": 3,
        "request_rate": 5.0,
        "burstiness": 0.5,
        "seed": 7,
    }
    once, again = plan(**options), plan(**options)
    assert once == again
    assert [r.body for r in plan(**{**options, "seed": 8})] != [r.body for r in once]


def test_the_bytes_stay_what_they_were() -> None:
    """A new version of anything must not silently measure another workload."""
    digest = hashlib.sha256()
    for form, endpoint in ((IDS, "/v1/completions"), (TEXT, "/v1/chat/completions")):
        for request in plan(
            form, input_len="16-64", output_len="4-9", request_rate=3.0, endpoint=endpoint
        ):
            digest.update(request.body + f"{request.arrival_s:.6f}".encode())
    assert digest.hexdigest()[:16] == "e2a3d5814f512f11"


@pytest.mark.parametrize(
    "change", [{"num_prompts": 3}, {"request_rate": 9.0}, {"max_concurrency": 2}]
)
def test_a_request_does_not_depend_on_the_others(change: dict[str, Any]) -> None:
    usual, changed = plan(input_len="5-50"), plan(**{"input_len": "5-50", **change})
    assert [r.body for r in usual[: len(changed)]] == [r.body for r in changed]


def test_requests_of_a_run_differ() -> None:
    assert len({request.body for request in plan(num_prompts=50, input_len="8")}) == 50


def test_the_fields_of_a_completion() -> None:
    (body,) = bodies(plan(num_prompts=1, input_len="3", output_len="5"))
    assert len(body.pop("prompt")) == 3
    assert body == {
        "model": "m",
        "max_tokens": 5,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_fields_of_a_chat() -> None:
    (body,) = bodies(
        plan(TEXT, num_prompts=1, endpoint="/v1/chat/completions", ignore_eos=True, output_len="5")
    )
    (message,) = body["messages"]
    assert message["role"] == "user" and isinstance(message["content"], str)
    assert body["max_tokens"] == body["max_completion_tokens"] == 5 and body["ignore_eos"] is True
    assert "prompt" not in body


def test_extra_fields_are_put_in_and_taken_out() -> None:
    (body,) = bodies(
        plan(num_prompts=1, extra_body='{"top_k":1,"temperature":0.7,"stream_options":null}')
    )
    assert body["top_k"] == 1 and body["temperature"] == 0.7 and "stream_options" not in body


def test_prefixes_are_shared_and_as_many_as_asked_for() -> None:
    found = prompts(plan(num_prompts=40, input_len="4", shared_prefix_len=10, num_prefixes=3))
    assert {len(prompt) for prompt in found} == {14}
    assert len({tuple(prompt[:10]) for prompt in found}) == 3
    assert len({tuple(prompt[10:]) for prompt in found}) == 40


def test_open_loop_times_and_closed_loop_without() -> None:
    assert plan(request_rate=2.0)[-1].arrival_s == pytest.approx(3.0)
    assert {request.arrival_s for request in plan(max_concurrency=2)} == {0.0}


def test_default_numbers() -> None:
    requests = plan_requests(LoadConfig(input_len="1"), "m", IDS)
    assert len(requests) == 1000 and {r.num_output_tokens for r in requests} == {128}


def trace(tmp_path: Path) -> dict[str, Any]:
    rows = [
        {"timestamp": 0, "input_length": 10, "output_length": 3, "hash_ids": [1, 2, 3]},
        {"timestamp": 500, "input_length": 6, "output_length": 4, "hash_ids": [1, 2]},
        {"timestamp": 900, "input_length": 5, "output_length": 5},
        {"timestamp": 900, "input_length": 5, "output_length": 5},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return {
        "dataset_name": "timed_trace",
        "dataset_path": str(path),
        "timed_trace_sec_multiplier": 0.001,
        "timed_trace_chunk_hash_size": 4,
        "num_prompts": None,
    }


def test_a_trace_gives_times_lengths_and_shared_chunks(tmp_path: Path) -> None:
    requests = plan(**trace(tmp_path))
    assert [request.arrival_s for request in requests] == [0.0, 0.5, 0.9, 0.9]
    assert [request.num_output_tokens for request in requests] == [3, 4, 5, 5]
    first, second, third, fourth = prompts(requests)
    assert [len(p) for p in (first, second, third, fourth)] == [10, 6, 5, 5]
    assert first[:6] == second and third != fourth


def test_a_rate_replaces_the_times_of_a_trace(tmp_path: Path) -> None:
    requests = plan(**trace(tmp_path), request_rate=math.inf, max_concurrency=2)
    assert {request.arrival_s for request in requests} == {0.0}
    assert plan(**trace(tmp_path), request_rate=2.0)[-1].arrival_s == pytest.approx(2.0)


def test_output_len_replaces_what_a_file_says(tmp_path: Path) -> None:
    assert {r.num_output_tokens for r in plan(**trace(tmp_path), output_len="9")} == {9}


def test_a_file_gives_its_prompts_in_an_order_of_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"p{i}"}) for i in range(20)))
    options = {"dataset_name": "custom", "dataset_path": str(path)}
    all_of_them = [body["prompt"] for body in bodies(plan(TEXT, **options, num_prompts=None))]
    assert sorted(all_of_them) == sorted(f"p{i}" for i in range(20))
    assert all_of_them != sorted(all_of_them)
    assert [body["prompt"] for body in bodies(plan(TEXT, **options))] == all_of_them[:6]
    with pytest.raises(ConfigError, match="num_prompts is 21") as caught:
        plan(TEXT, **options, num_prompts=21)
    assert caught.value.field == "num_prompts"


def test_warm_ups_have_prompts_of_their_own() -> None:
    config = LoadConfig(num_prompts=20, input_len="8")
    measured = {request.body for request in plan_requests(config, "m", IDS)}
    warmups = warmup_bodies(config, "m", IDS, 5)
    assert len(set(warmups)) == 5 and not measured & set(warmups)
