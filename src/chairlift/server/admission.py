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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from chairlift.events import StepRecord
from chairlift.server.arrival import Arrival
from chairlift.server.errors import deadline_unreachable, key_queue_full, queue_full
from chairlift.server.queue_rate import MAX_RETRY_AFTER_S, QueueRate
from chairlift.server.queue_room import QueueLimits, Room
from chairlift.server.service_estimate import ServiceEstimate, WorkAhead
from chairlift.server.waiting_line import Waiting, WaitingLine

_MIN_MARGIN, _MAX_MARGIN = 0.4, 0.8
"""Share of the time left that an answer may be expected to take: less where many come late."""
_LATE_FACTOR, _IN_TIME_STEP = 0.97, 0.001
"""What a late answer makes of the margin, and what one in time adds: about 5 % may be late."""


class AdmissionPolicy(Protocol):
    """Decides who may wait.  Called in the event loop, but for `step_done`."""

    def check_open(self, key_name: str) -> None:
        """Before a request is even read.  Raises `ApiError` if it would be turned away anyhow."""
        ...

    def check_time(
        self, key_name: str, deadline_s: float | None, *, wants_vectors: bool = False
    ) -> None:
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
        self._waiting: dict[str, Waiting] = {}
        """By request id."""
        self._vectors: set[str] = set()
        """Ids of requests for vectors, in line or in the batch."""
        self._lines: dict[str, WaitingLine] = {}
        """Of keys with something in line or in the batch."""
        self._inside: set[int] = set()
        """Arrivals that have not left."""
        self._num_tokens = 0
        self._rates = {is_vector: QueueRate() for is_vector in (False, True)}
        """A thousand short texts that got on say nothing about how fast answers do."""
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

    def check_time(
        self, key_name: str, deadline_s: float | None, *, wants_vectors: bool = False
    ) -> None:
        with self._lock:
            self._check_time(key_name, deadline_s, wants_vectors=wants_vectors)

    def admit(self, arrival: Arrival) -> None:
        key_name = arrival.key_name
        with self._lock:
            if not arrival.is_continued:
                self._check_room(key_name, arrival.num_requests, arrival.num_tokens)
                self._check_time(
                    key_name, arrival.deadline_s, arrival, wants_vectors=arrival.wants_vectors
                )
            for request in arrival.requests:
                self._waiting[request.request_id] = Waiting(
                    key_name, len(request.prompt_token_ids), arrival.wants_vectors
                )
            if arrival.wants_vectors:
                self._vectors.update(request.request_id for request in arrival.requests)
            self._inside.add(id(arrival))
            self._lines.setdefault(key_name, WaitingLine()).enter(arrival)
            self._num_tokens += arrival.num_tokens

    def leave(self, arrival: Arrival) -> None:
        with self._lock:
            if id(arrival) not in self._inside:
                return
            self._inside.discard(id(arrival))
            for request in arrival.requests:
                self._take(request.request_id)
                self._vectors.discard(request.request_id)
            line = self._lines[arrival.key_name]
            line.leave(arrival)
            if not line.num_completions:
                del self._lines[arrival.key_name]
            if arrival.deadline_s is not None:
                self._book_end(is_late=self._now() >= arrival.deadline_s)

    def step_done(self, record: StepRecord) -> None:
        self._estimate.step_done(record, self._vectors.__contains__)
        if not record.admitted or not self._waiting:
            return
        with self._lock:
            now = self._now()
            for child_id in record.admitted:
                waiting = self._take(child_id.partition("#")[0])
                if waiting is not None:
                    self._rates[waiting.is_vector].departed(now, waiting.num_tokens)

    def retry_after_s(self) -> int:
        """Seconds until half of the queue should be gone, at the measured rates."""
        return self._half_life_s(self._lines.values())

    def _half_life_s(self, lines: Iterable[WaitingLine], *, share: float = 1.0) -> int:
        """Of what waits in some lines, where these get a share of the engine."""
        now, each, worst_s = self._now(), list(lines), 1
        for is_vector, rate in self._rates.items():
            waiting = [line.waiting(is_vector=is_vector) for line in each]
            num_requests = sum(number for number, _ in waiting)
            num_tokens = sum(tokens for _, tokens in waiting)
            if num_requests:
                worst_s = max(
                    worst_s, rate.retry_after_s(now, num_requests, num_tokens, share=share)
                )
        return worst_s

    def _take(self, request_id: str) -> Waiting | None:
        """Out of the line; None if it was not in line."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            self._lines[waiting.key_name].get_on(waiting)
            self._num_tokens -= waiting.num_tokens
        return waiting

    # -- room --------------------------------------------------------------------------------
    def _check_room(self, key_name: str, num_requests: int, num_tokens: int) -> None:
        """An empty queue takes anything: what is larger than the queue could never come in."""
        if not self._waiting:
            return
        line = self._lines.get(key_name, WaitingLine())
        for room in self._rooms(line, num_requests, num_tokens):
            refusal = room.key_refusal() if line.num_requests else None
            if refusal is not None:
                retry_after_s = self._half_life_s([line], share=self._share(key_name))
                raise key_queue_full(refusal, retry_after_s)
            refusal = room.refusal(has_line=line.num_requests > 0)
            if refusal is not None:
                raise queue_full(refusal, self.retry_after_s())

    def _rooms(self, line: WaitingLine, num_requests: int, num_tokens: int) -> tuple[Room, Room]:
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
        *,
        wants_vectors: bool,
    ) -> None:
        """Compared with what the key has under way, as if all others with work did the same."""
        line = self._lines.get(key_name)
        if deadline_s is None or line is None:
            return
        needed_s = self._needed_s(line, self._share(key_name), arrival, wants_vectors=wants_vectors)
        left_s = deadline_s - self._now()
        if needed_s > self._margin * left_s > 0:
            raise deadline_unreachable(
                f"at the measured rate the answer would take about {needed_s:.1f} s, and"
                f" {left_s:.1f} s are left",
                min(MAX_RETRY_AFTER_S, math.ceil(needed_s - self._margin * left_s)),
            )

    def _needed_s(
        self, line: WaitingLine, share: float, arrival: Arrival | None, *, wants_vectors: bool
    ) -> float:
        """Until an arrival, or one of which nothing is known yet, would be answered."""
        num_new = 0 if wants_vectors else 1 if arrival is None else arrival.num_completions
        ahead = WorkAhead(
            num_running=(line.num_running_answers + num_new) / share,
            num_waiting=line.num_waiting_answers / share,
            num_vector_tokens=line.num_waiting_vector_tokens / share,
        )
        if wants_vectors:
            num_tokens = 0 if arrival is None else arrival.num_tokens / share
            return self._estimate.vectors_s(num_tokens=num_tokens, ahead=ahead)
        return self._estimate.answer_s(
            max_tokens=None if arrival is None else arrival.max_tokens,
            num_prompt_tokens=0 if arrival is None else arrival.num_tokens / arrival.num_requests,
            ahead=ahead,
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
