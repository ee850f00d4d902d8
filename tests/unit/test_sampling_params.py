"""Options of a request: vLLM's defaults, and one line that names the field for a bad value."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from typing import Any

import pytest

from chairlift.errors import RequestError
from chairlift.sampling_params import (
    GREEDY_TEMPERATURE,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    SamplingParams,
)

# Per field: values that must be refused.
BAD_VALUES: dict[str, list[Any]] = {
    "n": [0, -1, MAX_N + 1, 1.0, "1", True, None],
    "temperature": [-0.1, math.nan, math.inf, -math.inf, 10**400, "1", True, None],
    "top_p": [0, -0.1, 1.01, math.nan, True, "1"],
    "top_k": [-2, 2**31, 1.0, True],
    "min_p": [-0.1, 1.01, math.nan, False],
    "repetition_penalty": [0, -1, math.inf, math.nan, True],
    "presence_penalty": [-2.01, 2.01, math.nan, True],
    "frequency_penalty": [-2.01, 2.01, math.inf, True],
    "seed": [-(2**63) - 1, 2**64, 1.0, "1", True],
    "stop": [[""], [1], ["x" * (MAX_STOP_LENGTH + 1)], ["x"] * (MAX_STOP_STRINGS + 1), 5, b"x"],
    "stop_token_ids": [[-1], [1.0], [True], 5, "12", [2**31]],
    "include_stop_str_in_output": [1, None, "yes"],
    "ignore_eos": [1, None],
    "min_tokens": [-1, 17, 1.0, True],
    "max_tokens": [0, -1, 2**31, 16.0, True, math.inf],
    "logprobs": [-1, MAX_LOGPROBS + 1, 1.0, True],
    "prompt_logprobs": [-1, MAX_LOGPROBS + 1, True],
    "logit_bias": [
        [],
        {"x": 1},
        {"-1": 1},
        {"1_0": 1},
        {1.5: 1},
        {True: 1},
        {None: 1},
        {2**31: 1},
        {"9" * 5000: 1},
        {1: 101},
        {1: -100.5},
        {1: math.nan},
        {1: "1"},
        {1: True},
    ],
    "bad_words": [[""], [1], 7],
    "allowed_token_ids": [[], [-1], [True], 5, "1"],
    "structured_outputs": [{"json": {}}, "a+", False],
    "skip_special_tokens": [0, None],
    "kept_special_token_ids": [5, [-1], ["x"], [True]],
    "detokenize": ["no", None],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in BAD_VALUES.items() for value in values],
    ids=lambda value: str(value)[:20],
)
def test_a_bad_value_is_one_line_that_names_the_field(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.field == name
    message = str(caught.value)
    assert name in message and "\n" not in message and len(message) < 200


def test_every_field_has_bad_values_above() -> None:
    assert set(BAD_VALUES) == {item.name for item in dataclasses.fields(SamplingParams)}


def test_defaults_are_vllms() -> None:
    values = {
        item.name: getattr(SamplingParams(), item.name)
        for item in dataclasses.fields(SamplingParams)
    }
    assert values == {
        "n": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": None,
        "stop": (),
        "stop_token_ids": (),
        "include_stop_str_in_output": False,
        "ignore_eos": False,
        "min_tokens": 0,
        "max_tokens": 16,
        "logprobs": None,
        "prompt_logprobs": None,
        "logit_bias": {},
        "bad_words": (),
        "allowed_token_ids": None,
        "structured_outputs": None,
        "skip_special_tokens": True,
        "kept_special_token_ids": (),
        "detokenize": True,
    }


@pytest.mark.parametrize(
    "options",
    [
        {"n": MAX_N},
        {"temperature": 0},
        {"temperature": 1e30},
        {"top_p": 1e-9},
        {"top_k": -1},
        {"min_p": 1},
        {"presence_penalty": -2, "frequency_penalty": 2},
        {"repetition_penalty": 1e-9},
        {"seed": 2**64 - 1},
        {"seed": -(2**63)},
        {"max_tokens": None, "min_tokens": 1000},
        {"max_tokens": 7, "min_tokens": 7},
        {"logprobs": 0, "prompt_logprobs": MAX_LOGPROBS},
        {"logit_bias": {5: -100, "6": 100.0}},
        {"stop": ["x" * MAX_STOP_LENGTH] * MAX_STOP_STRINGS},
    ],
)
def test_values_at_the_borders(options: dict[str, Any]) -> None:
    SamplingParams(**options)


def test_stop_may_be_one_text() -> None:
    assert SamplingParams(stop="END").stop == ("END",)


@pytest.mark.parametrize("name", ["stop", "stop_token_ids", "bad_words"])
def test_none_is_an_empty_list(name: str) -> None:
    assert getattr(SamplingParams(**{name: None}), name) == ()


def test_a_set_gets_a_fixed_order_whatever_is_in_it() -> None:
    assert SamplingParams(stop={"b", "a"}).stop == ("a", "b")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="stop takes strings"):
        SamplingParams(stop={"b", 1})  # type: ignore[arg-type]


def test_json_keys_of_logit_bias_are_strings() -> None:
    assert SamplingParams(logit_bias={"50256": -100}).logit_bias == {50256: -100.0}  # type: ignore[dict-item]
    assert SamplingParams(logit_bias=None).logit_bias == {}  # type: ignore[arg-type]


def test_frozen_all_the_way_down() -> None:
    bias, stop = {1: 2.0}, ["a"]
    params = SamplingParams(logit_bias=bias, stop=stop)
    bias[1] = 3.0
    stop.append("b")
    assert params.logit_bias == {1: 2.0} and params.stop == ("a",)
    with pytest.raises(TypeError):
        params.logit_bias[1] = 4.0  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 2  # type: ignore[misc]


def test_copies_and_pickles_are_equal() -> None:
    params = SamplingParams(logit_bias={1: 2.0}, stop=["a"], temperature=0.5, seed=3)
    assert (
        copy.deepcopy(params) == copy.copy(params) == pickle.loads(pickle.dumps(params)) == params
    )
    changed = dataclasses.replace(params, temperature=0.0)
    assert changed.is_greedy and changed.logit_bias == {1: 2.0}


def test_temperatures_near_zero_are_greedy() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert SamplingParams(temperature=GREEDY_TEMPERATURE / 2).is_greedy
    assert not SamplingParams(temperature=GREEDY_TEMPERATURE).is_greedy


def test_several_greedy_completions_would_be_the_same_one() -> None:
    with pytest.raises(RequestError, match="n must be 1 with greedy sampling") as caught:
        SamplingParams(n=2, temperature=0)
    assert caught.value.field == "n"


def test_stop_strings_need_text() -> None:
    with pytest.raises(RequestError, match="detokenize=True") as caught:
        SamplingParams(stop="x", detokenize=False)
    assert caught.value.field == "stop"
    SamplingParams(stop_token_ids=[1], detokenize=False)


def test_min_tokens_above_max_tokens() -> None:
    with pytest.raises(RequestError, match="min_tokens must not exceed max_tokens: 5 > 4"):
        SamplingParams(min_tokens=5, max_tokens=4)
