"""Workloads: exact lengths, the same for the same seed, and refused where they cannot fit."""

from __future__ import annotations

import pytest

from chairlift.bench.workload import (
    LONG_EVERY,
    check_fits,
    mixed_workload,
    renamed,
    uniform_workload,
)
from chairlift.errors import ConfigError

TEXT = list(range(50))


def test_mixed_lengths_arrivals_and_long_ones() -> None:
    requests = mixed_workload(TEXT, num_requests=200, max_len=4096, mean_gap_s=0.5, seed=1)
    prompts = [len(request.prompt_token_ids) for request in requests]
    outputs = [request.num_output_tokens for request in requests]
    assert min(prompts) >= 16 and max(prompts) <= 120 and len(set(prompts)) > 30
    long = [count for count in outputs if count >= 128]
    assert len(long) == 200 // LONG_EVERY and max(long) <= 192
    assert min(outputs) >= 8 and max(count for count in outputs if count < 128) <= 96
    arrivals = [request.arrival_s for request in requests]
    assert arrivals == sorted(arrivals) and arrivals[0] == 0.0
    assert arrivals[-1] / 199 == pytest.approx(0.5, rel=0.25)


def test_a_seed_fixes_everything() -> None:
    def make(seed: int) -> object:
        return mixed_workload(TEXT, num_requests=9, max_len=512, mean_gap_s=0.1, seed=seed)

    assert make(3) == make(3)
    assert make(3) != make(4)


def test_mixed_requests_are_cut_to_a_short_context() -> None:
    requests = mixed_workload(TEXT, num_requests=40, max_len=64, mean_gap_s=0.1, seed=0)
    assert max(request.num_tokens for request in requests) == 64
    check_fits(requests, 64)


def test_uniform_lengths_and_prompts_that_go_round_the_text() -> None:
    requests = uniform_workload(
        TEXT, num_requests=30, num_prompt_tokens=70, output_tokens=(2, 9), seed=0
    )
    assert {len(request.prompt_token_ids) for request in requests} == {70}
    assert {request.num_output_tokens for request in requests} == set(range(2, 10))
    for request in requests:
        first = request.prompt_token_ids[0]
        assert request.prompt_token_ids == tuple((first + k) % 50 for k in range(70))


def test_more_requests_begin_with_the_same_ones() -> None:
    few, many = (
        uniform_workload(
            TEXT, num_requests=count, num_prompt_tokens=5, output_tokens=(1, 99), seed=7
        )
        for count in (4, 8)
    )
    assert many[:4] == few
    assert [request.request_id for request in renamed(few, "x-")] == ["x-0", "x-1", "x-2", "x-3"]


def test_a_workload_beyond_the_context_names_scale() -> None:
    requests = uniform_workload(
        TEXT, num_requests=1, num_prompt_tokens=60, output_tokens=(5, 5), seed=0
    )
    check_fits(requests, 65)
    with pytest.raises(ConfigError, match="65 tokens.*64") as caught:
        check_fits(requests, 64)
    assert caught.value.field == "scale"
