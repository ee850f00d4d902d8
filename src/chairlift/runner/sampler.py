"""From rows of logits to tokens, each row on its own.

Owns the choice of a token and its log probabilities.  Greedy rows take the largest logit; sampled
rows use the Gumbel-max trick (Gumbel 1954; Maddison et al. 2014): the argmax of logits plus Gumbel
noise is an exact draw from their softmax.  The noise hangs on the request's seed, choice and output
position alone, so a row gives the same token, bit for bit, in any company.  Knows no request ids,
no text and no scheduling.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from chairlift.core.scheduler_output import SampledToken
from chairlift.errors import RequestError
from chairlift.kernels.interface import FloatArray
from chairlift.outputs import PositionLogprobs, TokenLogprob
from chairlift.runner.counter_random import (
    WordArray,
    gumbel_of_words,
    stream_key,
    word_below,
    words,
    words_of,
)
from chairlift.runner.logits_processors import (
    RequestSamplingState,
    TokenIdArray,
    kept_token_ids,
    process_logits,
    scale_logits,
    top_k_ids,
)

logger = logging.getLogger(__name__)

_NEAR: Final = 8.0
"""Scaled logits this far below the best rarely win; their noise is first compared as integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOutput:
    """One entry per row of logits: a token, or None and an error under the row's index."""

    tokens: list[SampledToken | None]
    errors: dict[int, str]


class Sampler:
    """Chooses the next token of every row.  Remembers nothing between calls."""

    def sample(self, logits: FloatArray, states: Sequence[RequestSamplingState]) -> SamplerOutput:
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


def _sample_row(
    logits: FloatArray, peak: float, best: int, state: RequestSamplingState
) -> SampledToken:
    """`best` is the index of `peak`, the largest value of `logits` [V]."""
    _require_finite(peak)
    params = state.params
    row = logits
    if state.needs_processing:
        row = process_logits(logits, state)
        best = int(row.argmax())
        peak = float(row[best])
    if not params.is_greedy:
        scaled = scale_logits(row, peak, params.temperature)
        key = stream_key(state.seed, state.choice, state.num_output_tokens)
        best = draw_token(scaled, kept_token_ids(scaled, params), key)
    if params.logprobs is None:
        return SampledToken(token_id=best)
    return SampledToken(token_id=best, logprobs=position_logprobs(logits, best, params.logprobs))


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
