"""How long an answer would take now, from the rate at which the engine has been computing tokens.

All requests in the batch share that rate, prompts included; those in line come before.  An answer
is as long as others were of late, if it may be.  An engine with little to do computes little: for
more requests than it had, the rate grows with their number, up to the best of the recent past.

Vectors are another kind of work: a step takes thousands of their tokens where it takes one of each
answer, and how many there are is known beforehand.  So they have a pace of their own, and say
nothing about how long answers are; what a step spends on both counts in full for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chairlift.events import StepMember, StepRecord

_RATE_WINDOW_S = 5.0
_BEST_HALF_LIFE_S = 30.0
_MIN_SECONDS = 0.5
"""Of steps, before their rate says anything."""
_MAX_ANSWERS = 256.0
"""Answers over which means are taken: older ones count half, and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkAhead:
    """What comes before a new request, or shares the engine with it."""

    num_running: float = 0
    """Answers in the batch."""
    num_waiting: float = 0
    """Answers in line."""
    num_vector_tokens: float = 0
    """Tokens of vectors in line."""


class _Pace:
    """Tokens of one kind per second, of the steps in which there were any."""

    def __init__(self) -> None:
        self._num_tokens = 0.0
        self._seconds = 0.0
        self._num_steps = 0.0
        self._load = 0.0
        """All of the last seconds of steps, older ones counting less."""
        self._best_rate = 0.0

    @property
    def is_known(self) -> bool:
        return self._best_rate > 0.0

    def step_done(self, duration_s: float, num_tokens: int, load: int) -> None:
        """`load`: how much there was to do, in whatever `rate` is asked in."""
        keep = max(0.0, 1.0 - duration_s / _RATE_WINDOW_S)
        self._num_tokens = self._num_tokens * keep + num_tokens
        self._seconds = self._seconds * keep + duration_s
        self._num_steps = self._num_steps * keep + 1
        self._load = self._load * keep + load
        best = self._best_rate * 0.5 ** (duration_s / _BEST_HALF_LIFE_S)
        if self._seconds >= _MIN_SECONDS:
            best = max(best, self._num_tokens / self._seconds)
        self._best_rate = best

    def rate(self, load: float) -> float:
        """Tokens per second with so much to do in a step."""
        usual = max(1.0, self._load / self._num_steps)
        recent = max(1.0, self._num_tokens) / self._seconds
        return min(self._best_rate, recent * max(1.0, load / usual))


class ServiceEstimate:
    """Fed by the engine's thread, asked by the event loop."""

    def __init__(self) -> None:
        self._answers = _Pace()
        self._vectors = _Pace()
        self._total_tokens = 0.0
        self._num_answers = 0.0
        """Finished answers, and their tokens, prompts included."""

    def step_done(
        self, record: StepRecord, is_vector: Callable[[str], bool] = lambda request_id: False
    ) -> None:
        """The engine has made a step.  `is_vector`: of which requests only the vector is wanted."""
        vectors = [member for member in record.members if is_vector(member.request_id)]
        num_tokens = record.num_prefill_tokens + record.num_decode_tokens
        num_vector_tokens = sum(member.num_new_tokens for member in vectors)
        num_answers = len(record.members) - len(vectors)
        if vectors:
            self._vectors.step_done(record.duration_s, num_vector_tokens, num_vector_tokens)
        if num_answers or not vectors:
            self._answers.step_done(record.duration_s, num_tokens - num_vector_tokens, num_answers)
        complete = {name for name, reason in record.finished if reason in ("stop", "length")}
        complete.difference_update(member.request_id for member in vectors)
        if complete:
            self._book_answers(record.members, complete)

    def answer_s(
        self, *, max_tokens: int | None, num_prompt_tokens: float, ahead: WorkAhead
    ) -> float:
        """Until an answer is complete that may have `max_tokens`; 0 while too little is known.

        It is one of those that run.
        """
        own = None if max_tokens is None else num_prompt_tokens + max_tokens
        mean = self._mean_tokens(own)
        if mean is None or not self._answers.is_known:
            return 0.0
        own = mean if own is None else min(own, mean)
        num_tokens = ahead.num_running * own + ahead.num_waiting * mean
        return num_tokens / self._answers.rate(ahead.num_running) + self._vectors_s(
            ahead.num_vector_tokens
        )

    def vectors_s(self, *, num_tokens: float, ahead: WorkAhead) -> float:
        """Until vectors of so many tokens are there; 0 while too little is known."""
        waiting_s = 0.0
        mean = self._mean_tokens(None)
        if ahead.num_waiting and mean is not None and self._answers.is_known:
            waiting_s = ahead.num_waiting * mean / self._answers.rate(ahead.num_running)
        return waiting_s + self._vectors_s(ahead.num_vector_tokens + num_tokens)

    def _vectors_s(self, num_tokens: float) -> float:
        if not self._vectors.is_known:
            return 0.0
        return num_tokens / self._vectors.rate(num_tokens)

    def _mean_tokens(self, otherwise: float | None) -> float | None:
        return self._total_tokens / self._num_answers if self._num_answers else otherwise

    def _book_answers(self, members: tuple[StepMember, ...], complete: set[str]) -> None:
        for member in members:
            if member.request_id in complete:
                self._total_tokens += member.num_computed_tokens + member.num_new_tokens
                self._num_answers += 1
        if self._num_answers > _MAX_ANSWERS:
            self._total_tokens /= 2
            self._num_answers /= 2
