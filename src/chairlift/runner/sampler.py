"""From rows of logits to tokens, each row on its own.

Owns the choice of a token and its log probabilities.  Greedy rows take the largest logit; sampled
rows use the Gumbel-max trick (Gumbel 1954; Maddison et al. 2014): the argmax of logits plus Gumbel
noise is an exact draw from their softmax.  The noise hangs on the request's seed, choice and output
position alone, so a row gives the same token, bit for bit, in any company.

A row takes the cheapest of two routes: a few candidates that the output head finds while it
computes logits (`candidate_choice.py`), or the whole row of logits, where log probabilities are
asked for, a mask covers nearly everything, or candidates leave the token undecided.  Both give the
same token.  A grammar's mask is looked at last: the best token of all is the best of those that are
allowed if it is allowed, and where only one is allowed, no row is needed.  Knows no request ids,
no text and no scheduling.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from chairlift.core.scheduler_output import SampledToken
from chairlift.errors import RequestError
from chairlift.kernels.candidates import CandidateQuery, Candidates
from chairlift.kernels.counter_random import (
    WordArray,
    gumbel_of_words,
    stream_key,
    word_below,
    words,
    words_of,
)
from chairlift.kernels.interface import FloatArray
from chairlift.outputs import PositionLogprobs, TokenLogprob
from chairlift.runner.candidate_choice import UNDECIDED, choose_tokens
from chairlift.runner.candidate_query import RowQuery, build_query, row_query
from chairlift.runner.logits_processors import (
    RequestSamplingState,
    TokenIdArray,
    kept_token_ids,
    process_logits,
    scale_logits,
    top_k_ids,
)
from chairlift.runner.memory import LOGIT_ROWS

logger = logging.getLogger(__name__)

_NEAR: Final = 8.0
"""Scaled logits this far below the best rarely win; their noise is first compared as integers."""


SHORT_LIST: Final = 256
"""Largest logits of a restricted row that are listed at first, while logits are computed."""
LONG_LIST: Final = 2048
"""And at second, of rows that are not decided yet."""


FEW_ROWS: Final = 8
"""For so many greedy rows asking costs more than writing all logits and taking the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOutput:
    """One entry per row of logits: a token, or None and an error under the row's index."""

    tokens: list[SampledToken | None]
    errors: dict[int, str]


class OutputHead(Protocol):
    """Rows of logits that are not computed yet; `rows` are indices of them."""

    def candidates(self, rows: Sequence[int], query: CandidateQuery) -> Candidates: ...

    def logits(self, rows: Sequence[int]) -> FloatArray: ...


class Sampler:
    """Chooses the next token of every row.  Remembers nothing between calls."""

    def sample(self, head: OutputHead, states: Sequence[RequestSamplingState]) -> SamplerOutput:
        """One token for each row of `head`, row i by the options of `states[i]`.

        Leaves the states unchanged: the caller appends the tokens.  Whatever goes wrong with one
        row becomes that row's error, and the others have their tokens.
        """
        tokens: list[SampledToken | None] = [None] * len(states)
        errors: dict[int, str] = {}
        open_rows = []
        for row, state in enumerate(states):
            forced = state.forced_token
            if forced is None:
                open_rows.append(row)
            else:
                tokens[row] = SampledToken(token_id=forced)
        asked: dict[int, RowQuery] = {}
        whole = open_rows
        if len(open_rows) > FEW_ROWS or not all(states[row].params.is_greedy for row in open_rows):
            asked, whole = _divide_rows(states, open_rows)
        for row, token_id in _choose(head, asked).items():
            # The best token of all is also the best of those that a grammar allows, if it is one.
            if token_id == UNDECIDED or not states[row].allows(token_id):
                whole.append(row)
            else:
                tokens[row] = SampledToken(token_id=token_id)
        whole.sort()
        for part in _parts(whole):
            result = self.sample_logits(head.logits(part), [states[row] for row in part])
            for row, token in zip(part, result.tokens, strict=True):
                tokens[row] = token
            errors.update((part[index], message) for index, message in result.errors.items())
        return SamplerOutput(tokens=tokens, errors=errors)

    def sample_logits(
        self, logits: FloatArray, states: Sequence[RequestSamplingState]
    ) -> SamplerOutput:
        """One token for each row of `logits` [R, V], row i by the options of `states[i]`.

        Leaves both unchanged: the caller appends the tokens to the states.  Whatever goes wrong
        with one row becomes that row's error, and the others have their tokens.
        """
        if len(logits) != len(states):
            raise ValueError(f"{len(logits)} rows of logits for {len(states)} requests")
        best = logits.argmax(axis=1)  # a NaN counts as largest, so the peak tells of it
        peaks: list[float] = logits[np.arange(len(logits)), best].tolist()
        tokens: list[SampledToken | None] = []
        errors: dict[int, str] = {}
        for row, (state, token_id) in enumerate(zip(states, best.tolist(), strict=True)):
            try:
                tokens.append(_sample_row(logits[row], peaks[row], token_id, state))
            except (RequestError, FloatingPointError) as error:
                errors[row] = str(error)
                tokens.append(None)
            except Exception as error:
                logger.exception("sampling failed for one request")
                errors[row] = f"sampling failed: {type(error).__name__}: {error}"
                tokens.append(None)
        return SamplerOutput(tokens=tokens, errors=errors)

    def prompt_logprobs(
        self, logits: FloatArray, next_token_ids: Sequence[int], k: int
    ) -> list[PositionLogprobs]:
        """What the model gave to the prompt's own tokens: row i of [R, V] precedes id i.

        Raises FloatingPointError if a row has no finite largest logit.
        """
        return [
            position_logprobs(row, token_id, k)
            for row, token_id in zip(logits, next_token_ids, strict=True)
        ]


