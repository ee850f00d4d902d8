"""From the scheduler's updates to what a caller reads: text, stop strings, log probabilities.

One `_Completion` per child request turns tokens into text; one `_Answer` per prompt gathers its
completions into a `RequestOutput`.  A fault in one request's text ends that request only.  With
static batching answers are handed over when the batch lets its members go.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from chairlift.core.request import RequestStatus
from chairlift.core.scheduler import Scheduler
from chairlift.core.scheduler_output import RequestUpdate
from chairlift.engine.input_processor import ProcessedInput
from chairlift.events import StepRecord
from chairlift.outputs import (
    CompletionOutput,
    Logprob,
    PositionLogprobs,
    RequestMetrics,
    RequestOutput,
    TokenLogprob,
)
from chairlift.sampling_params import SamplingParams
from chairlift.tokenizer.detokenizer import IncrementalDetokenizer
from chairlift.tokenizer.stop_strings import StopStringMatcher
from chairlift.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger("chairlift")


@dataclass(slots=True)
class _Completion:
    """One child request's output so far."""

    output: CompletionOutput
    params: SamplingParams
    detokenizer: IncrementalDetokenizer | None
    matcher: StopStringMatcher
    parts: list[str] = field(default_factory=list)
    is_released: bool = False
    preempted_at_s: float | None = None
    """Since when it is off the batch again."""

    def push(self, token_ids: Sequence[int]) -> bool:
        """Append tokens; True if a stop string is complete."""
        for token_id in token_ids:
            self.output.token_ids.append(token_id)
            if self.detokenizer is None:
                continue
            may_stop = len(self.output.token_ids) > self.params.min_tokens
            delta = self.detokenizer.push([token_id])
            self.parts.append(self.matcher.push(delta, may_stop=may_stop))
            if self.matcher.stopped is not None:
                return True
        return False

    def close(self) -> None:
        """The last characters, once no more tokens can change them."""
        if self.detokenizer is not None and self.matcher.stopped is None:
            self.parts.append(self.matcher.push(self.detokenizer.flush(), may_stop=False))
            self.parts.append(self.matcher.flush())

    def snapshot(self) -> CompletionOutput:
        """A copy that the engine will not touch again."""
        if len(self.parts) > 1:
            self.parts = ["".join(self.parts)]
        output = self.output
        return CompletionOutput(
            index=output.index,
            text=self.parts[0] if self.parts else "",
            token_ids=list(output.token_ids),
            cumulative_logprob=output.cumulative_logprob,
            logprobs=None if output.logprobs is None else list(output.logprobs),
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
            error=output.error,
        )


@dataclass(slots=True)
class _Answer:
    """One prompt's completions."""

    request: ProcessedInput
    completions: list[_Completion]
    metrics: RequestMetrics
    is_streaming: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    num_cached_tokens: int = 0
    embedding: array[float] | None = None

    @property
    def is_finished(self) -> bool:
        return all(completion.output.finished for completion in self.completions)

    @property
    def is_released(self) -> bool:
        return all(completion.is_released for completion in self.completions)

    def snapshot(self) -> RequestOutput:
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            outputs=[completion.snapshot() for completion in self.completions],
            finished=self.is_finished and self.is_released,
            prompt_logprobs=self.prompt_logprobs,
            num_cached_tokens=self.num_cached_tokens,
            metrics=self.metrics,
            embedding=self.embedding,
        )


