"""Exact distributions, the golden company theorem, log probabilities and one-row errors."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.core.scheduler_output import SampledToken
from chairlift.kernels.counter_random import gumbel, stream_key
from chairlift.outputs import PositionLogprobs
from chairlift.runner.logits_processors import RequestSamplingState
from chairlift.runner.sampler import Sampler, SamplerOutput, draw_token, position_logprobs
from chairlift.sampling_params import SamplingParams

PROPERTY = settings(derandomize=True, deadline=None)
SAMPLER = Sampler()


def state_of(
    vocab_size: int,
    *,
    seed: int = 0,
    choice: int = 0,
    prompt: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
    stop_token_ids: tuple[int, ...] = (),
    bad_word_ids: tuple[tuple[int, ...], ...] = (),
    **options: Any,
) -> RequestSamplingState:
    state = RequestSamplingState(
        prompt,
        SamplingParams(max_tokens=None, **options),
        stop_token_ids=stop_token_ids,
        bad_word_ids=bad_word_ids,
        vocab_size=vocab_size,
        seed=seed,
        choice=choice,
    )
    for token_id in output:
        state.append(token_id)
    return state


def one(row: np.ndarray, state: RequestSamplingState) -> SampledToken:
    result = SAMPLER.sample_logits(row[np.newaxis], [state])
    assert result.errors == {}
    token = result.tokens[0]
    assert token is not None
    return token


def draws(row: np.ndarray, num_draws: int, **options: Any) -> list[int]:
    """Tokens of one request whose logits never change."""
    state = state_of(len(row), **options)
    token_ids = []
    for _ in range(num_draws):
        token_id = one(row, state).token_id
        state.append(token_id)
        token_ids.append(token_id)
    return token_ids


def assert_distribution(token_ids: list[int], probabilities: np.ndarray) -> None:
    """Pearson's chi-square below its 99.9 % quantile (Wilson-Hilferty), nothing impossible."""
    counts = np.bincount(token_ids, minlength=len(probabilities))
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    expected = probabilities[possible] * len(token_ids)
    assert expected.min() >= 5
    degrees = int(possible.sum()) - 1
    spread = 2 / (9 * degrees)
    limit = degrees * (1 - spread + 3.09 * math.sqrt(spread)) ** 3
    assert ((counts[possible] - expected) ** 2 / expected).sum() < limit


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(weights / weights.sum())


ROW = np.array([1.0, 0.0, 2.0, -1.0, 1.5, 0.5, -0.5, 1.0], dtype=np.float32)


# -- distributions -------------------------------------------------------------------------------
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0, 100.0])
@pytest.mark.parametrize("seed", [1, 2**64 - 1])
def test_plain_sampling_is_the_softmax(temperature: float, seed: int) -> None:
    token_ids = draws(ROW, 4000, seed=seed, temperature=temperature)
    assert_distribution(token_ids, softmax(ROW / temperature))


def test_many_tokens_far_below_the_best_get_their_share() -> None:
    """A third of the mass lies in tokens more than 8 nats below the best one."""
    row = np.full(6001, -9.4, dtype=np.float32)
    row[3000] = 0.0
    token_ids = draws(row, 3000, seed=3)
    probability = softmax(row)[3000]
    hits = token_ids.count(3000)
    assert abs(hits - 3000 * probability) < 4 * math.sqrt(3000 * probability * (1 - probability))
    others = [token_id for token_id in token_ids if token_id != 3000]
    assert len(set(others)) > 0.9 * len(others)
    assert abs(np.mean(others) - 3000) < 4 * 6000 / math.sqrt(12 * len(others))


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 3}, [2, 4, 0]),
        ({"top_p": 0.6}, [2, 4, 0]),  # 0.357 + 0.217 + 0.131: the third crosses
        ({"min_p": 0.3}, [2, 4, 0, 7]),
        ({"top_k": 4, "top_p": 0.7}, [2, 4, 0]),
        ({"allowed_token_ids": [0, 1, 3]}, [0, 1, 3]),
        ({"bad_word_ids": ((2,), (4,))}, [0, 1, 3, 5, 6, 7]),
    ],
)
def test_filtered_sampling_is_the_softmax_of_what_is_kept(
    options: dict[str, Any], kept: list[int]
) -> None:
    logits = np.full(len(ROW), -np.inf)
    logits[kept] = ROW[kept]
    assert_distribution(draws(ROW, 3000, seed=8, **options), softmax(logits))


