"""Who may wait for the engine: a queue bounded by requests, by tokens and by time.

A prompt waits from the moment it is admitted until its first step.  When the queue is full, a new
request is turned away at once, with a time to come back that follows from how fast the queue has
been moving; so is one whose answer would come after its deadline.
With several keys, none can fill the queue.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from chairlift.engine.input_processor import ProcessedInput
from chairlift.events import StepRecord
from chairlift.server.errors import deadline_unreachable, key_queue_full, queue_full
from chairlift.server.queue_rate import MAX_RETRY_AFTER_S, QueueRate
from chairlift.server.queue_room import QueueLimits, Room
from chairlift.server.service_estimate import ServiceEstimate

_MIN_MARGIN, _MAX_MARGIN = 0.4, 0.8
"""Share of the time left that an answer may be expected to take: less where many come late."""
_LATE_FACTOR, _IN_TIME_STEP = 0.97, 0.001
"""What a late answer makes of the margin, and what one in time adds: about 5 % may be late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request for tokens that asks to be let in."""

    key_name: str
    priority: int
    requests: Sequence[ProcessedInput]
    deadline_s: float | None = None
    is_continued: bool = False
    """The rest of what was let in before: it takes the places which that has left."""

    @property
    def num_requests(self) -> int:
        return len(self.requests)

    @property
    def num_tokens(self) -> int:
        return sum(len(request.prompt_token_ids) for request in self.requests)

    @property
    def num_completions(self) -> int:
        return sum(len(request.children) for request in self.requests)

    @property
    def max_tokens(self) -> int:
        """Of its longest completion."""
        return max(child.max_tokens for request in self.requests for child in request.children)


class AdmissionPolicy(Protocol):
    """Decides who may wait.  Called in the event loop, but for `step_done`."""

    def check_open(self, key_name: str) -> None:
        """Before a request is even read.  Raises `ApiError` if it would be turned away anyhow."""
        ...

    def check_time(self, key_name: str, deadline_s: float | None) -> None:
        """Before its text is looked at.  Raises `ApiError` if no answer can be there in time."""
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


@dataclass(slots=True)
class _Line:
    """What a key has waiting, and in all."""

    num_requests: int = 0
    num_tokens: int = 0
    num_completions: int = 0
    """In line or in the batch."""


class BoundedQueue:
    """Counts who waits.  With weights of several keys it is shared between them."""

    def __init__(
        self,
        limits: QueueLimits,
        *,
        weights: Mapping[str, int] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._weights = dict(weights or {})
        self._now = now
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[str, int]] = {}
        """Key and prompt tokens by request id."""
        self._lines: dict[str, _Line] = {}
        """Of keys with something in line or in the batch."""
        self._inside: set[int] = set()
        """Arrivals that have not left."""
        self._num_tokens = 0
        self._rate = QueueRate()
        self._estimate = ServiceEstimate()
        self._margin = _MAX_MARGIN

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_waiting_tokens(self) -> int:
        return self._num_tokens

    def num_waiting_of(self, key_name: str) -> int:
        """Prompts that one key has in line."""
        line = self._lines.get(key_name)
        return 0 if line is None else line.num_requests

    def check_open(self, key_name: str) -> None:
        with self._lock:
            self._check_room(key_name, 1, 1)

    def check_time(self, key_name: str, deadline_s: float | None) -> None:
        with self._lock:
            self._check_time(key_name, deadline_s)

    def admit(self, arrival: Arrival) -> None:
        key_name = arrival.key_name
        with self._lock:
            if not arrival.is_continued:
                self._check_room(key_name, arrival.num_requests, arrival.num_tokens)
                self._check_time(key_name, arrival.deadline_s, arrival)
            for request in arrival.requests:
                self._waiting[request.request_id] = (key_name, len(request.prompt_token_ids))
            self._inside.add(id(arrival))
            line = self._lines.setdefault(key_name, _Line())
            line.num_requests += arrival.num_requests
            line.num_tokens += arrival.num_tokens
            line.num_completions += arrival.num_completions
            self._num_tokens += arrival.num_tokens

    def leave(self, arrival: Arrival) -> None:
        with self._lock:
            if id(arrival) not in self._inside:
                return
            self._inside.discard(id(arrival))
            for request in arrival.requests:
                self._take(request.request_id)
            line = self._lines[arrival.key_name]
            line.num_completions -= arrival.num_completions
            if not line.num_completions:
                del self._lines[arrival.key_name]
            if arrival.deadline_s is not None:
                self._book_end(is_late=self._now() >= arrival.deadline_s)

    def step_done(self, record: StepRecord) -> None:
        self._estimate.step_done(record)
        if not record.admitted or not self._waiting:
            return
        with self._lock:
            now = self._now()
            for child_id in record.admitted:
                num_tokens = self._take(child_id.partition("#")[0])
                if num_tokens is not None:
                    self._rate.departed(now, num_tokens)

    def retry_after_s(self) -> int:
        """Seconds until half of the queue should be gone, at the measured rate."""
        return self._rate.retry_after_s(self._now(), len(self._waiting), self._num_tokens)

    def _take(self, request_id: str) -> int | None:
        """Out of the line; its tokens, or None if it was not in line."""
        key_name, num_tokens = self._waiting.pop(request_id, ("", None))
        if num_tokens is not None:
            line = self._lines[key_name]
            line.num_requests -= 1
            line.num_tokens -= num_tokens
            self._num_tokens -= num_tokens
        return num_tokens

    # -- room --------------------------------------------------------------------------------
    def _check_room(self, key_name: str, num_requests: int, num_tokens: int) -> None:
        """An empty queue takes anything: what is larger than the queue could never come in."""
        if not self._waiting:
            return
        line = self._lines.get(key_name, _Line())
        for room in self._rooms(line, num_requests, num_tokens):
            refusal = room.key_refusal() if line.num_requests else None
            if refusal is not None:
                retry_after_s = self._rate.retry_after_s(
                    self._now(), line.num_requests, line.num_tokens, share=self._share(key_name)
                )
                raise key_queue_full(refusal, retry_after_s)
            refusal = room.refusal(has_line=line.num_requests > 0)
            if refusal is not None:
                raise queue_full(refusal, self.retry_after_s())

    def _rooms(self, line: _Line, num_requests: int, num_tokens: int) -> tuple[Room, Room]:
        limits, lines = self._limits, self._lines.values()
        return (
            Room(
                unit="prompts",
                num_by_key=[each.num_requests for each in lines],
                num_of_key=line.num_requests,
                num_new=num_requests,
                maximum=limits.max_requests,
                maximum_per_key=limits.max_requests_per_key,
                is_shared=self._is_shared,
            ),
            Room(
                unit="tokens",
                num_by_key=[each.num_tokens for each in lines],
                num_of_key=line.num_tokens,
                num_new=num_tokens,
                maximum=limits.max_tokens,
                maximum_per_key=limits.max_tokens_per_key,
                is_shared=self._is_shared,
            ),
        )

    # -- time --------------------------------------------------------------------------------
    def _check_time(
        self,
        key_name: str,
        deadline_s: float | None,
        arrival: Arrival | None = None,
    ) -> None:
        """Compared with what the key has under way, as if all others with work did the same."""
        line = self._lines.get(key_name)
        if deadline_s is None or line is None:
            return
        num_new = 1 if arrival is None else arrival.num_completions
        share = self._share(key_name)
        needed_s = self._estimate.seconds(
            max_tokens=None if arrival is None else arrival.max_tokens,
            num_prompt_tokens=0 if arrival is None else arrival.num_tokens / arrival.num_requests,
            num_running=(line.num_completions - line.num_requests + num_new) / share,
            num_waiting=line.num_requests / share,
        )
        left_s = deadline_s - self._now()
        if needed_s > self._margin * left_s > 0:
            raise deadline_unreachable(
                f"at the measured rate the answer would take about {needed_s:.1f} s, and"
                f" {left_s:.1f} s are left",
                min(MAX_RETRY_AFTER_S, math.ceil(needed_s - self._margin * left_s)),
            )

    def _book_end(self, *, is_late: bool) -> None:
        """Estimates are wrong where the machine is uneven: learn by how much."""
        if is_late:
            self._margin = max(_MIN_MARGIN, self._margin * _LATE_FACTOR)
        else:
            self._margin = min(_MAX_MARGIN, self._margin + _IN_TIME_STEP)

    @property
    def _is_shared(self) -> bool:
        return len(self._weights) > 1

    def _share(self, key_name: str) -> float:
        """Of the engine that a key gets while all keys that have work now have it."""
        if not self._is_shared:
            return 1.0
        mine = self._weights.get(key_name, 1)
        others = (self._weights.get(name, 1) for name in self._lines if name != key_name)
        return mine / (mine + sum(others))
