"""Turns a step's order into tokens and vectors: everything that touches an array happens here.

Keeps what each riding request has said so far and its sampling state, moves blocks, runs the model
once over all tokens of the step, samples and pools.  A fault in one request's part becomes that
request's error; only a fault of the step as a whole raises.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chairlift.core.scheduler_output import (
    NewRequest,
    RunnerOutput,
    SampledToken,
    ScheduledRequest,
    SchedulerOutput,
)
from chairlift.errors import RequestError
from chairlift.grammar.token_matcher import CompiledGrammar, TokenMatcher
from chairlift.kernels.candidates import CandidateQuery, Candidates
from chairlift.kernels.interface import FloatArray, IntArray
from chairlift.models.decoder import Decoder
from chairlift.outputs import PositionLogprobs
from chairlift.runner.forward_batch import build_layout, build_token_ids, last_rows
from chairlift.runner.grammar_masks import MaskThread, PendingMasks
from chairlift.runner.kv_cache import KVCache
from chairlift.runner.logits_processors import RequestSamplingState
from chairlift.runner.memory import LOGIT_ROWS
from chairlift.runner.pooling import RequestPoolingState
from chairlift.runner.sampler import Sampler

logger = logging.getLogger("chairlift")


@dataclass(slots=True)
class _Riding:
    """What the runner keeps of a request between steps."""

    token_ids: list[int]
    num_prompt_tokens: int
    sampling: RequestSamplingState
    prompt_logprobs: int | None
    matcher: TokenMatcher | None
    """Follows the output where a grammar constrains it."""
    pooling: RequestPoolingState | None = None
    num_prompt_logprobs: int = 0
    """Prompt positions already answered: a recomputed prompt does not answer twice."""

    def append(self, token_id: int) -> None:
        """The next output token."""
        self.token_ids.append(token_id)
        self.sampling.append(token_id)
        if self.matcher is not None:
            self.matcher.accept(token_id)

    def num_read_rows(self, item: ScheduledRequest) -> int:
        """Hidden states that are looked at: so many of the last ones of its part of the step."""
        num_sampled = int(item.is_sampling)
        if item.kind == "padding" or (self.pooling is None and self.prompt_logprobs is None):
            return num_sampled
        start, end = item.num_computed_tokens, item.num_computed_tokens + item.num_new_tokens
        if self.pooling is not None:
            return self.pooling.num_rows(start, end)
        first = max(start, self.num_prompt_logprobs)
        return max(end - first, num_sampled) if first < self.num_prompt_tokens - 1 else num_sampled


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step whose tokens are there already."""

    output: RunnerOutput

    def result(self) -> RunnerOutput:
        return self.output


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """The rows of a step that will be sampled, before the output head."""

    model: Decoder
    hidden: FloatArray
    rows: IntArray

    def candidates(self, rows: Sequence[int], query: CandidateQuery) -> Candidates:
        return self.model.candidates(self.hidden, self.rows[rows], query)

    def logits(self, rows: Sequence[int]) -> FloatArray:
        return self.model.logits(self.hidden, self.rows[rows])

    def only(self, rows: Sequence[int]) -> HiddenRows:
        """The same without the other rows."""
        return HiddenRows(self.model, self.hidden, self.rows[rows])


