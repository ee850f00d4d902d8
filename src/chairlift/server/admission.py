"""Who may wait for the engine: a queue bounded by requests and by tokens.

A prompt waits from the moment it is admitted until its first step.  When the queue is full, a new
request is turned away at once, with a time to come back that follows from how fast the queue has
been moving.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from chairlift.engine.input_processor import ProcessedInput
from chairlift.events import StepRecord
from chairlift.server.errors import queue_full

RATE_WINDOW_S = 30.0
MAX_RETRY_AFTER_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request for tokens that asks to be let in."""

    key_name: str
    priority: int
    requests: Sequence[ProcessedInput]

    @property
    def num_requests(self) -> int:
        return len(self.requests)

    @property
    def num_tokens(self) -> int:
        return sum(len(request.prompt_token_ids) for request in self.requests)


class AdmissionPolicy(Protocol):
    """Decides who may wait.  Called in the event loop, but for `step_done`."""

    def check_open(self, key_name: str) -> None:
        """Before a request is even read.  Raises `ApiError` if it would be turned away anyhow."""
        ...

    def admit(self, arrival: Arrival) -> None:
        """Let it wait, from now on.  Raises `ApiError`."""
        ...

    def leave(self, arrival: Arrival) -> None:
        """It is over, whether it ever ran or not."""
        ...

    def step_done(self, record: StepRecord) -> None:
        """The engine's thread: some have got on."""
        ...


@contextmanager
def admitted(policy: AdmissionPolicy, arrival: Arrival) -> Iterator[None]:
    """Admit for the time of a request.  Raises `ApiError` if it may not wait."""
    policy.admit(arrival)
    try:
        yield
    finally:
        policy.leave(arrival)


class BoundedQueue:
    """First come, first served, up to a number of prompts and of tokens."""

    def __init__(
        self,
        *,
        max_requests: int,
        max_tokens: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._now = now
        self._lock = threading.Lock()
        self._waiting: dict[str, int] = {}
        """Prompt tokens by request id."""
        self._num_tokens = 0
        self._departures: deque[tuple[float, int]] = deque(maxlen=4096)
        """When prompts got on, and their tokens."""

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_waiting_tokens(self) -> int:
        return self._num_tokens

    def check_open(self, key_name: str) -> None:
        with self._lock:
            self._check(1, 1)

    def admit(self, arrival: Arrival) -> None:
        with self._lock:
            self._check(arrival.num_requests, arrival.num_tokens)
            for request in arrival.requests:
                self._waiting[request.request_id] = len(request.prompt_token_ids)
            self._num_tokens += arrival.num_tokens

    def leave(self, arrival: Arrival) -> None:
        with self._lock:
            for request in arrival.requests:
                self._num_tokens -= self._waiting.pop(request.request_id, 0)

    def step_done(self, record: StepRecord) -> None:
        if not record.admitted or not self._waiting:
            return
        with self._lock:
            now = self._now()
            for child_id in record.admitted:
                num_tokens = self._waiting.pop(child_id.partition("#")[0], None)
                if num_tokens is not None:
                    self._num_tokens -= num_tokens
                    self._departures.append((now, num_tokens))

    def retry_after_s(self) -> int:
        """Seconds until half of the queue should be gone, at the measured rate."""
        return min(MAX_RETRY_AFTER_S, max(1, math.ceil(self._half_life_s())))

    def _check(self, num_requests: int, num_tokens: int) -> None:
        """An empty queue takes anything: what is larger than the queue could never come in."""
        if not self._waiting:
            return
        if len(self._waiting) + num_requests > self._max_requests:
            raise queue_full(
                f"{len(self._waiting)} prompts are waiting and {self._max_requests} may",
                self.retry_after_s(),
            )
        if self._num_tokens + num_tokens > self._max_tokens:
            raise queue_full(
                f"{self._num_tokens} tokens are waiting and {self._max_tokens} may",
                self.retry_after_s(),
            )

    def _half_life_s(self) -> float:
        now = self._now()
        recent = [entry for entry in self._departures if now - entry[0] <= RATE_WINDOW_S]
        if not recent:
            return 1.0 if not self._departures else MAX_RETRY_AFTER_S
        span_s = max(1.0, now - recent[0][0])
        num_requests, num_tokens = len(recent), max(1, sum(entry[1] for entry in recent))
        by_requests = len(self._waiting) / num_requests
        by_tokens = self._num_tokens / num_tokens
        return span_s * max(by_requests, by_tokens) / 2
