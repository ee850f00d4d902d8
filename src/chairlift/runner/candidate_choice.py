"""From what was found in rows of logits to their tokens: the very ones that whole rows would give.

What decides is the arithmetic of whole rows (`sampler.py`, `logits_processors.py`) on the few
tokens that matter, all rows at once where that is possible.  A row whose token cannot be told for
certain from its candidates is left undecided, for its whole row to be looked at.

A restricted row (top_k, top_p, min_p) mostly needs no look at what exactly is kept: the best token
of all is also the best of the kept ones as soon as it is one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.candidates import WEIGHT_ERROR, CandidateQuery, Candidates
from chairlift.kernels.counter_random import gumbel_of_words, words_of
from chairlift.kernels.interface import FloatArray
from chairlift.runner.logits_processors import (
    TokenIdArray,
    nucleus_of_listed,
    scale_logits,
    smallest_scaled,
    top_k_ids,
    top_p_ids,
)
from chairlift.sampling_params import SamplingParams

UNDECIDED: Final = -1


def choose_tokens(
    found: Candidates, query: CandidateQuery, params: Sequence[SamplingParams]
) -> TokenIdArray:
    """[R] token ids; UNDECIDED where the whole row must be looked at, or reported as unusable."""
    tokens = found.rows["best_id"].astype(np.int64)
    tokens[~np.isfinite(found.rows["best_logit"])] = UNDECIDED
    is_random = query.rows["temperature"] > 0
    tokens[is_random & (found.rows["num_contenders"] < 1)] = UNDECIDED
    random = np.flatnonzero(is_random & (tokens != UNDECIDED))
    if len(random):
        tokens[random], scaled = _best_contenders(found, query, random)
        restricted = query.rows["list_size"][random] > 0
        if restricted.any():
            rows = random[restricted]
            certain = _are_kept(found, query, params, rows, tokens[rows], scaled[restricted])
            for row in rows[~certain].tolist():
                tokens[row] = _best_listed(found, query, params[row], row)
    return tokens


def _best_contenders(
    found: Candidates, query: CandidateQuery, rows: TokenIdArray
) -> tuple[TokenIdArray, FloatArray]:
    """Per row the contender that wins if nothing is restricted, and its scaled logit."""
    candidates = found.rows[rows]
    counts = candidates["num_contenders"]
    width = int(counts.max())
    ids = candidates["contender_ids"][:, :width].astype(np.int64)
    scaled = scale_logits(
        candidates["contender_logits"][:, :width],
        candidates["best_logit"][:, np.newaxis],
        query.rows["temperature"][rows, np.newaxis],
    )
    if width == 1:
        return ids[:, 0], scaled[:, 0]
    is_there = np.arange(width) < counts[:, np.newaxis]
    ids[~is_there] = 0
    noise = gumbel_of_words(words_of(query.rows["key"][rows, np.newaxis], ids))
    scores = np.where(is_there, scaled + noise, -np.inf)
    best = scores.argmax(axis=1)  # ids ascend: the lowest among equals
    at = np.arange(len(rows))
    return ids[at, best], scaled[at, best]


def _are_kept(
    found: Candidates,
    query: CandidateQuery,
    params: Sequence[SamplingParams],
    rows: TokenIdArray,
    tokens: TokenIdArray,
    scaled: FloatArray,
) -> NDArray[np.bool_]:
    """[rows] True where `tokens` are kept for certain.  `scaled` are their scaled logits."""
    chosen = [params[row] for row in rows.tolist()]
    floors = np.array([smallest_scaled(one) for one in chosen], dtype=np.float32)
    limits = np.array([one.top_k if one.top_k > 0 else np.iinfo(np.int64).max for one in chosen])
    shares = np.array([one.top_p for one in chosen])
    candidates = found.rows[rows]
    width = int(candidates["num_listed"].max())
    ids = found.listed_ids[rows, :width]
    place = np.arange(width)
    is_there = place < candidates["num_listed"][:, np.newaxis]
    matches = is_there & (ids == tokens[:, np.newaxis])
    is_listed = matches.any(axis=1)
    rank = matches.argmax(axis=1)
    kept: NDArray[np.bool_] = is_listed & (scaled >= floors) & (rank < limits)
    if (shares < 1.0).any():
        listed = scale_logits(
            np.where(is_there, found.listed_logits[rows, :width], -np.inf),
            candidates["best_logit"][:, np.newaxis],
            query.rows["temperature"][rows, np.newaxis],
        )
        weights = np.exp(listed, dtype=np.float64)
        remaining = (listed >= floors[:, np.newaxis]) & (place < limits[:, np.newaxis])
        # Of a list that ends early this is less than all there is: then fewer are certain.
        total = np.where(remaining, weights, 0.0).sum(axis=1)
        total = np.where(query.rows["wants_weight"][rows], candidates["total_weight"], total)
        above = np.where(place < rank[:, np.newaxis], weights, 0.0).sum(axis=1)
        kept &= (shares >= 1.0) | (above < shares * total * (1.0 - WEIGHT_ERROR))
    return kept


def _best_listed(found: Candidates, query: CandidateQuery, params: SamplingParams, row: int) -> int:
    """The winner among what is kept of one row, if the list tells what that is."""
    candidates, asked = found.rows[row], query.rows[row]
    count = int(candidates["num_listed"])
    order = np.argsort(found.listed_ids[row, :count])
    ids = found.listed_ids[row, :count][order].astype(np.int64)
    logits = found.listed_logits[row, :count][order]
    scaled = scale_logits(logits, candidates["best_logit"], asked["temperature"])
    is_whole = count < int(asked["list_size"])
    total = float(candidates["total_weight"])
    kept = _kept_of_list(scaled, params, is_whole=is_whole, total=total)
    if kept is None:
        return UNDECIDED
    scores = scaled[kept] + gumbel_of_words(words_of(int(asked["key"]), ids[kept]))
    return int(ids[kept[scores.argmax()]])


def _kept_of_list(
    scaled: FloatArray, params: SamplingParams, *, is_whole: bool, total: float
) -> TokenIdArray | None:
    """Indices into the list that `kept_token_ids` would leave of a whole row; None: unclear.

    `scaled` is in the order of token ids.  `is_whole`: the list ended because nothing further
    down can be kept, not because it was full.
    """
    kept: TokenIdArray = np.arange(len(scaled))
    is_complete = False  # nothing outside the list is in the running any more
    if params.min_p > 0.0:
        floor = smallest_scaled(params)
        is_complete = is_whole or bool(scaled.min() < floor)
        kept = np.flatnonzero(scaled >= floor)
    if params.top_k > 0 and not (is_complete and len(kept) <= params.top_k):
        if len(kept) < params.top_k:
            return None
        kept = kept[top_k_ids(scaled[kept], params.top_k)]
        is_complete = True
    if params.top_p == 1.0:
        return kept if is_complete else None
    if is_complete:
        return kept[top_p_ids(scaled[kept], params.top_p)]
    if params.min_p > 0.0:
        return None
    return nucleus_of_listed(scaled, params.top_p * total, WEIGHT_ERROR)
