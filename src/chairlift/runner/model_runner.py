"""Turns a step's order into tokens: everything that touches an array happens here.

Keeps what each riding request has said so far and its sampling state, moves blocks, runs the model
once over all tokens of the step, and samples.  A fault in one request's sampling becomes that
request's error; only a fault of the step as a whole raises.
"""

from __future__ import annotations

import logging
import time
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
from chairlift.kernels.interface import BatchLayout, FloatArray, IntArray
from chairlift.models.decoder import Decoder
from chairlift.outputs import PositionLogprobs
from chairlift.runner.forward_batch import build_layout, build_token_ids
from chairlift.runner.grammar_masks import MaskThread, PendingMasks
from chairlift.runner.kv_cache import KVCache
from chairlift.runner.logits_processors import RequestSamplingState
from chairlift.runner.memory import LOGIT_ROWS
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
    num_prompt_logprobs: int = 0
    """Prompt positions already answered: a recomputed prompt does not answer twice."""

    def append(self, token_id: int) -> None:
        """The next output token."""
        self.token_ids.append(token_id)
        self.sampling.append(token_id)
        if self.matcher is not None:
            self.matcher.accept(token_id)


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
        )

    def _execute(self, scheduled: list[ScheduledRequest]) -> RunnerOutput:
        if not scheduled:
            return RunnerOutput(sampled={})
        tokens = {item.request_id: self._riding[item.request_id].token_ids for item in scheduled}
        token_ids = build_token_ids(scheduled, tokens)
        layout = build_layout(scheduled, self._block_size)
        sampling = [index for index, item in enumerate(scheduled) if item.is_sampling]
        ids = [scheduled[index].request_id for index in sampling]
        masks = self._start_masks(ids)
        rows = layout.query_start[1:][sampling] - 1
        if any(self._is_scored(item) for item in scheduled):
            hidden = self.model.forward(token_ids, layout, self.kv_cache.blocks)
        else:
            hidden = self.model.forward(token_ids, layout, self.kv_cache.blocks, rows)
            rows = np.arange(len(rows), dtype=np.int32)
        prompt_logprobs, unscored = self._prompt_logprobs(scheduled, layout, hidden)
        sampled, errors = self._sample(ids, HiddenRows(self.model, hidden, rows), masks)
        return RunnerOutput(
            sampled=sampled, prompt_logprobs=prompt_logprobs, errors={**errors, **unscored}
        )

    def _is_scored(self, item: ScheduledRequest) -> bool:
        """Whether log probabilities of its prompt are asked for."""
        riding = self._riding.get(item.request_id)  # padding has none
        return riding is not None and riding.prompt_logprobs is not None

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
        self, scheduled: list[ScheduledRequest], layout: BatchLayout, hidden: FloatArray
    ) -> tuple[dict[str, list[PositionLogprobs]], dict[str, str]]:
        """Log probabilities of prompt tokens for the requests that asked, or their errors."""
        answers: dict[str, list[PositionLogprobs]] = {}
        errors: dict[str, str] = {}
        for item, start in zip(scheduled, layout.query_start, strict=False):
            if not self._is_scored(item):
                continue
            riding = self._riding[item.request_id]
            first = max(item.num_computed_tokens, riding.num_prompt_logprobs)
            end = item.num_computed_tokens + item.num_new_tokens
            end = min(end, riding.num_prompt_tokens - 1)  # the last one predicts the output
            if first >= end:
                continue
            offset = int(start) - item.num_computed_tokens
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