def test_bias_and_penalties_shape_the_distribution() -> None:
    shaped = ROW.copy()
    shaped[1] += 2.0
    shaped[2] /= 1.5
    token_ids = []
    for seed in range(3000):
        state = state_of(
            8, seed=seed, prompt=(2,), logit_bias={1: 2.0}, repetition_penalty=1.5, temperature=0.8
        )
        token_ids.append(one(ROW, state).token_id)
    assert_distribution(token_ids, softmax(shaped / np.float32(0.8)))


@PROPERTY
@given(st.integers(0, 2**63), st.sampled_from([0.01, 1.0, 3.0, 12.0]), st.integers(1, 3000))
def test_draw_is_the_plain_argmax_of_logits_plus_noise(seed: int, spread: float, size: int) -> None:
    """The shortcuts for far tokens and for few kept ones change nothing."""
    rng = np.random.default_rng(seed % 1000)
    scaled = (rng.standard_normal(size) * spread).astype(np.float32)
    scaled -= scaled.max()
    scores = scaled + gumbel(seed, 2, 5, size)
    key = stream_key(seed, 2, 5)
    assert draw_token(scaled, None, key) == scores.argmax()
    kept = np.flatnonzero(rng.random(size) < 0.3)
    if len(kept):
        assert draw_token(scaled, kept, key) == kept[scores[kept].argmax()]


# -- greedy --------------------------------------------------------------------------------------
def test_greedy_takes_the_largest_and_the_lowest_id_on_ties() -> None:
    rows = np.array([[0, 3, 3, 1], [5, 5, 5, 5], [-4, -2, -3, -1]], dtype=np.float32)
    states = [state_of(4, temperature=0.0) for _ in rows]
    result = SAMPLER.sample_logits(rows, states)
    assert [token.token_id for token in result.tokens if token] == [1, 0, 3]


@pytest.mark.parametrize("row", [ROW, np.zeros(8, dtype=np.float32), np.round(ROW)])
def test_top_k_one_and_tiny_top_p_equal_greedy(row: np.ndarray) -> None:
    greedy = one(row, state_of(8, temperature=0.0)).token_id
    for options in ({"top_k": 1}, {"top_p": 1e-6}):
        assert draws(row, 30, temperature=100.0, **options) == [greedy] * 30


def test_very_low_temperature_is_the_argmax_and_splits_ties_evenly() -> None:
    assert draws(ROW, 50, temperature=1e-4) == [2] * 50
    tied = ROW.copy()
    tied[6] = tied[2]
    assert_distribution(draws(tied, 1000, temperature=1e-4), np.eye(8)[[2, 6]].sum(axis=0) / 2)


def test_greedy_obeys_masks_and_penalties() -> None:
    assert one(ROW, state_of(8, temperature=0.0, bad_word_ids=((2,),))).token_id == 4
    penalised = state_of(8, temperature=0.0, output=(2,), frequency_penalty=0.6)
    assert one(ROW, penalised).token_id == 4


# -- seeds ---------------------------------------------------------------------------------------
def test_same_seed_same_tokens_and_other_seeds_others() -> None:
    flat = np.zeros(1000, dtype=np.float32)
    first = draws(flat, 20, seed=5)
    assert draws(flat, 20, seed=5) == first
    for other in ({"seed": 6}, {"seed": 5, "choice": 1}, {"seed": 5 ^ 2**63}):
        assert sum(a == b for a, b in zip(first, draws(flat, 20, **other), strict=True)) <= 1


def test_a_seed_in_the_params_goes_first() -> None:
    params = SamplingParams(seed=77)
    state = RequestSamplingState([], params, stop_token_ids=(), vocab_size=8, seed=5)
    assert state.seed == 77


def test_children_of_one_request_are_independent() -> None:
    """Joint counts of two choices under one seed against the product of their softmaxes."""
    row = ROW[4:]
    a, b = draws(row, 4000, seed=9, choice=0), draws(row, 4000, seed=9, choice=1)
    joint = [4 * x + y for x, y in zip(a, b, strict=True)]
    assert_distribution(joint, np.outer(softmax(row), softmax(row)).reshape(-1))


