"""How many tokens a request took, and, if the server tells, how long."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, Field

from chairlift.outputs import RequestOutput


class PromptTokensDetails(BaseModel):
    """Of the prompt's tokens."""

    cached_tokens: int
    """Found in the prefix cache."""


class CompletionTokensDetails(BaseModel):
    """Of the answer's tokens."""

    reasoning_tokens: int = 0


class Timings(BaseModel):
    """Milliseconds in each phase of a request; of several prompts, the longest of each."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    preempted_ms: float


class Usage(BaseModel):
    """Token counts of a request, all its prompts and choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()
    timings: Timings | None = Field(default=None, exclude_if=lambda value: value is None)


def usage_of(
    outputs: Sequence[RequestOutput],
    *,
    has_timings: bool,
    num_hidden_tokens: int = 0,
    num_reasoning_tokens: int = 0,
) -> Usage:
    """With several choices the prompt counts once.  `num_hidden_tokens` were not asked for."""
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_completion = sum(len(item.token_ids) for out in outputs for item in out.outputs)
    num_completion -= num_hidden_tokens
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_completion,
        total_tokens=num_prompt + num_completion,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(output.num_cached_tokens for output in outputs)
        ),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=num_reasoning_tokens),
        timings=timings_of(outputs) if has_timings else None,
    )


def timings_of(outputs: Sequence[RequestOutput]) -> Timings:
    metrics = [output.metrics for output in outputs]
    return Timings(
        queue_ms=_longest_ms([item.queue_s for item in metrics]),
        prefill_ms=_longest_ms([item.prefill_s for item in metrics]),
        decode_ms=_longest_ms([item.decode_s for item in metrics]),
        preempted_ms=_longest_ms([item.preempted_s for item in metrics]),
    )


def _longest_ms(times_s: Sequence[float | None]) -> float:
    return round(1e3 * max((time_s or 0.0 for time_s in times_s), default=0.0), 3)
