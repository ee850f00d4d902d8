"""Every option against a plain-Python oracle, and the bookkeeping behind it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chairlift.errors import RequestError
from chairlift.runner.logits_processors import (
    BadWords,
    RequestSamplingState,
    TokenCounts,
    divisor_of,
    kept_token_ids,
    process_logits,
    scale_logits,
    top_k_ids,
    top_p_ids,
)
from chairlift.sampling_params import SamplingParams

PROPERTY = settings(derandomize=True, deadline=None)
VOCAB = 12
TOKENS = st.integers(0, VOCAB - 1)
ROWS = st.lists(st.floats(-20, 20, width=32), min_size=VOCAB, max_size=VOCAB)
# Few distinct values: ties are the rule.
TIED = st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=40)


def make_state(
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    *,
    stop_token_ids: tuple[int, ...] = (),
    bad_word_ids: tuple[tuple[int, ...], ...] = (),
    vocab_size: int = VOCAB,
    **options: Any,
) -> RequestSamplingState:
    state = RequestSamplingState(
        prompt or [],
        SamplingParams(max_tokens=None, **options),
        stop_token_ids=stop_token_ids,
        bad_word_ids=bad_word_ids,
        vocab_size=vocab_size,
        seed=0,
    )
    for token_id in output or []:
        state.append(token_id)
    return state


def row_of(values: list[float]) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def processed(values: list[float], state: RequestSamplingState) -> list[float]:
    result: list[float] = process_logits(row_of(values), state).tolist()
    return result


# -- masks, bias and penalties -------------------------------------------------------------------
@PROPERTY
@given(
    ROWS,
    st.lists(TOKENS, max_size=10),
    st.lists(TOKENS, max_size=30),
    st.sampled_from([1.0, 0.5, 1.25, 4.0]),
    st.sampled_from([0.0, -1.5, 0.75, 2.0]),
    st.sampled_from([0.0, -0.5, 0.25, 2.0]),
)
def test_penalties(
    row: list[float],
    prompt: list[int],
    output: list[int],
    repetition: float,
    presence: float,
    frequency: float,
) -> None:
    state = make_state(
        prompt,
        output,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
    )
    expected = []
    for token_id, logit in enumerate(row):
        if token_id in prompt or token_id in output:
            logit = logit / repetition if logit > 0 else logit * repetition
        count = output.count(token_id)
        expected.append(logit - frequency * count - presence * (count > 0))
    assert processed(row, state) == pytest.approx(expected, rel=1e-6, abs=1e-5)


def test_steps_come_in_vllm_order() -> None:
    """Bias before penalties: (1 + 3) / 2 - 0.5 - 1, where penalties first would give 3 - 1."""
    state = make_state(
        [],
        [4],
        logit_bias={4: 3.0},
        repetition_penalty=2.0,
        frequency_penalty=0.5,
        presence_penalty=1.0,
    )
    assert processed([1.0] * VOCAB, state)[4] == pytest.approx(0.5)


@PROPERTY
@given(ROWS, st.sets(TOKENS, min_size=1))
def test_allowed_token_ids_leave_nothing_else(row: list[float], allowed: set[int]) -> None:
    state = make_state(allowed_token_ids=sorted(allowed))
    expected = [x if i in allowed else -math.inf for i, x in enumerate(row)]
    assert processed(row, state) == expected


def test_bias_does_not_bring_back_a_masked_token() -> None:
    state = make_state(
        stop_token_ids=(3,), min_tokens=1, allowed_token_ids=[2, 3], logit_bias={3: 100.0, 5: 100.0}
    )
    row = processed([0.0] * VOCAB, state)
    assert [i for i, x in enumerate(row) if x > -math.inf] == [2]


@PROPERTY
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=4),
    st.lists(st.integers(0, 3), max_size=12),
)
def test_bad_words(words: list[list[int]], output: list[int]) -> None:
    bad_words = BadWords(words)
    for token_id in output:
        bad_words.add(token_id)
    expected = {w[-1] for w in words if len(w) == 1 or output[-len(w) + 1 :] == w[:-1]}
    assert set(bad_words.forbidden()) == expected


def test_bad_words_look_at_the_output_only() -> None:
    state = make_state([1, 2], [], bad_word_ids=((1, 2, 3),))
    row = [0.0] * VOCAB
    assert processed(row, state) == row
    state.append(1)
    state.append(2)
    assert processed(row, state)[3] == -math.inf
    state.append(2)
    assert processed(row, state) == row


@pytest.mark.parametrize("num_output", [0, 1, 2, 3, 4])
def test_min_tokens_masks_every_stop_token_until_reached(num_output: int) -> None:
    state = make_state([0], [9] * num_output, stop_token_ids=(2, 5), min_tokens=3)
    row = processed([1.0] * VOCAB, state)
    masked = {i for i, x in enumerate(row) if x == -math.inf}
    assert masked == ({2, 5} if num_output < 3 else set())
    assert state.needs_processing == (num_output < 3)


def test_nothing_left_is_an_error_that_says_so() -> None:
    state = make_state(allowed_token_ids=[3, 4], bad_word_ids=((3,), (4,)))
    with pytest.raises(RequestError, match="leave no token"):
        process_logits(np.zeros(VOCAB, dtype=np.float32), state)


def test_process_logits_leaves_its_input_alone() -> None:
    logits = np.linspace(-1, 1, VOCAB, dtype=np.float32)
    before = logits.copy()
    state = make_state([1], [2], repetition_penalty=2.0, logit_bias={0: 5.0}, bad_word_ids=((7,),))
    assert not np.array_equal(process_logits(logits, state), before)
    assert np.array_equal(logits, before)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, False),
        ({"temperature": 0.0}, False),
        ({"temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1}, False),
        ({"min_tokens": 4}, False),  # no stop token to mask
        ({"min_tokens": 4, "stop_token_ids": (1,)}, True),
        ({"logit_bias": {3: 1.0}}, True),
        ({"allowed_token_ids": [1]}, True),
        ({"bad_word_ids": ((1, 2),)}, True),
        ({"repetition_penalty": 1.1}, True),
        ({"presence_penalty": -0.1}, True),
        ({"frequency_penalty": 0.1}, True),
    ],
)
def test_needs_processing(options: dict[str, Any], expected: bool) -> None:
    assert make_state(**options).needs_processing is expected


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"allowed_token_ids": [1, VOCAB]}, "allowed_token_ids"),
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
        ({"bad_word_ids": ((1, VOCAB),)}, "bad_words"),
    ],
)
def test_token_ids_outside_the_vocabulary_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError, match=f"{field} has token id {VOCAB}") as caught:
        make_state(**options)
    assert caught.value.field == field


def test_sampled_request_without_a_seed_is_refused() -> None:
    with pytest.raises(RequestError, match="seed"):
        RequestSamplingState([], SamplingParams(), stop_token_ids=(), vocab_size=VOCAB)
    params = SamplingParams(temperature=0)
    assert RequestSamplingState([], params, stop_token_ids=(), vocab_size=VOCAB).seed == 0


def test_prompt_tokens_that_have_no_logit_are_passed_over() -> None:
    state = make_state([1, VOCAB + 5], repetition_penalty=2.0)
    assert processed([4.0] * VOCAB, state) == [4.0, 2.0, *[4.0] * (VOCAB - 2)]


@PROPERTY
@given(st.lists(TOKENS, max_size=6), st.lists(TOKENS, max_size=80))
def test_token_counts(prompt: list[int], output: list[int]) -> None:
    seen = TokenCounts(prompt)
    for token_id in output:
        seen.add(token_id)
    counted = dict(zip(seen.token_ids.tolist(), seen.counts.tolist(), strict=True))
    assert len(seen.token_ids) == len(counted)
    assert counted == {i: output.count(i) for i in {*prompt, *output}}


def test_a_rebuilt_state_equals_the_one_that_grew() -> None:
    options: dict[str, Any] = {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.2,
        "min_tokens": 30,
        "stop_token_ids": (4,),
        "bad_word_ids": ((1, 2), (5,)),
    }
    output = [(i * 7 + i // 3) % VOCAB for i in range(40)]
    grown = make_state([3, 1], **options)
    row = np.linspace(2, -2, VOCAB, dtype=np.float32)
    for length, token_id in enumerate(output):
        rebuilt = make_state([3, 1], output[:length], **options)
        assert np.array_equal(process_logits(row, grown), process_logits(row, rebuilt))
        assert grown.num_output_tokens == rebuilt.num_output_tokens == length
        grown.append(token_id)


# -- temperature, min_p, top_k, top_p ------------------------------------------------------------
@pytest.mark.parametrize("temperature", [1e-4, 0.7, 1.0, 100.0, 1e300])
def test_scaled_logits_are_finite_differences_from_the_best(temperature: float) -> None:
    row = row_of([3.0, 5.0, -2.0, -math.inf, 4.999])
    divisor = divisor_of(SamplingParams(temperature=temperature))
    scaled = scale_logits(row, np.float32(5.0), divisor)
    exact = (row.astype(np.float64) - 5.0) / min(temperature, float(np.finfo(np.float32).max))
    np.testing.assert_allclose(scaled, exact, rtol=1e-6)
    assert scaled[1] == 0.0


def test_far_apart_logits_scale_without_a_warning() -> None:
    scaled = scale_logits(row_of([3e38, -3e38, 0.0]), np.float32(3e38), np.float32(1e-5))
    assert scaled.tolist() == [0.0, -math.inf, -math.inf]


def best_first(values: list[float]) -> list[int]:
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


@PROPERTY
@given(TIED, st.integers(1, 45))
def test_top_k_of_few(values: list[float], k: int) -> None:
    assert top_k_ids(row_of(values), k).tolist() == sorted(best_first(values)[:k])


@pytest.mark.parametrize("k", [1, 2, 50, 256, 257, 4999, 5000, 9000])
@pytest.mark.parametrize("kind", ["smooth", "tied", "masked", "rising"])
def test_top_k_of_many(k: int, kind: str) -> None:
    rng = np.random.default_rng(k)
    values = rng.standard_normal(5000).astype(np.float32)
    if kind == "tied":
        values = np.round(values)
    elif kind == "masked":
        values[rng.permutation(5000)[100:]] = -np.inf
    elif kind == "rising":  # the best are in the tail that fits no group
        values = np.sort(values)
    assert top_k_ids(values, k).tolist() == sorted(best_first(values.tolist())[:k])


def brute_top_p(values: list[float], p: float) -> list[int]:
    """Also insists that p is not within rounding of a boundary, where either side is right."""
    weights = [math.exp(value) for value in values]
    kept, mass = [], 0.0
    for index in best_first(values):
        kept.append(index)
        mass += weights[index] / math.fsum(weights)
        assume(abs(mass - p) > 1e-5)
        if mass >= p:
            break
    return sorted(kept)


@PROPERTY
@given(TIED, st.floats(0.001, 0.999))
def test_top_p_with_ties(values: list[float], p: float) -> None:
    values = [value - max(values) for value in values]
    assert top_p_ids(row_of(values), p).tolist() == brute_top_p(values, p)


@PROPERTY
@given(st.integers(0, 2**32 - 1), st.floats(0.05, 20.0), st.floats(0.001, 0.999))
def test_top_p_of_flat_and_steep_rows(seed: int, spread: float, p: float) -> None:
    values = np.random.default_rng(seed).standard_normal(300) * spread
    scaled = (values - values.max()).astype(np.float32)
    assert top_p_ids(scaled, p).tolist() == brute_top_p(scaled.tolist(), p)


def test_top_p_keeps_the_token_that_crosses() -> None:
    scaled = np.log(row_of([0.5, 0.25, 0.125, 0.125])) - np.log(np.float32(0.5))
    assert top_p_ids(scaled, 0.5001).tolist() == [0, 1]
    assert top_p_ids(scaled, 0.76).tolist() == [0, 1, 2]  # equals: the lower id
    assert top_p_ids(scaled, 1e-9).tolist() == [0]


@PROPERTY
@given(TIED, st.floats(0.001, 1.0))
def test_min_p(values: list[float], min_p: float) -> None:
    values = [value - max(values) for value in values]
    assume(all(abs(math.exp(value) - min_p) > 1e-6 or value == 0 for value in values))
    expected = [i for i, value in enumerate(values) if math.exp(value) >= min_p]
    kept = kept_token_ids(row_of(values), SamplingParams(min_p=min_p))
    assert kept is not None
    assert kept.tolist() == expected


@PROPERTY
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.001, 0.1]),
    st.sampled_from([0, -1, 1, 7, 40, 1000]),
    st.sampled_from([0.3, 0.9, 1.0]),
)
def test_filters_narrow_one_another(seed: int, min_p: float, top_k: int, top_p: float) -> None:
    """min_p first, then top_k, then top_p of what is left, renormalised."""
    values = np.random.default_rng(seed).standard_normal(100) * 2
    scaled = (values - values.max()).astype(np.float32)
    expected = [i for i in range(100) if math.exp(scaled[i]) >= min_p]
    if top_k > 0:
        expected = sorted(sorted(expected, key=lambda i: (-scaled[i], i))[:top_k])
    if top_p < 1.0:
        inner = brute_top_p([float(scaled[i]) for i in expected], top_p)
        expected = [expected[i] for i in inner]
    params = SamplingParams(min_p=min_p, top_k=top_k, top_p=top_p)
    kept = kept_token_ids(scaled, params)
    assert (list(range(100)) if kept is None else kept.tolist()) == expected


def test_no_filter_keeps_all_without_work() -> None:
    assert kept_token_ids(np.zeros(8, dtype=np.float32), SamplingParams(top_k=8)) is None
