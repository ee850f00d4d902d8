"""Known answers, key separation and statistics of the counter-based noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.kernels.counter_random import (
    gumbel,
    gumbel_of_words,
    stream_key,
    uniform,
    uniform_of_words,
    word_below,
    words,
    words_of,
)

PROPERTY = settings(derandomize=True, deadline=None)
SEEDS = st.integers(-(2**63), 2**64 - 1)
COUNTS = st.integers(0, 2**31)
MASK = 2**64 - 1


def splitmix64(state: int, num_outputs: int) -> list[int]:
    """The published generator, step by step."""
    outputs = []
    for _ in range(num_outputs):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        outputs.append(z ^ (z >> 31))
    return outputs


def test_words_are_the_published_splitmix64_sequence() -> None:
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    drawn = words(1234567, 10).tolist()
    assert [low | high << 32 for low, high in zip(drawn[::2], drawn[1::2], strict=True)] == expected
    assert splitmix64(1234567, 5) == expected


@PROPERTY
@given(SEEDS, COUNTS, COUNTS, st.integers(0, 70))
def test_uniform_matches_the_scalar_definition(
    seed: int, choice: int, position: int, size: int
) -> None:
    key = splitmix64(seed & MASK, 1)[0]
    key = splitmix64((key + choice) & MASK, 1)[0]
    key = splitmix64((key + position) & MASK, 1)[0]
    pairs = splitmix64(key, size // 2 + 1)
    halves = [half for pair in pairs for half in (pair & 0xFFFFFFFF, pair >> 32)][:size]
    drawn = uniform(seed, choice, position, size)
    assert drawn.shape == (size,)
    assert drawn.tolist() == [(half + 0.5) / 2**32 for half in halves]


@pytest.mark.parametrize("size", [1, 2, 3, 1000, 49_151])
def test_value_of_a_token_does_not_depend_on_size(size: int) -> None:
    whole = gumbel(5, 1, 9, 49_152)
    assert np.array_equal(gumbel(5, 1, 9, size), whole[:size])


@PROPERTY
@given(SEEDS, st.lists(st.integers(0, 999), max_size=20))
def test_words_of_some_tokens_equal_those_of_all(seed: int, token_ids: list[int]) -> None:
    ids = np.array(token_ids, dtype=np.int64)
    before = ids.copy()
    key = stream_key(seed, 0, 3)
    assert np.array_equal(words_of(key, ids), words(key, 1000)[ids])
    assert np.array_equal(ids, before)


def test_extreme_words_give_finite_noise_inside_the_open_interval() -> None:
    extremes = np.array([0, 1, 2**32 - 2, 2**32 - 1], dtype=np.uint32)
    drawn = uniform_of_words(extremes)
    assert 0.0 < drawn[0] < drawn[1] < drawn[2] < drawn[3] < 1.0
    noise = gumbel_of_words(extremes)
    assert np.isfinite(noise).all()
    assert np.all(np.diff(noise) > 0)
    assert noise[0] > -3.2 and noise[3] < 22.9


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 1, 2**63, 2**64 - 1])
def test_every_seed_of_the_range_works(seed: int) -> None:
    drawn = uniform(seed, 0, 0, 10_000)
    assert abs(drawn.mean() - 0.5) < 0.01
    assert np.array_equal(drawn, uniform(seed & MASK, 0, 0, 10_000))


def test_seed_choice_and_position_are_not_interchangeable() -> None:
    keys = {stream_key(s, c, p) for s in range(12) for c in range(12) for p in range(12)}
    assert len(keys) == 12**3


@pytest.mark.parametrize("key", [(0, 0, 0), (1, 0, 0), (2**63, 7, 100_000)])
def test_moments_and_distribution(key: tuple[int, int, int]) -> None:
    size = 200_000
    drawn = uniform(*key, size)
    assert abs(drawn.mean() - 1 / 2) < 4 * math.sqrt(1 / 12 / size)
    assert abs(drawn.var() - 1 / 12) < 4 * math.sqrt(1 / 180 / size)
    # Kolmogorov-Smirnov: sqrt(n) * D is below 1.95 in 99.9 % of fair samples.
    steps = np.arange(size + 1) / size
    ordered = np.sort(drawn)
    distance = max(np.abs(ordered - steps[:-1]).max(), np.abs(ordered - steps[1:]).max())
    assert math.sqrt(size) * distance < 1.95
    noise = gumbel(*key, size)
    assert abs(noise.mean() - 0.5772156649) < 4 * math.sqrt(math.pi**2 / 6 / size)
    assert abs(noise.var() / (math.pi**2 / 6) - 1) < 0.02


def test_one_token_over_many_positions_is_uniform() -> None:
    """What a running request sees: token 7 at positions 0, 1, 2, ..."""
    token = np.array([7], dtype=np.int64)
    drawn = np.array([words_of(stream_key(3, 0, i), token)[0] for i in range(20_000)]) / 2.0**32
    counts = np.histogram(drawn, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # chi-square, 19 degrees, p = 0.001
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 4 / math.sqrt(20_000)


NEIGHBOURS = [((s, 0, 0), (s + 1, 0, 0)) for s in (0, 41, 2**40)]
NEIGHBOURS += [((9, 0, p), (9, 0, p + 1)) for p in (0, 1, 500)]
NEIGHBOURS += [((9, c, 0), (9, c + 1, 0)) for c in (0, 1, 62)]
NEIGHBOURS += [((9, 1, 0), (9, 0, 1)), ((1, 0, 0), (0, 1, 0))]
NEIGHBOURS += [((12345, 0, 4), (12345 ^ (1 << bit), 0, 4)) for bit in (0, 1, 31, 32, 63)]


@pytest.mark.parametrize(("first", "second"), NEIGHBOURS)
def test_neighbouring_streams_are_unrelated(
    first: tuple[int, int, int], second: tuple[int, int, int]
) -> None:
    size = 40_000
    a, b = words(stream_key(*first), size), words(stream_key(*second), size)
    bound = 4 / math.sqrt(size)
    for shift in (0, 1, 2):
        assert abs(np.corrcoef(a[: size - shift], b[shift:])[0, 1]) < bound
    differing_bits = np.bitwise_count(a ^ b) if hasattr(np, "bitwise_count") else _popcount(a ^ b)
    assert abs(differing_bits.mean() - 16.0) < 4 * math.sqrt(8 / size)


def test_neighbouring_tokens_are_unrelated() -> None:
    drawn = uniform(11, 0, 0, 100_000)
    for lag in (1, 2, 3, 64):
        assert abs(np.corrcoef(drawn[:-lag], drawn[lag:])[0, 1]) < 4 / math.sqrt(100_000)


@PROPERTY
@given(st.floats(-10, 40), st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_word_below_never_loses_a_token(value: float, drawn: list[int]) -> None:
    limit = word_below(value)
    edge = [min(max(limit + i, 0), 2**32 - 1) for i in range(-3, 9)]
    candidates = np.array(drawn + edge, dtype=np.uint32)
    above = gumbel_of_words(candidates) > value
    assert np.all(candidates[above] > limit)


def test_word_below_is_tight() -> None:
    for value in (-1.0, 0.5, 5.0, 12.0):
        word = np.array([word_below(value) + 6], dtype=np.uint32)
        assert gumbel_of_words(word)[0] > value


def _popcount(values: np.ndarray) -> np.ndarray:
    return np.array([bin(value).count("1") for value in values.tolist()])
