"""What sampling needs of rows of logits, so that a backend need not keep the logits themselves.

A `CandidateQuery` says what to look for in each row, `Candidates` what was found; both are plain
arrays.  Backends find *supersets*: every token that may be the answer.  Which of them is the answer
is decided by the sampler, in the arithmetic that it uses on whole rows.  `search_rows` is the
reference; backends with an epilogue of their own never see a whole row.

Shape legend: R rows, V vocabulary, C contenders, L listed tokens, E edits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.counter_random import (
    TokenIdArray,
    gumbel_of_words,
    word_below,
    words,
)

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]
RowArray = NDArray[np.void]

ROWS_AT_ONCE: Final = 64
"""Whole rows of logits that a backend without an epilogue has at any time."""
MAX_CONTENDERS: Final = 8
"""Tokens of a row whose scores are too close to call; more of them are not handed over."""
_NEAR: Final = 8.0
"""Scaled logits this far below the best rarely win; their noise is first compared as integers."""

ROW_QUERY: Final = np.dtype(
    [
        ("key", np.uint64),  # of the noise (counter_random.py)
        ("temperature", np.float32),  # finite; 0: nothing but the largest logit is wanted
        ("depth", np.float32),  # logits further below the largest need not be listed
        ("list_size", np.int32),  # how many of the largest logits to list
        ("wants_weight", np.int32),  # 1: add up exp((logit - largest) / temperature) of all tokens
        # Edits of single logits before anything is looked for: edit_values are added to the logits
        # of edit_ids from the first edit on, and are numbers of occurrences to be penalised from
        # the first penalty on.  Minus infinity masks a token.
        ("first_edit", np.int64),
        ("first_penalty", np.int64),
        ("last_edit", np.int64),
        ("repetition_penalty", np.float32),  # 1: none
        ("frequency_penalty", np.float32),
        ("presence_penalty", np.float32),
        ("reserved", np.int32),
    ]
)
"""What to look for in a row, as it lies in memory: `chairlift_row_query` of the C header."""

ROW_CANDIDATES: Final = np.dtype(
    [
        ("total_weight", np.float64),  # to a relative error of WEIGHT_ERROR, where asked for
        ("best_logit", np.float32),  # where it is not finite the row is unusable: nothing else is
        ("best_id", np.int32),  # lowest token id that has it
        ("num_contenders", np.int32),  # tokens that may have the best score; -1: too many
        ("num_listed", np.int32),  # as many as were asked for, or all in depth
        ("contender_ids", np.int32, MAX_CONTENDERS),  # ascending
        ("contender_logits", np.float32, MAX_CONTENDERS),
    ]
)
"""What a row holds, as it lies in memory: `chairlift_row_candidates` of the C header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateQuery:
    """What to look for in each of R rows, besides the largest logit."""

    rows: RowArray
    """[R] of ROW_QUERY."""
    edit_ids: IntArray
    """[E]."""
    edit_values: FloatArray
    """[E]."""
    max_listed: int
    """L: at least every row's list size."""

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What R rows of (edited) logits hold.  Beyond a row's counts, arrays hold anything."""

    rows: RowArray
    """[R] of ROW_CANDIDATES."""
    listed_ids: IntArray
    """[R, L] best first, of equals the lowest ids first."""
    listed_logits: FloatArray
    """[R, L]."""


WEIGHT_ERROR: Final = 1e-5
"""Bound on the relative error of total weights, against weights computed in float32 by numpy.

Float32 exponents are off by 2^-23 of themselves on either side, and their mean under the softmax is
at most log V; some 3e-6 for any vocabulary, and 1e-6 for the exponential functions and the sum.
"""


def score_slack(score: float) -> float:
    """How far below the best score in float64 a token may be and still win in float32.

    A token that beats the largest logit lies within 27 temperatures of it, for that is how far
    noise spreads; its float32 quotient is off by 2^-23 of that at most.
    """
    return 2e-5 + 1e-14 * abs(score)


