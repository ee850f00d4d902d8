"""What one request came to: its times, its tokens, or why it failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chairlift.bench.serve.failure import Failure
from chairlift.bench.serve.streamed_answer import StreamedAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """Times are seconds after the start of the run."""

    index: int
    intended_s: float
    """When it was to be sent: latencies count from here, however late the client was."""
    sent_s: float
    """When the client turned to it."""
    finished_s: float
    first_token_s: float | None = None
    last_token_s: float | None = None
    text_times_s: list[float] = field(default_factory=list)
    """When each chunk with text came."""
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    """Of the prompt, from the server's prefix cache; None if the server does not say."""
    num_output_tokens: int = 0
    num_output_tokens_asked: int = 0
    is_counted_by_server: bool = False
    """Tokens come from `usage`; otherwise each chunk with text counts as one."""
    failure: Failure | None = None
    retry_after_s: float | None = None
    finish_reason: str | None = None

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token."""
        return self._since_intended_ms(self.first_token_s)

    @property
    def e2el_ms(self) -> float | None:
        """End to end: up to the last chunk of the answer."""
        return self._since_intended_ms(self.last_token_s)

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first; None for a single token."""
        if self.first_token_s is None or self.last_token_s is None or self.num_output_tokens < 2:
            return None
        return 1e3 * (self.last_token_s - self.first_token_s) / (self.num_output_tokens - 1)

    @property
    def itl_ms(self) -> list[float]:
        """Gaps between chunks with text."""
        times = self.text_times_s
        return [1e3 * (b - a) for a, b in zip(times, times[1:], strict=False)]

    def _since_intended_ms(self, time_s: float | None) -> float | None:
        return None if time_s is None else 1e3 * (time_s - self.intended_s)


def record_of(
    answer: StreamedAnswer,
    failure: Failure | None,
    *,
    index: int,
    num_output_tokens_asked: int,
    start_s: float,
    intended_s: float,
    sent_s: float,
    finished_s: float,
) -> RequestRecord:
    """`start_s` is `time.monotonic` at the start of the run; the other times count from it."""
    usage = answer.usage or {}
    completion = _count(usage.get("completion_tokens"))
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    first, last = answer.first_token_s, answer.last_choice_s
    return RequestRecord(
        index=index,
        intended_s=intended_s,
        sent_s=sent_s,
        finished_s=finished_s,
        first_token_s=None if first is None else first - start_s,
        last_token_s=None if last is None else last - start_s,
        text_times_s=[time_s - start_s for time_s in answer.text_times_s],
        num_prompt_tokens=_count(usage.get("prompt_tokens")),
        num_cached_tokens=_count(cached),
        num_output_tokens=len(answer.text_times_s) if completion is None else completion,
        num_output_tokens_asked=num_output_tokens_asked,
        is_counted_by_server=completion is not None,
        failure=failure,
        retry_after_s=answer.retry_after_s,
        finish_reason=answer.finish_reason,
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