# -- the golden theorem --------------------------------------------------------------------------
MIXED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 5},
    {},
    {"seed": 1},
    {"seed": 1, "choice": 3},
    {"temperature": 0.7, "top_p": 0.9, "logprobs": 3},
    {"temperature": 1.3, "top_k": 50},
    {"temperature": 1.3, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
    {"min_p": 0.05, "logprobs": 0},
    {"repetition_penalty": 1.2, "prompt": (1, 2, 3), "output": (4, 5, 4)},
    {"presence_penalty": 1.0, "frequency_penalty": 0.5, "output": (9, 9, 8)},
    {"logit_bias": {17: 4.0}, "temperature": 50.0},
    {"allowed_token_ids": [3, 5, 1000], "logprobs": 20},
    {"bad_word_ids": ((4,), (5, 6)), "output": (5,), "temperature": 0.0},
    {"min_tokens": 5, "stop_token_ids": (0, 1), "temperature": 30.0, "top_p": 0.99},
]


@pytest.mark.parametrize("vocab_size", [2048, 4099])  # rows of the second start at odd addresses
def test_a_row_gives_the_same_bits_alone_and_in_any_company(vocab_size: int) -> None:
    rng = np.random.default_rng(4)
    logits = (rng.standard_normal((len(MIXED), vocab_size)) * 3).astype(np.float32)
    states = [state_of(vocab_size, **options) for options in MIXED]
    alone = [one(row, state) for row, state in zip(logits, states, strict=True)]
    together = SAMPLER.sample_logits(logits, states)
    assert together == SamplerOutput(tokens=list(alone), errors={})
    for _ in range(5):
        order = rng.permutation(len(MIXED))[: rng.integers(1, len(MIXED) + 1)]
        company = SAMPLER.sample_logits(logits[order], [states[i] for i in order])
        assert company.tokens == [alone[i] for i in order]


def test_company_of_broken_rows_changes_nothing() -> None:
    rng = np.random.default_rng(5)
    logits = (rng.standard_normal((4, 500)) * 3).astype(np.float32)
    states = [state_of(500, seed=i) for i in range(4)]
    expected = SAMPLER.sample_logits(logits, states).tokens
    broken = logits.copy()
    broken[1, 7] = np.nan
    broken[2] = -np.inf
    result = SAMPLER.sample_logits(broken, states)
    assert [result.tokens[0], result.tokens[3]] == [expected[0], expected[3]]
    assert result.tokens[1] is None and result.tokens[2] is None
    assert set(result.errors) == {1, 2}


def test_sampling_leaves_logits_and_states_alone() -> None:
    logits = np.tile(np.linspace(-2, 2, 2048, dtype=np.float32), (len(MIXED), 1))
    before = logits.copy()
    states = [state_of(2048, **options) for options in MIXED]
    lengths = [state.num_output_tokens for state in states]
    first = SAMPLER.sample_logits(logits, states)
    assert np.array_equal(logits, before)
    assert [state.num_output_tokens for state in states] == lengths
    assert SAMPLER.sample_logits(logits, states) == first


# -- errors --------------------------------------------------------------------------------------
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [(np.nan, "not numbers"), (np.inf, "infinite"), (None, "all minus infinity")],
)
def test_unusable_logits_end_one_request(
    temperature: float, spoil: float | None, message: str
) -> None:
    logits = np.stack([ROW, ROW])
    if spoil is None:
        logits[1] = -np.inf
    else:
        logits[1, 5] = spoil
    result = SAMPLER.sample_logits(logits, [state_of(8, temperature=temperature) for _ in range(2)])
    assert result.tokens[0] is not None
    assert result.tokens[1] is None
    assert list(result.errors) == [1]
    assert message in result.errors[1]


def test_some_minus_infinities_are_no_error() -> None:
    row = np.full(8, -np.inf, dtype=np.float32)
    row[[3, 6]] = 1.0
    for options in ({}, {"top_k": 5}, {"top_p": 0.99}, {"min_p": 0.1}, {"top_k": 1}):
        assert set(draws(row, 20, **options)) <= {3, 6}
    logprobs = one(row, state_of(8, logprobs=5)).logprobs
    assert logprobs is not None
    assert [top.token_id for top in logprobs.top] == [3, 6]