def empty_candidates(num_rows: int, max_listed: int) -> Candidates:
    """Arrays to be filled."""
    return Candidates(
        rows=np.zeros(num_rows, ROW_CANDIDATES),
        listed_ids=np.empty((num_rows, max_listed), np.int32),
        listed_logits=np.empty((num_rows, max_listed), np.float32),
    )


def search_rows(
    logits: FloatArray, query: CandidateQuery, found: Candidates, first_row: int = 0
) -> None:
    """Fill in what whole rows [.., V] hold, the first of which is `first_row` of the query's."""
    for index, row in enumerate(logits, start=first_row):
        asked, answer = query.rows[index], found.rows[index]
        is_usable = True
        if asked["first_edit"] < asked["last_edit"]:
            is_usable = bool(np.isfinite(row.max()))
            row = edited_row(row, query, index)
        best = int(row.argmax())
        answer["best_id"] = best
        answer["best_logit"] = row[best] if is_usable else np.nan
        if np.isfinite(answer["best_logit"]) and asked["temperature"] > 0:
            _search_row(row, asked, answer)
            listed = _listed(row, asked)
            answer["num_listed"] = len(listed)
            found.listed_ids[index, : len(listed)] = listed
            found.listed_logits[index, : len(listed)] = row[listed]


def edited_row(row: FloatArray, query: CandidateQuery, index: int) -> FloatArray:
    """A copy of `row` [V] with the edits of row `index`."""
    row, asked = row.copy(), query.rows[index]
    added = slice(asked["first_edit"], asked["first_penalty"])
    penalised = slice(asked["first_penalty"], asked["last_edit"])
    np.add.at(row, query.edit_ids[added], query.edit_values[added])
    token_ids, counts = query.edit_ids[penalised], query.edit_values[penalised]
    with np.errstate(over="ignore"):
        values = row[token_ids]
        if asked["repetition_penalty"] != 1.0:
            repetition = asked["repetition_penalty"]
            values = np.where(values > 0, values / repetition, values * repetition)
        values -= asked["frequency_penalty"] * counts
        values -= asked["presence_penalty"] * (counts > 0)
    row[token_ids] = values
    return row


def _search_row(row: FloatArray, asked: np.void, answer: np.void) -> None:
    with np.errstate(over="ignore"):
        scaled = row.astype(np.float64) - float(answer["best_logit"])
        scaled /= float(asked["temperature"])
    contenders = _contenders(scaled, int(asked["key"]))
    is_few = len(contenders) <= MAX_CONTENDERS
    answer["num_contenders"] = len(contenders) if is_few else -1
    if is_few:
        answer["contender_ids"][: len(contenders)] = contenders
        answer["contender_logits"][: len(contenders)] = row[contenders]
    if asked["wants_weight"]:
        answer["total_weight"] = np.exp(scaled).sum()


def _listed(row: FloatArray, asked: np.void) -> TokenIdArray:
    """Ids of the largest logits, best first."""
    if asked["list_size"] == 0:
        return np.empty(0, np.int64)
    best = float(row.max())
    floor = best - float(asked["depth"]) * (1 + 1e-6) - 1e-6 * abs(best)
    near = np.flatnonzero((row >= floor) & (row > -np.inf))
    return near[np.argsort(-row[near], kind="stable")][: asked["list_size"]]


def _contenders(scaled: NDArray[np.float64], key: int) -> TokenIdArray:
    """Ascending ids of tokens whose score, scaled + noise, is the largest or close to it."""
    drawn = words(key, len(scaled))
    near = np.flatnonzero(scaled >= -_NEAR)
    scores = scaled[near] + gumbel_of_words(drawn[near])
    bar = float(scores.max())
    # Those outside `near` need noise above the bar and more: few have it.
    lucky = np.flatnonzero(drawn > word_below(bar - score_slack(bar) + _NEAR))
    lucky = lucky[scaled[lucky] < -_NEAR]
    ids = np.concatenate((near, lucky))
    scores = np.concatenate((scores, scaled[lucky] + gumbel_of_words(drawn[lucky])))
    bar = float(scores.max())
    return np.sort(ids[scores >= bar - score_slack(bar)])