def position_logprobs(row: FloatArray, token_id: int, k: int) -> PositionLogprobs:
    """Log-softmax of untouched `row` [V] at `token_id`, and at the `k` best tokens, best first.

    A token's rank is 1 + the number of tokens with larger logits, so equals share a rank.  Tokens
    that the model rules out (-inf) are not among the best.
    """
    peak = float(row.max())
    _require_finite(peak)
    with np.errstate(over="ignore"):
        total = np.exp(row - np.float32(peak)).sum(dtype=np.float64)
    log_total = peak + math.log(total)
    chosen = row[token_id]
    rank = int(np.count_nonzero(row > chosen)) + 1
    return PositionLogprobs(
        chosen=TokenLogprob(token_id, float(chosen) - log_total, rank),
        top=_top_logprobs(row, k, log_total) if k else (),
    )


def draw_token(scaled: FloatArray, kept: TokenIdArray | None, key: int) -> int:
    """argmax of scaled + Gumbel noise over the `kept` ids, or over all [V] if that is None.

    `scaled` is at most 0 and reaches it; `key` comes from `stream_key`.  Lowest id among equals.
    """
    if kept is not None:
        return _best_of(scaled, kept, words_of(key, kept))[1]
    drawn = words(key, len(scaled))
    near = np.flatnonzero(scaled >= -_NEAR)
    score, token_id = _best_of(scaled, near, drawn[near])
    # A token outside `near` needs noise above score + _NEAR to win, which a few have at most: only
    # they are worth two logarithms.  Nothing is lost: the result is that of the plain argmax.
    lucky = np.flatnonzero(drawn > word_below(score + _NEAR))
    if len(lucky):
        other_score, other_id = _best_of(scaled, lucky, drawn[lucky])
        if (other_score, -other_id) > (score, -token_id):
            return other_id
    return token_id


def _divide_rows(
    states: Sequence[RequestSamplingState], rows: Sequence[int]
) -> tuple[dict[int, RowQuery], list[int]]:
    """Of `rows` those whose candidates suffice, as a rule, and those that must be there whole."""
    asked: dict[int, RowQuery] = {}
    whole: list[int] = []
    for row in rows:
        try:
            query = row_query(states[row])
        except Exception:  # looked at alone, the row will say what is wrong with it
            query = None
        if query is None:
            whole.append(row)
        else:
            asked[row] = query
    return asked, whole


