"""How long an answer would take now, from the rate at which the engine has been writing tokens.

All completions in the batch get their tokens at the engine's rate, shared evenly; those in line
come before.  The rate is the best of the recent past: an engine with little to do writes slowly
and could do more, so what it does then says nothing of its limit.
"""

from __future__ import annotations

from chairlift.events import StepRecord

_RATE_WINDOW_S = 5.0
_BEST_HALF_LIFE_S = 30.0
_LENGTH_WINDOW = 256.0
"""Answers over which their mean length is taken."""
_MIN_SECONDS = 0.5
"""Of steps, before their rate says anything."""


class ServiceEstimate:
    """Fed by the engine's thread, asked by the event loop."""

    def __init__(self) -> None:
        self._num_tokens = 0.0
        self._seconds = 0.0
        """Both of the last seconds of steps, older ones counting less."""
        self._best_rate = 0.0
        self._num_answer_tokens = 0.0
        self._num_answers = 0.0

    def step_done(self, record: StepRecord) -> None:
        """The engine has made a step."""
        duration_s = record.duration_s
        keep = max(0.0, 1.0 - duration_s / _RATE_WINDOW_S)
        self._num_tokens = self._num_tokens * keep + record.num_sampled_tokens
        self._seconds = self._seconds * keep + duration_s
        best = self._best_rate * 0.5 ** (duration_s / _BEST_HALF_LIFE_S)
        if self._seconds >= _MIN_SECONDS:
            best = max(best, self._num_tokens / self._seconds)
        self._best_rate = best
        self._num_answer_tokens += record.num_sampled_tokens
        self._num_answers += sum(reason in ("stop", "length") for _, reason in record.finished)
        if self._num_answers > _LENGTH_WINDOW:
            self._num_answers /= 2
            self._num_answer_tokens /= 2

    def expected_tokens(self, max_tokens: int) -> float:
        """Tokens of an answer that may have `max_tokens`: as many as others had of late."""
        if self._num_answers < 1:
            return max_tokens
        return min(max_tokens, self._num_answer_tokens / self._num_answers)

    def seconds(self, *, num_tokens: float, num_running: float, num_waiting: float) -> float:
        """Until an answer of `num_tokens` is complete; 0 while nothing is known.

        `num_running` completions are in the batch, itself included, `num_waiting` in line before.
        """
        if self._num_answers < 1 or not self._best_rate:
            return 0.0
        mean = self._num_answer_tokens / self._num_answers
        return (num_running * num_tokens + num_waiting * mean) / self._best_rate