def test_masks_that_leave_nothing_end_one_request() -> None:
    empty = state_of(8, allowed_token_ids=[2], bad_word_ids=((2,),))
    result = SAMPLER.sample_logits(np.stack([ROW, ROW]), [empty, state_of(8, temperature=0.0)])
    assert "leave no token" in result.errors[0]
    assert result.tokens == [None, SampledToken(token_id=2)]


def test_a_fault_in_one_request_ends_that_request(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(RequestSamplingState):
        @property
        def needs_processing(self) -> bool:
            raise KeyError("lost")

    faulty = Faulty([], SamplingParams(), stop_token_ids=(), vocab_size=8, seed=0)
    with caplog.at_level(logging.ERROR):
        result = SAMPLER.sample_logits(np.stack([ROW, ROW]), [faulty, state_of(8, temperature=0.0)])
    assert result.errors == {0: "sampling failed: KeyError: 'lost'"}
    assert result.tokens == [None, SampledToken(token_id=2)]
    assert "sampling failed" in caplog.text


def test_no_rows_no_tokens_and_a_missing_state_is_our_mistake() -> None:
    empty = np.empty((0, 8), dtype=np.float32)
    assert SAMPLER.sample_logits(empty, []) == SamplerOutput(tokens=[], errors={})
    with pytest.raises(ValueError, match="1 rows of logits for 0 requests"):
        SAMPLER.sample_logits(ROW[np.newaxis], [])


# -- log probabilities ---------------------------------------------------------------------------
def assert_logprobs(found: PositionLogprobs, row: np.ndarray, token_id: int, k: int) -> None:
    exact = row.astype(np.float64) - row.max()
    exact -= math.log(np.exp(exact).sum())
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
    assert [top.token_id for top in found.top] == order
    assert found.chosen.token_id == token_id
    for entry in (found.chosen, *found.top):
        assert entry.logprob == pytest.approx(exact[entry.token_id], abs=2e-6)
        assert entry.rank == 1 + int((row > row[entry.token_id]).sum())


@PROPERTY
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.1, 3.0, 30.0]), st.integers(0, 20))
def test_logprobs_are_the_log_softmax(seed: int, spread: float, k: int) -> None:
    rng = np.random.default_rng(seed)
    row = (rng.standard_normal(5000) * spread).astype(np.float32)
    token_id = int(rng.integers(5000))
    assert_logprobs(position_logprobs(row, token_id, k), row, token_id, k)


def test_equal_logits_share_a_rank() -> None:
    row = np.array([1, 3, 3, 2], dtype=np.float32)
    found = position_logprobs(row, 2, 4)
    assert [(top.token_id, top.rank) for top in found.top] == [(1, 1), (2, 1), (3, 3), (0, 4)]
    assert found.chosen.rank == 1


def test_sampled_logprobs_are_of_the_untouched_logits() -> None:
    state = state_of(
        8, temperature=0.3, logit_bias={3: 50.0}, output=(2,), presence_penalty=2.0, logprobs=3
    )
    token = one(ROW, state)
    assert token.token_id == 3
    assert token.logprobs is not None
    assert_logprobs(token.logprobs, ROW, 3, 3)
    assert token.logprobs.chosen.rank == 8


def test_logprobs_only_when_asked() -> None:
    assert one(ROW, state_of(8)).logprobs is None
    zero = one(ROW, state_of(8, temperature=0.0, logprobs=0)).logprobs
    assert zero is not None
    assert zero.chosen.token_id == 2
    assert zero.top == ()


def test_prompt_logprobs_follow_the_prompt() -> None:
    rng = np.random.default_rng(6)
    logits = rng.standard_normal((5, 3000)).astype(np.float32)
    next_token_ids = [0, 2999, 7, 7, 1500]
    found = SAMPLER.prompt_logprobs(logits, next_token_ids, 4)
    for position, row, token_id in zip(found, logits, next_token_ids, strict=True):
        assert_logprobs(position, row, token_id, 4)
    alone = SAMPLER.prompt_logprobs(logits[3:4], [7], 4)
    assert alone == found[3:4]


def test_prompt_logprobs_of_unusable_logits() -> None:
    logits = np.zeros((2, 8), dtype=np.float32)
    logits[1, 2] = np.nan
    with pytest.raises(FloatingPointError, match="not numbers"):
        SAMPLER.prompt_logprobs(logits, [1, 1], 0)
