"""What the epilogues of output heads find, against numpy on the same backend's whole rows.

Found tokens and logits must be the very same; weights may differ as much as they are said to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from chairlift.kernels.candidates import (
    MAX_CONTENDERS,
    WEIGHT_ERROR,
    CandidateQuery,
    Candidates,
    edited_row,
    empty_candidates,
    score_slack,
    search_rows,
)
from chairlift.kernels.counter_random import gumbel_of_words, words
from chairlift.kernels.cpu.int8 import Int8Kernels
from chairlift.kernels.cpu.ops import NativeKernels
from chairlift.kernels.interface import FloatArray, Kernels
from chairlift.kernels.kv_dtype import from_stored, to_stored
from chairlift.kernels.reference import ReferenceKernels
from unit.kernels.candidate_cases import (
    Edits,
    Head,
    all_rows,
    hidden_states,
    make_query,
)

VOCABS = (1, 2, 15, 16, 17, 47, 48, 49, 191, 192, 193, 385, 4099)
"""Around the borders of vectors, panels and bundles of them."""

MakeKernels = Callable[[int], Kernels]


@pytest.fixture(params=("native", "int8"))
def make(request: pytest.FixtureRequest, isa: str) -> MakeKernels:
    """make(num_threads) -> each backend with an epilogue, at each instruction set."""
    return Int8Kernels if request.param == "int8" else NativeKernels


@pytest.fixture(params=(NativeKernels, Int8Kernels))
def make_any(request: pytest.FixtureRequest, library: object) -> MakeKernels:
    """make_any(num_threads) -> each of them, at the best instruction set."""
    made: MakeKernels = request.param
    return made


def expected_of(logits: FloatArray, query: CandidateQuery) -> Candidates:
    found = empty_candidates(len(logits), query.max_listed)
    search_rows(logits, query, found)
    return found


def contenders_of(found: Candidates, row: int) -> list[tuple[int, float]]:
    count = max(0, int(found.rows["num_contenders"][row]))
    pairs = zip(
        found.rows["contender_ids"][row, :count],
        found.rows["contender_logits"][row, :count],
        strict=True,
    )
    return [(int(token), float(logit)) for token, logit in pairs]


def listed_of(found: Candidates, row: int) -> list[tuple[int, float]]:
    count = int(found.rows["num_listed"][row])
    pairs = zip(found.listed_ids[row, :count], found.listed_logits[row, :count], strict=True)
    return [(int(token), float(logit)) for token, logit in pairs]


def assert_same(found: Candidates, expected: Candidates, query: CandidateQuery) -> None:
    usable = np.isfinite(expected.rows["best_logit"])
    assert np.array_equal(np.isfinite(found.rows["best_logit"]), usable)
    np.testing.assert_array_equal(
        found.rows["best_logit"][usable], expected.rows["best_logit"][usable]
    )
    np.testing.assert_array_equal(found.rows["best_id"][usable], expected.rows["best_id"][usable])
    for row in np.flatnonzero(usable).tolist():
        assert found.rows["num_contenders"][row] == expected.rows["num_contenders"][row]
        assert contenders_of(found, row) == contenders_of(expected, row)
        listed, wanted = listed_of(found, row), listed_of(expected, row)
        # On the very border of the depth the two may differ, which is why it is a wide one.
        border = expected.rows["best_logit"][row] - query.rows["depth"][row]
        assert [pair for pair in listed if pair[1] >= border] == [
            pair for pair in wanted if pair[1] >= border
        ]
    np.testing.assert_allclose(
        found.rows["total_weight"][usable],
        expected.rows["total_weight"][usable],
        rtol=WEIGHT_ERROR / 2,
    )


def check(head: Head, x: FloatArray, query: CandidateQuery) -> Candidates:
    rows = all_rows(x)
    found = head.candidates(x, rows, query)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = expected_of(head.logits(x, rows), query)
    assert_same(found, expected, query)
    return found


# -- the same as whole rows ----------------------------------------------------------------------
@pytest.mark.parametrize("vocab_size", VOCABS)
def test_candidates_equal_those_of_whole_rows(make: MakeKernels, vocab_size: int) -> None:
    head, x = Head(make(2), vocab_size), hidden_states(24)
    temperatures = [0.0, 1.0, 0.3, 5.0, 1e-5, float(np.finfo(np.float32).max)] * 4
    for seed, size in enumerate((0, 1, 7, 300)):
        check(head, x, make_query(temperatures, seed=seed, list_size=size, weights=True))


@pytest.mark.parametrize("dtype", [np.float16, np.uint16])
def test_heads_of_16_bits(isa: str, dtype: type[np.generic]) -> None:
    """The same as from the whole rows of their float32 copies."""
    kernels = NativeKernels(2)
    head, copy, x = Head(kernels, 1000), Head(kernels, 1000), hidden_states(9)
    matrix = to_stored(np.random.default_rng(1).standard_normal((1000, 32)), np.dtype(dtype))
    head.linear = kernels.prepare_linear([matrix], [None])
    copy.linear = kernels.prepare_linear([from_stored(matrix)], [None])
    query = make_query([0.0, 1.0, 0.5] * 3, list_size=20, weights=True)
    found, rows = check(head, x, query), all_rows(x)
    np.testing.assert_array_equal(head.logits(x, rows), copy.logits(x, rows))
    assert_same(found, check(copy, x, query), query)


@pytest.mark.parametrize("num_rows", [1, 2, 127, 128, 129, 300])
def test_any_number_of_rows(make: MakeKernels, num_rows: int) -> None:
    head, x = Head(make(2), 500), hidden_states(num_rows)
    temperatures = (np.arange(num_rows) % 3 * 0.6).tolist()
    check(head, x, make_query(temperatures, list_size=20, weights=True, depth=4.0))


def test_no_rows(make: MakeKernels) -> None:
    found = Head(make(2), 50).candidates(hidden_states(3), np.empty(0, np.int32), make_query([]))
    assert len(found.rows["best_id"]) == 0


@pytest.mark.parametrize("depth", [0.0, 0.5, 3.0, 1e30, math.inf])
def test_lists_end_at_their_depth(make: MakeKernels, depth: float) -> None:
    head, x = Head(make(2), 3000), hidden_states(6)
    found = check(head, x, make_query([1.0] * 6, list_size=100, depth=depth))
    for row in range(6):
        listed = listed_of(found, row)
        assert len(listed) == 100 or depth <= 3.0
        assert all(
            logit > found.rows["best_logit"][row] - depth * 1.01 - 1e-3 for _, logit in listed
        )


@pytest.mark.parametrize(
    "bias",
    [
        np.zeros(400),
        np.repeat([3.0, -1.0], 200),
        np.tile([0.0, -0.0], 200),
        np.where(np.arange(400) == 333, 1e30, 0.0),
        np.where(np.arange(400) % 7 == 0, -np.inf, 1.0),
        np.where(np.arange(400) == 399, -2.0, -np.inf),
        np.linspace(-1e-40, 1e-40, 400),
        np.linspace(-3e38, 3e38, 400),
        np.linspace(1e6, 1e6 + 30, 400),
        np.linspace(-1e6 - 30, -1e6, 400)[::-1],
    ],
    ids=[
        *("equal", "two-values", "zeros", "one-huge", "some-masked", "one-left"),
        *("denormal", "whole-range", "far-up", "far-down"),
    ],
)
def test_adversarial_logits(make: MakeKernels, bias: FloatArray) -> None:
    head = Head(make(2), 400, spread=0.0, bias=bias)
    temperatures = [0.0, 1.0, 1e-5, 1e-3, 30.0, float(np.finfo(np.float32).max)]
    for seed in range(4):
        for depth in (2.0, math.inf):
            query = make_query(temperatures, seed=seed, list_size=9, weights=True, depth=depth)
            check(head, hidden_states(6), query)


@pytest.mark.parametrize("spoil", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 15, 16, 99, 191, 192, 399])
def test_unusable_rows_are_seen_and_leave_the_others_alone(
    make: MakeKernels, spoil: float, place: int
) -> None:
    head, x = Head(make(2), 400), hidden_states(5)
    query = make_query([0.0, 1.0] * 2 + [0.7], list_size=5, weights=True)
    whole = head.candidates(x, all_rows(x), query)
    x[2] = np.nan
    found = head.candidates(x, all_rows(x), query)
    assert not np.isfinite(found.rows["best_logit"][2])
    for row in (0, 1, 3, 4):
        assert found.rows["best_logit"][row] == whole.rows["best_logit"][row]
        assert contenders_of(found, row) == contenders_of(whole, row)
        assert listed_of(found, row) == listed_of(whole, row)
    bias = np.zeros(400, np.float32)
    bias[place] = spoil
    spoilt = Head(head.kernels, 400, bias=bias).candidates(
        x[:2], all_rows(x[:2]), make_query([0, 1])
    )
    assert not np.isfinite(spoilt.rows["best_logit"]).any()


def test_rows_of_nothing_but_minus_infinity_are_unusable(make: MakeKernels) -> None:
    head = Head(make(2), 400, bias=np.full(400, -np.inf))
    found = head.candidates(
        hidden_states(2),
        np.arange(2, dtype=np.int32),
        make_query([0, 1], list_size=3, weights=True),
    )
    assert found.rows["best_logit"].tolist() == [-math.inf] * 2


# -- noise ---------------------------------------------------------------------------------------
def test_contenders_hold_the_plain_argmax(make: MakeKernels) -> None:
    """Against the formula itself, for many seeds: nothing that may win is passed over."""
    head, x = Head(make(2), 1000, spread=2.0), hidden_states(1)
    row = head.logits(x, all_rows(x))[0]
    count = 400
    for temperature in (0.5, 1.0, 8.0):
        query = make_query([temperature] * count, seed=int(temperature * 10))
        found = head.candidates(x, np.zeros(count, np.int32), query)
        scaled = row.astype(np.float64) / np.float64(np.float32(temperature))
        for index, key in enumerate(query.rows["key"].tolist()):
            scores = scaled + gumbel_of_words(words(key, 1000))
            tokens = [token for token, _ in contenders_of(found, index)]
            assert int(scores.argmax()) in tokens
            assert (scores[tokens] >= scores.max() - 2 * score_slack(scores.max())).all()
        assert (found.rows["num_contenders"] == 1).mean() > 0.98


def test_too_many_contenders_are_told_and_not_cut(make: MakeKernels) -> None:
    """Scores so large that noise is lost in them: all are equal."""
    head = Head(make(2), 200, spread=0.0, bias=np.full(200, 1e34))
    found = head.candidates(
        hidden_states(1), np.zeros(2, np.int32), make_query([1e-5, 1.0], list_size=4)
    )
    assert found.rows["num_contenders"].tolist() == [-1, -1]
    assert found.rows["best_id"].tolist() == [0, 0]
    few = Head(make(2), MAX_CONTENDERS, spread=0.0, bias=np.full(MAX_CONTENDERS, 1e34))
    found = few.candidates(hidden_states(1), np.zeros(1, np.int32), make_query([1.0]))
    assert [token for token, _ in contenders_of(found, 0)] == list(range(MAX_CONTENDERS))


# -- edits ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("num_threads", [1, 3])
def test_edits_come_before_everything_else(make: MakeKernels, num_threads: int) -> None:
    head, x = Head(make(num_threads), 700), hidden_states(4)
    best = head.logits(x, all_rows(x)).argmax(axis=1).tolist()
    edits = Edits(
        [{best[0]: -math.inf}, {5: 20.0, 4: -1.5}, {}, {best[3]: -math.inf, 699: 3.0, 0: 2.0}],
        [{}, {best[1]: 3, 600: 1, 5: 0}, {best[2]: 1}, {token: token % 4 for token in range(700)}],
    )
    found = check(head, x, make_query([0.0, 0.0, 1.0, 0.8], edits=edits, list_size=30))
    assert found.rows["best_id"][0] != best[0]
    assert found.rows["best_id"][1] == 5
    plain = check(head, x, make_query([0.0, 0.0, 1.0, 0.8], list_size=30))
    assert plain.rows["best_id"][0] == best[0]


def test_several_edits_of_one_token_are_made_in_order(make: MakeKernels) -> None:
    head, x = Head(make(2), 60, spread=0.0, bias=np.arange(60.0)), hidden_states(1)
    edits = Edits([{7: 0.1, 59: 100.0}], [{7: 2, 59: 1}], (3.0, 10.0, 0.7))
    query = make_query([0.0], edits=edits)
    twice = replace(query, edit_ids=np.array([59, 59, 59, 7], np.int32))
    for one in (query, twice):
        found = check(head, x, one)
        row = edited_row(head.logits(x, all_rows(x))[0], one, 0)
        assert found.rows["best_logit"][0] == row.max()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_mask_does_not_hide_an_unusable_logit(make: MakeKernels, value: float) -> None:
    bias = np.zeros(300, np.float32)
    bias[200] = value
    head = Head(make(2), 300, bias=bias)
    query = make_query([0.0], edits=Edits([{200: -math.inf}], [{}]))
    found = head.candidates(hidden_states(1), np.zeros(1, np.int32), query)
    assert not np.isfinite(found.rows["best_logit"][0])


def test_everything_masked_is_unusable(make: MakeKernels) -> None:
    masks = dict.fromkeys(range(100), -math.inf)
    query = make_query([0.0, 1.0], edits=Edits([masks, masks], [{}, {}]), list_size=3)
    found = Head(make(2), 100).candidates(hidden_states(2), np.arange(2, dtype=np.int32), query)
    assert not np.isfinite(found.rows["best_logit"]).any()


# -- company and threads -------------------------------------------------------------------------
def test_found_alone_and_in_any_company_and_by_any_threads(make: MakeKernels) -> None:
    """To the last bit, weights too: neither company nor threads cut a sum otherwise."""
    x = hidden_states(150)
    temperatures = (np.arange(150) % 4 * 0.4).tolist()
    query = make_query(temperatures, list_size=40, weights=True)
    together = Head(make(1), 1500).candidates(x, all_rows(x), query)
    for num_threads in (2, 3, 8):
        head = Head(make(num_threads), 1500)
        for _ in range(3):
            again = head.candidates(x, all_rows(x), query)
            assert_equal_rows(again, together, list(range(150)), list(range(150)))
        for rows in ([0], [149], [3, 1, 2], list(range(20, 149))):
            part = head.candidates(x, np.array(rows, np.int32), query_rows(query, rows))
            assert_equal_rows(part, together, list(range(len(rows))), rows)


def query_rows(query: CandidateQuery, rows: list[int]) -> CandidateQuery:
    return replace(query, rows=query.rows[rows])


def assert_equal_rows(
    found: Candidates, others: Candidates, rows: list[int], other_rows: list[int]
) -> None:
    np.testing.assert_array_equal(found.rows["best_id"][rows], others.rows["best_id"][other_rows])
    np.testing.assert_array_equal(
        found.rows["best_logit"][rows], others.rows["best_logit"][other_rows]
    )
    np.testing.assert_array_equal(
        found.rows["total_weight"][rows], others.rows["total_weight"][other_rows]
    )
    for row, other in zip(rows, other_rows, strict=True):
        assert contenders_of(found, row) == contenders_of(others, other)
        assert listed_of(found, row) == listed_of(others, other)


def test_reference_goes_through_its_rows_in_parts() -> None:
    head, x = Head(ReferenceKernels(1), 90), hidden_states(130)
    query = make_query([0.0, 1.0] * 65, list_size=4, weights=True)
    found = head.candidates(x, all_rows(x), query)
    assert_same(found, expected_of(head.logits(x, all_rows(x)), query), query)


# -- what the library refuses --------------------------------------------------------------------
def changed(**fields: object) -> CandidateQuery:
    """Two ordinary rows with two edits, but for these fields."""
    query = make_query([1, 1], list_size=3, weights=True, edits=Edits([{1: 1}, {2: 1}], [{}, {}]))
    for name, values in fields.items():
        query.rows[name] = values
    return query


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (changed(temperature=[1, -1]), "row 1: the temperature"),
        (changed(temperature=[np.nan, 1]), "row 0: the temperature"),
        (changed(temperature=[np.inf, 1]), "row 0: the temperature"),
        (changed(temperature=[0, 1]), "row 0: weights need a temperature"),
        (changed(list_size=[3, -1]), "row 1: the list size"),
        (changed(depth=[-1, 1]), "row 0: the depth"),
        (changed(depth=[1, np.nan]), "row 1: the depth"),
        (changed(first_edit=[-1, 1]), "row 0: its edits"),
        (changed(first_edit=[0, 0]), "row 1: its edits"),
        (changed(first_penalty=[0, 0]), "row 1: its edits"),
        (changed(last_edit=[0, 1]), "row 0: its edits"),
        (changed(last_edit=[1, 3]), "row 1: its edits"),
        (replace(changed(), edit_ids=np.array([1, 60], np.int32)), "token 60, which is not in"),
        (replace(changed(), edit_ids=np.array([-1, 6], np.int32)), "token -1, which is not in"),
        (replace(changed(), edit_ids=np.array([1, 6])), "edit_ids must be int32"),
        (replace(changed(), edit_values=np.zeros(3, np.float32)), "edit_values must have shape"),
        (replace(changed(), rows=np.zeros(2, np.uint64)), "rows of the query must be"),
    ],
)
def test_bad_queries_are_errors(make_any: MakeKernels, query: CandidateQuery, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Head(make_any(1), 60).candidates(hidden_states(2), np.arange(2, dtype=np.int32), query)


def test_rows_and_query_must_fit(make_any: MakeKernels) -> None:
    with pytest.raises(ValueError, match="x must"):
        Head(make_any(1), 60).candidates(
            hidden_states(2), np.zeros(1, np.int32), make_query([0.0] * 2)
        )


def test_a_head_of_another_backend_is_refused(make_any: MakeKernels) -> None:
    head, foreign = Head(make_any(1), 60), Head(ReferenceKernels(1), 60)
    head.linear = foreign.linear
    with pytest.raises(TypeError, match="another backend"):
        head.candidates(hidden_states(1), np.zeros(1, np.int32), make_query([0.0]))
