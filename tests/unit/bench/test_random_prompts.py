"""Random prompts: exact lengths, no shared prefixes, memory planned for just them."""

from __future__ import annotations

import dataclasses

import pytest

from chairlift.bench.length_range import LengthRange
from chairlift.bench.random_prompts import RandomPrompts, load_for_prompts
from chairlift.config import EngineConfig
from chairlift.errors import ConfigError


def _prompts(count: int = 20, inputs: tuple[int, int] = (5, 9), outputs: tuple[int, int] = (2, 4)):
    return RandomPrompts(
        num_prompts=count,
        input_len=LengthRange(*inputs),
        output_len=LengthRange(*outputs),
        seed=1,
    )


def test_lengths_tokens_and_seed() -> None:
    requests = _prompts().requests(50)
    assert requests == _prompts().requests(50)
    assert {len(request.prompt_token_ids) for request in requests} == set(range(5, 10))
    assert {request.num_output_tokens for request in requests} == {2, 3, 4}
    assert all(0 <= token < 50 for request in requests for token in request.prompt_token_ids)
    assert len({request.prompt_token_ids[:4] for request in requests}) == 20
    assert {request.arrival_s for request in requests} == {0.0}
    assert dataclasses.replace(_prompts(), seed=2).requests(50) != requests


def test_the_warm_up_is_a_quarter_with_other_prompts() -> None:
    prompts = _prompts()
    warm_up = prompts.warm_up(50)
    assert len(warm_up) == 5 and len(_prompts(1).warm_up(50)) == 1
    measured = {request.prompt_token_ids for request in prompts.requests(50)}
    assert measured.isdisjoint(request.prompt_token_ids for request in warm_up)


def test_no_prompts_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_prompts must be at least 1"):
        _prompts(0)


def test_memory_is_planned_for_these_requests(bench_asked: EngineConfig) -> None:
    asked = dataclasses.replace(bench_asked, max_num_seqs=None, kv_cache_memory=None)
    memory = load_for_prompts(asked, _prompts(), max_num_seqs=6).resolved.memory
    assert memory.max_model_len == 13
    assert memory.num_blocks == 6  # each holds 13 tokens


def test_what_was_asked_for_wins(bench_asked: EngineConfig) -> None:
    asked = dataclasses.replace(bench_asked, max_num_seqs=3, max_model_len=40, kv_cache_memory=None)
    resolved = load_for_prompts(asked, _prompts(), max_num_seqs=6).resolved
    assert resolved.memory.max_model_len == 40 and resolved.scheduler.max_num_seqs == 3


@pytest.mark.parametrize(
    ("max_model_len", "outputs", "reason"),
    [(None, (4, 1000), "the model's context"), (10, (2, 4), "max_model_len is 10")],
)
def test_requests_that_are_too_long_name_their_lengths(
    bench_asked: EngineConfig, max_model_len: int | None, outputs: tuple[int, int], reason: str
) -> None:
    asked = dataclasses.replace(bench_asked, max_model_len=max_model_len)
    with pytest.raises(ConfigError, match=f"input_len 5-9 and output_len {outputs[0]}") as caught:
        load_for_prompts(asked, _prompts(outputs=outputs), max_num_seqs=4)
    assert caught.value.field == "input_len" and reason in str(caught.value)