class OutputProcessor:
    """Keeps the answers of all live requests.  Used from the engine's thread only."""

    def __init__(self, tokenizer: Tokenizer, scheduler: Scheduler) -> None:
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._holds_answers = scheduler.batching.holds_finished
        self._answers: dict[str, _Answer] = {}
        self._children: dict[str, tuple[_Answer, _Completion]] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._answers

    def add(self, request: ProcessedInput, *, is_streaming: bool) -> None:
        """Expect updates for a request.  Without streaming only its end is handed over."""
        params = request.params
        answer = _Answer(
            request=request,
            completions=[self._completion(request, index) for index in range(params.n)],
            metrics=RequestMetrics(arrival_time=request.children[0].arrival_time),
            is_streaming=is_streaming,
            prompt_logprobs=None if params.prompt_logprobs is None else [None],
        )
        self._answers[request.request_id] = answer
        for child, completion in zip(request.children, answer.completions, strict=True):
            self._children[child.request_id] = (answer, completion)

    def book_step(self, record: StepRecord) -> None:
        """Note who got on, for the first time or again, and who had to get off."""
        for preemption in record.preemptions:
            entry = self._children.get(preemption.request_id)
            if entry is not None and entry[1].preempted_at_s is None:
                entry[1].preempted_at_s = record.start_s
        for child_id in record.admitted:
            entry = self._children.get(child_id)
            if entry is None:
                continue
            answer, completion = entry
            if answer.metrics.first_scheduled_time is None:
                answer.metrics.first_scheduled_time = record.start_s
            if completion.preempted_at_s is not None:
                answer.metrics.preempted_s += record.start_s - completion.preempted_at_s
                completion.preempted_at_s = None

    def child_ids(self, request_id: str) -> list[str]:
        """The scheduler's names of a request's completions."""
        answer = self._answers.get(request_id)
        return [] if answer is None else [child.request_id for child in answer.request.children]

    def process(self, updates: list[RequestUpdate], now: float) -> list[RequestOutput]:
        """Book a step's updates; returns what callers should see, in the order of the updates.

        Stop strings end requests in the scheduler, whose own updates are booked as well.
        """
        touched: dict[str, _Answer] = {}
        while updates:
            has_ended_any = False
            for update in updates:
                entry = self._children.get(update.request_id)
                if entry is not None:
                    answer, completion = entry
                    touched[answer.request.request_id] = answer
                    has_ended_any |= self._book_safely(answer, completion, update, now)
            updates = self._scheduler.take_updates() if has_ended_any else []
        outputs = []
        for answer in touched.values():
            output = self._hand_over(answer, now)
            if output is not None:
                outputs.append(output)
        return outputs

    def _completion(self, request: ProcessedInput, index: int) -> _Completion:
        params = request.params
        detokenizer = None
        if params.detokenize:
            detokenizer = IncrementalDetokenizer(
                self._tokenizer,
                skip_special_tokens=params.skip_special_tokens,
                kept_special_token_ids=params.kept_special_token_ids,
                prompt_token_ids=request.prompt_token_ids,
            )
        output = CompletionOutput(index=index)
        if params.logprobs is not None:
            output.logprobs, output.cumulative_logprob = [], 0.0
        matcher = StopStringMatcher(
            params.stop, include_in_output=params.include_stop_str_in_output
        )
        return _Completion(output, params, detokenizer, matcher)

    def _book_safely(
        self, answer: _Answer, completion: _Completion, update: RequestUpdate, now: float
    ) -> bool:
        """Book; True if that ended the request, by a stop string or a fault in its text."""
        try:
            return self._book(answer, completion, update, now)
        except Exception as error:
            logger.exception("the text of one request failed")
            message = f"the output could not be turned into text: {type(error).__name__}: {error}"
            completion.output.finish_reason, completion.output.error = "error", message
            completion.detokenizer = None
            self._scheduler.finish(update.request_id, RequestStatus.FINISHED_ERROR, error=message)
            return True

    def _book(
        self, answer: _Answer, completion: _Completion, update: RequestUpdate, now: float
    ) -> bool:
        output = completion.output
        completion.is_released = completion.is_released or update.is_released
        if output.index == 0:
            answer.num_cached_tokens = update.num_cached_tokens
            if update.prompt_logprobs and answer.prompt_logprobs is not None:
                answer.prompt_logprobs += [self._logprobs(p) for p in update.prompt_logprobs]
            if update.pooled is not None:
                answer.embedding = update.pooled
                answer.metrics.first_token_time = answer.metrics.last_token_time = now
        if output.finished:
            return False
        if update.new_token_ids:
            self._book_times(answer, output.index, now)
            if output.logprobs is not None:
                self._book_logprobs(output, update.logprobs)
            visible = self._visible(update, completion)
            if completion.push(visible):
                self._stop_at_string(update, completion)
                return True
            output.token_ids.extend(update.new_token_ids[len(visible) :])
        if update.finish_reason is not None:
            completion.close()
            output.finish_reason, output.error = update.finish_reason, update.error
            is_asked = update.stop_reason in completion.params.stop_token_ids
            is_told = is_asked or update.finish_reason == "abort"
            output.stop_reason = update.stop_reason if is_told else None
        return False

    def _stop_at_string(self, update: RequestUpdate, completion: _Completion) -> None:
        stop = completion.matcher.stopped
        completion.output.finish_reason, completion.output.stop_reason = "stop", stop
        if update.finish_reason is None:
            self._scheduler.finish(
                update.request_id, RequestStatus.FINISHED_STOPPED, stop_reason=stop
            )

    def _visible(self, update: RequestUpdate, completion: _Completion) -> list[int]:
        """New tokens that become text: a token that ends the output does not, unless asked for."""
        params = completion.params
        is_asked = params.include_stop_str_in_output and update.stop_reason in params.stop_token_ids
        if update.finish_reason == "stop" and not is_asked:
            return update.new_token_ids[:-1]
        return update.new_token_ids

    def _book_times(self, answer: _Answer, index: int, now: float) -> None:
        metrics = answer.metrics
        if metrics.first_token_time is None:
            metrics.first_token_time = now
        metrics.last_token_time = now
        if index == 0:
            metrics.token_times.append(now)

    def _book_logprobs(self, output: CompletionOutput, positions: list[PositionLogprobs]) -> None:
        assert output.logprobs is not None and output.cumulative_logprob is not None
        for position in positions:
            output.logprobs.append(self._logprobs(position))
            output.cumulative_logprob += position.chosen.logprob

    def _logprobs(self, position: PositionLogprobs) -> dict[int, Logprob]:
        """The chosen token first, then the best ones."""
        found = {position.chosen.token_id: self._logprob(position.chosen)}
        for token in position.top:
            found.setdefault(token.token_id, self._logprob(token))
        return found

    def _logprob(self, token: TokenLogprob) -> Logprob:
        return Logprob(token.logprob, token.rank, self._tokenizer.token_text(token.token_id))

    def _hand_over(self, answer: _Answer, now: float) -> RequestOutput | None:
        """What the caller sees of this answer now; None: nothing yet."""
        is_done = answer.is_finished and answer.is_released
        metrics = answer.metrics
        metrics.num_preemptions = sum(child.num_preemptions for child in answer.request.children)
        if is_done:
            self._forget(answer)
            metrics.finished_time = now
            if self._holds_answers and metrics.first_token_time is not None:
                # A static batch hands its answers over now: that is when the caller sees them.
                metrics.first_token_time = metrics.last_token_time = now
                metrics.token_times = [now] * len(metrics.token_times)
        elif self._holds_answers or not answer.is_streaming:
            return None
        return answer.snapshot()

    def _forget(self, answer: _Answer) -> None:
        del self._answers[answer.request.request_id]
        for child in answer.request.children:
            del self._children[child.request_id]
