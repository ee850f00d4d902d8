"""A row gives one token, whether it is chosen from candidates or from the whole row of logits."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chairlift.grammar.token_matcher import MaskArray
from chairlift.kernels.candidates import CandidateQuery, Candidates
from chairlift.kernels.interface import FloatArray, Kernels
from chairlift.kernels.registry import create_kernels
from chairlift.runner.logits_processors import RequestSamplingState
from chairlift.runner.sampler import FEW_ROWS, LONG_LIST, SHORT_LIST, Sampler, SamplerOutput
from chairlift.sampling_params import SamplingParams
from unit.kernels.candidate_cases import Head, hidden_states

SAMPLER = Sampler()
NUM_EXAMPLES = 2000 if os.environ.get("CHAIRLIFT_FULL") else 60
SEARCH = settings(
    max_examples=NUM_EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
BACKENDS = ("reference", "native", "int8")
VOCAB = 3001


class Rows:
    """An output head over some hidden states that remembers what it was asked for."""

    def __init__(self, head: Head, x: FloatArray) -> None:
        self.head, self.x = head, x
        self.whole_rows: list[int] = []
        self.list_sizes: list[int] = []

    def candidates(self, rows: Sequence[int], query: CandidateQuery) -> Candidates:
        self.list_sizes.append(query.max_listed)
        return self.head.candidates(self.x, np.array(rows, np.int32), query)

    def logits(self, rows: Sequence[int]) -> FloatArray:
        self.whole_rows += rows
        return self.head.logits(self.x, np.array(rows, np.int32))


@pytest.fixture(params=BACKENDS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return create_kernels(request.param, 2)


def state_of(
    vocab_size: int,
    *,
    seed: int = 0,
    choice: int = 0,
    prompt: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
    stop_token_ids: tuple[int, ...] = (),
    bad_word_ids: tuple[tuple[int, ...], ...] = (),
    num_allowed: int | None = None,
    **options: Any,
) -> RequestSamplingState:
    """`num_allowed`: so many random tokens are what a grammar allows."""
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
    if num_allowed is not None:
        allowed = np.random.default_rng(seed).choice(vocab_size, num_allowed, replace=False)
        state.constrain(mask_of(allowed, vocab_size))
    return state


def mask_of(allowed: Any, vocab_size: int) -> MaskArray:
    mask = np.zeros(-(-vocab_size // 32), dtype=np.uint32)
    for token_id in allowed:
        mask[token_id // 32] |= np.uint32(1 << (token_id % 32))
    return mask


def both(head: Head, x: FloatArray, states: list[RequestSamplingState]) -> tuple[Rows, Any]:
    """Checks that the routes agree; what was asked for, and the tokens."""
    rows = Rows(head, x)
    with np.errstate(invalid="ignore", over="ignore"):
        whole = SAMPLER.sample_logits(head.logits(x, np.arange(len(x), dtype=np.int32)), states)
        found = SAMPLER.sample(rows, states)
    assert found == whole
    return rows, found


SPARSE: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"seed": 1, "choice": 3, "temperature": 0.7},
    {"temperature": 1e-4},
    {"temperature": 1e30},
    {"temperature": 1e300},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_p": 0.3},
    {"temperature": 1.3, "top_k": 50},
    {"temperature": 1.3, "top_k": 1},
    {"temperature": 0.9, "top_k": 5000},
    {"temperature": 1.3, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 1.3, "top_k": 300, "top_p": 0.2},
    {"temperature": 2.0, "min_p": 0.05},
    {"temperature": 2.0, "min_p": 1.0},
    {"temperature": 3.0, "min_p": 0.02, "top_p": 0.5},
    {"temperature": 0.8, "repetition_penalty": 1.2, "prompt": (1, 2, 3), "output": (4, 5, 4)},
    {"temperature": 0.0, "repetition_penalty": 0.3, "prompt": tuple(range(0, 3000, 3))},
    {"presence_penalty": 1.0, "frequency_penalty": 0.5, "output": (9, 9, 8), "top_p": 0.8},
    {"logit_bias": {17: 4.0, 2999: -100.0}, "temperature": 50.0},
    {"bad_word_ids": ((4,), (5, 6)), "output": (5,), "temperature": 0.0},
    {"min_tokens": 5, "stop_token_ids": (0, 1), "temperature": 0.5, "top_p": 0.9},
    {"min_tokens": 2, "stop_token_ids": (0, 1), "output": (3, 3), "temperature": 0.0},
]
WHOLE: list[dict[str, Any]] = [
    {"temperature": 0.0, "logprobs": 5},
    {"temperature": 0.7, "top_p": 0.9, "logprobs": 0},
    {"allowed_token_ids": [3, 5, 1000]},
]
MIXED = SPARSE + WHOLE


MASKED = [
    {**options, "num_allowed": num_allowed}
    for num_allowed in (1, 2, 200, 1500, 2990)
    for options in (
        *SPARSE[:4],
        {"temperature": 0.0, "logprobs": 2},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.3, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
        {"temperature": 0.8, "repetition_penalty": 1.2, "prompt": (1, 2, 3), "output": (4, 5, 4)},
        {"temperature": 0.0, "logit_bias": {token_id: 3.0 for token_id in range(0, 3000, 7)}},
    )
]


# -- the same tokens -----------------------------------------------------------------------------
@pytest.mark.parametrize("spread", [0.0, 0.3, 4.0, 50.0])
def test_all_options_at_once(kernels: Kernels, spread: float) -> None:
    head = Head(kernels, VOCAB, spread=spread)
    for seed in range(3):
        states = [state_of(VOCAB, **{"seed": seed, **options}) for options in MIXED]
        rows, _ = both(head, hidden_states(len(MIXED), seed), states)
        assert set(rows.whole_rows) >= set(range(len(SPARSE), len(MIXED)))


def test_only_rows_that_need_it_are_there_as_a_whole(kernels: Kernels) -> None:
    """With peaked logits, as of a model, candidates suffice for every kind of options."""
    head = Head(kernels, VOCAB, spread=4.0)
    x = hidden_states(len(SPARSE), 1)
    peaked = [index for index, options in enumerate(SPARSE) if options.get("temperature", 1) < 9]
    states = [state_of(VOCAB, **SPARSE[index]) for index in peaked]
    rows, _ = both(head, x[: len(peaked)], states)
    assert rows.whole_rows == []


def test_a_few_greedy_rows_are_cheaper_as_a_whole(kernels: Kernels) -> None:
    head = Head(kernels, VOCAB)
    for count in (FEW_ROWS, FEW_ROWS + 1):
        rows, _ = both(head, hidden_states(count), [state_of(VOCAB, temperature=0.0)] * count)
        assert rows.whole_rows == (list(range(count)) if count == FEW_ROWS else [])
    greedy, random = state_of(VOCAB, temperature=0.0), state_of(VOCAB)
    rows, _ = both(head, hidden_states(2), [greedy, random])
    assert rows.whole_rows == []


@pytest.mark.parametrize(
    "bias",
    [
        np.zeros(VOCAB),
        np.repeat([2.0, -5.0, 2.0], [700, 2000, 301]),
        np.where(np.arange(VOCAB) == 1234, 1e30, 0.0),
        np.where(np.arange(VOCAB) % 50 == 0, 1.0, -np.inf),
        np.where(np.arange(VOCAB) % 1000 == 0, 7.0, 0.0),
        np.where(np.arange(VOCAB) < 2, -3e38, -np.inf),
        np.linspace(-3e38, 3e38, VOCAB),
        np.full(VOCAB, 1e34),
        np.full(VOCAB, -np.inf),
        np.where(np.arange(VOCAB) == 3000, np.nan, 0.0),
        np.where(np.arange(VOCAB) == 17, np.inf, 0.0),
        np.where(np.arange(VOCAB) == 0, np.inf, -np.inf),
    ],
    ids=[
        *("equal", "ties", "one-dominates", "few-left", "far-apart", "two-left", "whole-range"),
        *("huge-ties", "nothing", "not-a-number", "infinite", "both-infinities"),
    ],
)
def test_adversarial_rows(kernels: Kernels, bias: FloatArray) -> None:
    head = Head(kernels, VOCAB, spread=0.0, bias=bias)
    states = [state_of(VOCAB, **{"seed": 5, **options}) for options in MIXED]
    _, output = both(head, hidden_states(len(MIXED)), states)
    best = bias.max()
    assert (len(output.errors) == len(MIXED)) == (not np.isfinite(best))


def sampling_options() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "seed": st.integers(0, 2**64 - 1),
            "temperature": st.sampled_from([0.0, 1e-5, 0.1, 0.6, 1.0, 1.7, 10.0, 1e9]),
        },
        optional={
            "top_p": st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.99, 1.0 - 1e-9]),
            "top_k": st.sampled_from([1, 2, 40, 256, 257, 2048, 2999, 3001]),
            "min_p": st.sampled_from([1e-9, 0.01, 0.2, 0.999, 1.0]),
            "presence_penalty": st.sampled_from([-2.0, 0.7]),
            "output": st.lists(st.integers(0, VOCAB - 1), max_size=5).map(tuple),
        },
    )


@SEARCH
@given(
    st.lists(sampling_options(), min_size=1, max_size=8),
    st.sampled_from([0.1, 1.0, 3.0, 10.0]),
    st.integers(0, 1000),
    st.sampled_from(BACKENDS),
)
def test_any_options_on_any_rows(
    options: list[dict[str, Any]], spread: float, seed: int, backend: str
) -> None:
    head = head_of(backend, spread)
    both(head, hidden_states(len(options), seed), [state_of(VOCAB, **one) for one in options])


HEADS: dict[tuple[str, float], Head] = {}


def head_of(backend: str, spread: float) -> Head:
    """Made once."""
    if (backend, spread) not in HEADS:
        HEADS[backend, spread] = Head(create_kernels(backend, 2), VOCAB, spread=spread)
    return HEADS[backend, spread]


# -- lists ---------------------------------------------------------------------------------------
def test_long_lists_come_second_and_whole_rows_last(kernels: Kernels) -> None:
    """Nearly flat logits: 85 % of 3001 tokens are more than a long list holds."""
    head, x = Head(kernels, VOCAB, spread=0.01), hidden_states(200)
    for top_p, most_in_long_list in ((0.85, True), (0.02, False)):
        states = [state_of(VOCAB, seed=seed, top_p=top_p) for seed in range(200)]
        rows, _ = both(head, x, states)
        assert rows.list_sizes[0] == SHORT_LIST
        if most_in_long_list:
            assert set(rows.list_sizes[1:]) == {LONG_LIST}
            assert 0 < len(rows.whole_rows) < 100
        else:
            assert len(rows.list_sizes) == 1 and rows.whole_rows == []


def test_decisions_within_rounding_take_the_whole_row(kernels: Kernels) -> None:
    """Two equal tokens share all weight, and top_p asks for just one half of it."""
    bias = np.where(np.arange(50) < 2, 0.0, -np.inf)
    head = Head(kernels, 50, spread=0.0, bias=bias)
    states = [state_of(50, seed=seed, top_p=0.5) for seed in range(40)]
    rows, output = both(head, hidden_states(40), states)
    assert {token.token_id for token in output.tokens} == {0}
    assert rows.whole_rows, "the second of the two wins for some seeds, and is not to be kept"
    asked = [state_of(50, seed=seed, top_p=0.5001) for seed in range(40)]
    rows, output = both(head, hidden_states(40), asked)
    assert {token.token_id for token in output.tokens} == {0, 1}


# -- company and faults --------------------------------------------------------------------------
def test_no_rows_route_changes_another_rows_token(kernels: Kernels) -> None:
    head, x = Head(kernels, VOCAB, spread=3.0), hidden_states(len(MIXED), 7)
    states = [state_of(VOCAB, **{"seed": 3, **options}) for options in MIXED]
    alone = [
        SAMPLER.sample(Rows(head, x[row : row + 1]), [state]).tokens[0]
        for row, state in enumerate(states)
    ]
    rng = np.random.default_rng(0)
    for _ in range(6):
        order = rng.permutation(len(MIXED))[: rng.integers(1, len(MIXED) + 1)]
        company = SAMPLER.sample(Rows(head, x[order]), [states[row] for row in order])
        assert company == SamplerOutput(tokens=[alone[row] for row in order], errors={})


def test_a_spoilt_row_is_its_own_requests_error(kernels: Kernels) -> None:
    head, x = Head(kernels, VOCAB), hidden_states(len(MIXED))
    states = [state_of(VOCAB, **MIXED[0], seed=0) for _ in MIXED]
    states[5] = state_of(VOCAB, seed=1, top_p=0.5)
    whole = SAMPLER.sample(Rows(head, x), states)
    x[[0, 5]] = np.nan
    _, found = both(head, x, states)
    assert list(found.errors) == [0, 5]
    assert all("not numbers" in message for message in found.errors.values())
    assert [token for row, token in enumerate(found.tokens) if row not in (0, 5)] == [
        token for row, token in enumerate(whole.tokens) if row not in (0, 5)
    ]


def test_masks_that_leave_nothing_are_their_own_requests_error(kernels: Kernels) -> None:
    head, x = Head(kernels, 40), hidden_states(2)
    words = tuple((token_id,) for token_id in range(40))
    states = [state_of(40, temperature=0.0, bad_word_ids=words), state_of(40)]
    _, found = both(head, x, states)
    assert list(found.errors) == [0]
    assert "leave no token" in found.errors[0]


def test_a_fault_of_one_request_leaves_the_others_their_tokens(kernels: Kernels) -> None:
    class Faulty(RequestSamplingState):
        @property
        def needs_edits(self) -> bool:
            raise KeyError("lost")

    head, x = Head(kernels, VOCAB), hidden_states(2)
    faulty = Faulty([], SamplingParams(), stop_token_ids=(), vocab_size=VOCAB, seed=0)
    output = SAMPLER.sample(Rows(head, x), [faulty, state_of(VOCAB, seed=4)])
    assert output.errors == {0: "sampling failed: KeyError: 'lost'"}
    alone = SAMPLER.sample(Rows(head, x[1:]), [state_of(VOCAB, seed=4)])
    assert output.tokens == [None, alone.tokens[0]]


@pytest.mark.parametrize("spread", [0.3, 4.0, 50.0])
def test_a_grammar_masks_rows_on_every_route(kernels: Kernels, spread: float) -> None:
    """And the token is the one that a row of logits with the others at minus infinity gives."""
    head = Head(kernels, VOCAB, spread=spread)
    for seed in range(3):
        states = [state_of(VOCAB, **{"seed": seed, **options}) for options in (*MASKED, {})]
        x = hidden_states(len(states), seed=seed)
        rows, found = both(head, x, states)
        assert not found.errors and len(rows.whole_rows) < len(states)
        logits = head.logits(x, np.arange(len(x), dtype=np.int32))
        for row, state in enumerate(states):
            if state.mask is None:
                continue
            token_id = found.tokens[row].token_id
            assert state.allows(token_id)
            hidden = np.array([not state.allows(token) for token in range(VOCAB)])
            bare = state_of(VOCAB, **{"seed": seed, **MASKED[row], "num_allowed": None})
            if bare.params.logprobs is None:
                masked_row = np.where(hidden, np.float32(-np.inf), logits[row])
                alone = SAMPLER.sample_logits(masked_row[np.newaxis], [bare])
                assert alone.tokens == [found.tokens[row]]


def test_a_grammar_with_one_token_needs_no_row(kernels: Kernels) -> None:
    states = [state_of(VOCAB, num_allowed=1, temperature=0.7, top_p=0.5) for _ in range(20)]
    rows, found = both(Head(kernels, VOCAB), hidden_states(20), states)
    assert rows.whole_rows == [] and rows.list_sizes == [] and not found.errors
    banned = state_of(VOCAB, num_allowed=1, temperature=0.0)
    (token_id,) = (token for token in range(VOCAB) if banned.allows(token))
    banned = state_of(VOCAB, num_allowed=1, temperature=0.0, bad_word_ids=((token_id,),))
    output = SAMPLER.sample(Rows(Head(kernels, VOCAB), hidden_states(1)), [banned])
    assert output.tokens == [None] and "structured_outputs" in output.errors[0]


def test_no_rows_at_all(kernels: Kernels) -> None:
    output = SAMPLER.sample(Rows(Head(kernels, 40), hidden_states(0)), [])
    assert output == SamplerOutput(tokens=[], errors={})


# -- distributions -------------------------------------------------------------------------------
BIAS = np.array([1.0, 0.0, 2.0, -1.0, 1.5, 0.5, -0.5, 1.0])


@pytest.mark.parametrize("backend", ["native", "int8"])
@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"temperature": 0.5}, range(8)),
        ({"temperature": 3.0}, range(8)),
        ({"top_k": 3}, [2, 4, 0]),
        ({"top_p": 0.6}, [2, 4, 0]),  # 0.357 + 0.217 + 0.131: the third crosses
        ({"min_p": 0.3}, [2, 4, 0, 7]),
        ({"bad_word_ids": ((2,), (4,))}, [0, 1, 3, 5, 6, 7]),
    ],
)
def test_candidates_are_drawn_by_the_softmax(
    backend: str, options: dict[str, Any], kept: Sequence[int]
) -> None:
    """Pearson's chi-square below its 99.9 % quantile (Wilson-Hilferty)."""
    count = 3000
    head = Head(create_kernels(backend, 2), 8, spread=0.0, bias=BIAS)
    states = [state_of(8, seed=8, choice=index, **options) for index in range(count)]
    rows = Rows(head, np.zeros((count, 32), np.float32))
    tokens = [token.token_id for token in SAMPLER.sample(rows, states).tokens if token]
    assert rows.whole_rows == []
    weights = np.zeros(8)
    scaled = BIAS / options.get("temperature", 1.0)
    weights[list(kept)] = np.exp(scaled[list(kept)])
    expected = weights / weights.sum() * count
    counts = np.bincount(tokens, minlength=8)
    assert counts.sum() == count and counts[weights == 0].sum() == 0
    degrees = len(kept) - 1
    spread = 2 / (9 * degrees)
    limit = degrees * (1 - spread + 3.09 * math.sqrt(spread)) ** 3
    possible = weights > 0
    assert ((counts[possible] - expected[possible]) ** 2 / expected[possible]).sum() < limit


@pytest.mark.real_model
@pytest.mark.parametrize("backend", ["native", "int8"])
def test_routes_agree_on_the_default_model(
    load_default_model: Callable[[str], Any], backend: str
) -> None:
    model = load_default_model(backend).runner.model
    head = Head.__new__(Head)
    head.kernels, head.linear, head.norm = model.kernels, model.head, model.output_norm
    size, vocab = model.config.hidden_size, model.config.vocab_size
    x = np.random.default_rng(2).standard_normal((len(MIXED), size), np.float32)
    states = [state_of(vocab, **{"seed": 9, **options}) for options in MIXED]
    both(head, x, states)