class ModelRunner:
    """An `Executor` with a model and a KV cache behind it."""

    overlap_depth = 0

    def __init__(self, model: Decoder, kv_cache: KVCache, block_size: int) -> None:
        self.model = model
        self.kv_cache = kv_cache
        self._block_size = block_size
        self._sampler = Sampler()
        self._mask_thread = MaskThread()
        self._riding: dict[str, _Riding] = {}

    def submit(self, output: SchedulerOutput) -> CompletedStep:
        """Move blocks, compute, sample.  Raises only if the step as a whole fails."""
        for request_id in output.finished_request_ids:
            self._riding.pop(request_id, None)
        refused = self._board(output.new_requests)
        swap_out_s, swap_in_s = self.kv_cache.move(output.moves)
        start = time.perf_counter()
        result = self._execute([i for i in output.scheduled if i.request_id not in refused])
        result.errors = {**refused, **result.errors}
        result.execute_s = time.perf_counter() - start
        result.swap_out_s, result.swap_in_s = swap_out_s, swap_in_s
        num_swapped = len(output.moves.swap_outs) + len(output.moves.swap_ins)
        result.swap_bytes = num_swapped * self.kv_cache.block_bytes
        return CompletedStep(result)

    def measure_prefill(self, num_tokens: int = 32) -> float:
        """Seconds per token of a prompt, from one run on scratch blocks.  Only while idle."""
        capacity = self.kv_cache.blocks.shape[0] * self._block_size
        num_tokens = min(num_tokens, capacity, len(self.model.rope.cos))
        blocks = range(-(-num_tokens // self._block_size))
        item = ScheduledRequest("", "prefill", 0, num_tokens, blocks, False)
        layout = build_layout([item], self._block_size)
        start = time.perf_counter()
        self.model.forward(np.zeros(num_tokens, dtype=np.int32), layout, self.kv_cache.blocks)
        return (time.perf_counter() - start) / num_tokens

    def _board(self, new_requests: Sequence[NewRequest]) -> dict[str, str]:
        """Take requests in; errors of those whose options cannot be used."""
        errors: dict[str, str] = {}
        for new in new_requests:
            try:
                self._riding[new.request_id] = self._ride(new)
            except Exception as error:
                errors[new.request_id] = _describe(error)
        return errors

    def _ride(self, new: NewRequest) -> _Riding:
        return _Riding(
            token_ids=list(new.prompt_token_ids),
            num_prompt_tokens=len(new.prompt_token_ids),
            sampling=RequestSamplingState(
                new.prompt_token_ids,
                new.sampling_params,
                stop_token_ids=new.stop_token_ids,
                bad_word_ids=new.bad_word_ids,
                vocab_size=self.model.config.vocab_size,
                seed=new.seed,
                choice=new.choice_index,
            ),
            prompt_logprobs=new.sampling_params.prompt_logprobs,
            matcher=_matcher(new.grammar),
            pooling=self._pooling(new),
        )

    def _pooling(self, new: NewRequest) -> RequestPoolingState | None:
        if new.pooling_params is None:
            return None
        return RequestPoolingState(
            new.pooling_params, len(new.prompt_token_ids), self.model.config.hidden_size
        )

    def _execute(self, scheduled: list[ScheduledRequest]) -> RunnerOutput:
        if not scheduled:
            return RunnerOutput(sampled={})
        tokens = {item.request_id: self._riding[item.request_id].token_ids for item in scheduled}
        token_ids = build_token_ids(scheduled, tokens)
        layout = build_layout(scheduled, self._block_size)
        riders = [self._riding[item.request_id] for item in scheduled]
        counts = [rider.num_read_rows(item) for rider, item in zip(riders, scheduled, strict=True)]
        rows, ends = last_rows(layout, counts)
        sampling = [index for index, item in enumerate(scheduled) if item.is_sampling]
        ids = [scheduled[index].request_id for index in sampling]
        masks = self._start_masks(ids)
        hidden = self.model.forward(token_ids, layout, self.kv_cache.blocks, rows)
        prompt_logprobs, unscored = self._prompt_logprobs(scheduled, ends, hidden)
        sampled, errors = self._sample(
            ids, HiddenRows(self.model, hidden, ends[sampling] - 1), masks
        )
        pooled: dict[str, array[float]] = {}
        unpooled: dict[str, str] = {}
        for item, rider, count, end in zip(scheduled, riders, counts, ends.tolist(), strict=True):
            if rider.pooling is not None and count:
                self._pool(item, rider.pooling, hidden[end - count : end], pooled, unpooled)
        return RunnerOutput(
            sampled=sampled,
            prompt_logprobs=prompt_logprobs,
            pooled=pooled,
            errors={**errors, **unscored, **unpooled},
        )

    def _pool(
        self,
        item: ScheduledRequest,
        pooling: RequestPoolingState,
        hidden: FloatArray,
        pooled: dict[str, array[float]],
        errors: dict[str, str],
    ) -> None:
        """Read a part of a prompt; notes its vector, if it ends here, or its error."""
        try:
            rows = self.model.final_states(hidden)
            vector = pooling.push(rows, item.num_computed_tokens + item.num_new_tokens)
        except Exception as error:
            errors[item.request_id] = _describe(error)
        else:
            if vector is not None:
                pooled[item.request_id] = vector

    def _sample(
        self, ids: list[str], rows: HiddenRows, pending: PendingMasks
    ) -> tuple[dict[str, SampledToken], dict[str, str]]:
        """New tokens of the requests whose last known token was computed, a row for each."""
        if not ids:
            return {}, {}
        masks, errors = self._mask_thread.join(pending)
        for request_id, mask in masks.items():
            self._riding[request_id].sampling.constrain(mask)
        if errors:
            kept = [index for index, request_id in enumerate(ids) if request_id not in errors]
            ids, rows = [ids[index] for index in kept], rows.only(kept)
        states = [self._riding[request_id].sampling for request_id in ids]
        chosen = self._sampler.sample(rows, states)
        sampled: dict[str, SampledToken] = {}
        for request_id, token in zip(ids, chosen.tokens, strict=True):
            if token is not None:
                sampled[request_id] = token
                self._riding[request_id].append(token.token_id)
        return sampled, {**errors, **{ids[row]: text for row, text in chosen.errors.items()}}

    def _start_masks(self, ids: list[str]) -> PendingMasks:
        """Of those that a grammar constrains, in a thread while the model runs."""
        matchers = {request_id: self._riding[request_id].matcher for request_id in ids}
        return self._mask_thread.start(
            {name: matcher for name, matcher in matchers.items() if matcher is not None}
        )

    def _prompt_logprobs(
        self, scheduled: list[ScheduledRequest], ends: IntArray, hidden: FloatArray
    ) -> tuple[dict[str, list[PositionLogprobs]], dict[str, str]]:
        """Log probabilities of prompt tokens for the requests that asked, or their errors."""
        answers: dict[str, list[PositionLogprobs]] = {}
        errors: dict[str, str] = {}
        for item, last in zip(scheduled, ends.tolist(), strict=True):
            riding = self._riding[item.request_id]
            if riding.prompt_logprobs is None:
                continue
            first = max(item.num_computed_tokens, riding.num_prompt_logprobs)
            reached = item.num_computed_tokens + item.num_new_tokens
            end = min(reached, riding.num_prompt_tokens - 1)  # the last one predicts the output
            if first >= end:
                continue
            offset = last - reached
            rows = np.arange(first + offset, end + offset, dtype=np.int32)
            try:
                answers[item.request_id] = self._score(riding, hidden, rows, first)
            except Exception as error:
                errors[item.request_id] = _describe(error)
            riding.num_prompt_logprobs = end
        return answers, errors

    def _score(
        self, riding: _Riding, hidden: FloatArray, rows: IntArray, first: int
    ) -> list[PositionLogprobs]:
        """A few rows at a time: all logits of a long prompt would not fit the memory plan."""
        scored: list[PositionLogprobs] = []
        for start in range(0, len(rows), LOGIT_ROWS):
            part = rows[start : start + LOGIT_ROWS]
            position = first + start + 1
            scored += self._sampler.prompt_logprobs(
                self.model.logits(hidden, part),
                riding.token_ids[position : position + len(part)],
                riding.prompt_logprobs or 0,
            )
        return scored


def _matcher(grammar: object | None) -> TokenMatcher | None:
    if grammar is None:
        return None
    assert isinstance(grammar, CompiledGrammar)
    return grammar.new_matcher()


def _describe(error: Exception) -> str:
    """A request's error as a line; one that we did not foresee is logged with its trace."""
    if isinstance(error, (RequestError, FloatingPointError)):
        return str(error)
    logger.error("one request failed", exc_info=error)
    return f"{type(error).__name__}: {error}"
