"""How long an answer would take now, from the rate at which the engine has been computing tokens.

All requests in the batch share that rate, prompts included; those in line come before.  An answer
is as long as others were of late, if it may be.  An engine with little to do computes little: for
more requests than it had, the rate grows with their number, up to the best of the recent past.
"""

from __future__ import annotations

from chairlift.events import StepRecord

_RATE_WINDOW_S = 5.0
_BEST_HALF_LIFE_S = 30.0
_MIN_SECONDS = 0.5
"""Of steps, before their rate says anything."""
_MAX_ANSWERS = 256.0
"""Answers over which means are taken: older ones count half, and so on."""


class ServiceEstimate:
    """Fed by the engine's thread, asked by the event loop."""

    def __init__(self) -> None:
        self._recent_tokens = 0.0
        self._recent_s = 0.0
        self._recent_steps = 0.0
        self._recent_members = 0.0
        """All of the last seconds of steps, older ones counting less."""
        self._best_rate = 0.0
        self._total_tokens = 0.0
        self._num_answers = 0.0
        """Finished requests, and their tokens, prompts included."""

    def step_done(self, record: StepRecord) -> None:
        """The engine has made a step."""
        duration_s = record.duration_s
        num_tokens = record.num_prefill_tokens + record.num_decode_tokens
        keep = max(0.0, 1.0 - duration_s / _RATE_WINDOW_S)
        self._recent_tokens = self._recent_tokens * keep + num_tokens
        self._recent_s = self._recent_s * keep + duration_s
        self._recent_steps = self._recent_steps * keep + 1
        self._recent_members = self._recent_members * keep + len(record.members)
        best = self._best_rate * 0.5 ** (duration_s / _BEST_HALF_LIFE_S)
        if self._recent_s >= _MIN_SECONDS:
            best = max(best, self._recent_tokens / self._recent_s)
        self._best_rate = best
        complete = {name for name, reason in record.finished if reason in ("stop", "length")}
        if complete:
            self._book_answers(record, complete)

    def seconds(
        self,
        *,
        max_tokens: int | None,
        num_prompt_tokens: float,
        num_running: float,
        num_waiting: float,
    ) -> float:
        """Until an answer is complete that may have `max_tokens`; 0 while too little is known.

        `num_running` requests are in the batch, itself included, `num_waiting` in line before.
        """
        own = None if max_tokens is None else num_prompt_tokens + max_tokens
        mean = self._total_tokens / self._num_answers if self._num_answers else own
        if mean is None or not self._best_rate:
            return 0.0
        own = mean if own is None else min(own, mean)
        return (num_running * own + num_waiting * mean) / self._rate(num_running)

    def _rate(self, num_running: float) -> float:
        """Tokens per second with so many requests in the batch."""
        num_members = max(1.0, self._recent_members / self._recent_steps)
        recent = max(1.0, self._recent_tokens) / self._recent_s
        return min(self._best_rate, recent * max(1.0, num_running / num_members))

    def _book_answers(self, record: StepRecord, complete: set[str]) -> None:
        for member in record.members:
            if member.request_id in complete:
                self._total_tokens += member.num_computed_tokens + member.num_new_tokens
                self._num_answers += 1
        if self._num_answers > _MAX_ANSWERS:
            self._total_tokens /= 2
            self._num_answers /= 2