def _choose(head: OutputHead, asked: Mapping[int, RowQuery]) -> dict[int, int]:
    """Token ids by row, UNDECIDED among them.  Few rows need long lists, so those come second."""
    chosen: dict[int, int] = {}
    short: list[int] = []
    if asked:
        found, query = _find(head, asked, list(asked), SHORT_LIST)
        token_ids = choose_tokens(found, query, [row.params for row in asked.values()])
        chosen = dict(zip(asked, token_ids.tolist(), strict=True))
        is_cut = (token_ids == UNDECIDED) & (found.rows["num_listed"] == SHORT_LIST)
        rows = list(asked)
        short = [rows[index] for index in np.flatnonzero(is_cut).tolist()]
    for part in _parts(short):
        found, query = _find(head, asked, part, LONG_LIST)
        token_ids = choose_tokens(found, query, [asked[row].params for row in part])
        chosen.update(zip(part, token_ids.tolist(), strict=True))
    return chosen


def _find(
    head: OutputHead, asked: Mapping[int, RowQuery], rows: list[int], max_listed: int
) -> tuple[Candidates, CandidateQuery]:
    query = build_query([asked[row] for row in rows], max_listed)
    return head.candidates(rows, query), query


def _parts(rows: list[int]) -> Iterator[list[int]]:
    """As many rows at once as the memory plan has room for."""
    return (rows[start : start + LOGIT_ROWS] for start in range(0, len(rows), LOGIT_ROWS))


def _sample_row(
    logits: FloatArray, peak: float, best: int, state: RequestSamplingState
) -> SampledToken:
    """`best` is the index of `peak`, the largest value of `logits` [V]."""
    _require_finite(peak)
    params, few = state.params, state.few_allowed
    if few is not None and not state.needs_edits and state.list_plan.size == 0:
        best = _choose_of_few(logits, few, state)
    elif not (params.is_greedy and not state.needs_edits and state.allows(best)):
        best = _choose_of_row(logits, peak, best, state)
    if params.logprobs is None:
        return SampledToken(token_id=best)
    return SampledToken(token_id=best, logprobs=position_logprobs(logits, best, params.logprobs))


def _choose_of_row(logits: FloatArray, peak: float, best: int, state: RequestSamplingState) -> int:
    """The token of a row, whatever its options are; `best` is the index of `peak`."""
    params, row = state.params, logits
    if state.needs_processing:
        row = process_logits(logits, state)
        best = int(row.argmax())
        peak = float(row[best])
    if params.is_greedy:
        return best
    scaled = scale_logits(row, np.float32(peak), state.temperature)
    kept = kept_token_ids(scaled, params)
    return draw_token(scaled, state.few_allowed if kept is None else kept, _key(state))


def _choose_of_few(logits: FloatArray, ids: TokenIdArray, state: RequestSamplingState) -> int:
    """The same of a row of which nothing but `ids` [K] is allowed, in the same arithmetic."""
    values = logits[ids]
    best = int(values.argmax())
    _require_finite(float(values[best]))
    if not state.params.is_greedy:
        scaled = scale_logits(values, values[best], state.temperature)
        best = int((scaled + gumbel_of_words(words_of(_key(state), ids))).argmax())
    return int(ids[best])


def _key(state: RequestSamplingState) -> int:
    return stream_key(state.seed, state.choice, state.num_output_tokens)


def _best_of(scaled: FloatArray, ids: TokenIdArray, drawn: WordArray) -> tuple[float, int]:
    """Best score among ascending `ids` [K] with noise `drawn` [K], and whose it is."""
    scores = scaled[ids] + gumbel_of_words(drawn)
    index = int(scores.argmax())
    return float(scores[index]), int(ids[index])


def _top_logprobs(row: FloatArray, k: int, log_total: float) -> tuple[TokenLogprob, ...]:
    ids = top_k_ids(row, k)
    ids = ids[np.argsort(-row[ids], kind="stable")]
    values = [value for value in row[ids].tolist() if value != -math.inf]
    return tuple(
        TokenLogprob(token_id, value - log_total, values.index(value) + 1)
        for token_id, value in zip(ids.tolist(), values, strict=False)
    )


def _require_finite(peak: float) -> None:
    if not math.isfinite(peak):
        raise FloatingPointError(
            "the model gave no usable logits for this request: they are "
            + ("all minus infinity" if peak == -math.inf else "infinite or not numbers")
        )
