"""Where each request stands: it has a seat, is in line for one, or is parked behind a sibling.

Order is by `rank` everywhere: who came first (or has the better priority) is served first and
preempted last, so the first in rank always gets on and everything ends.  Under fair shares who
came first is who was let on first: of those that were not yet, the queue chooses between tenants.
"""

from __future__ import annotations

import bisect
import itertools
from operator import attrgetter

from chairlift.config import SchedulerConfig
from chairlift.core.fair_share import FairShare
from chairlift.core.parked_forks import ParkedForks
from chairlift.core.request import UNSEATED_RANK, Request, RequestStatus
from chairlift.core.request_queue import RankQueue
from chairlift.core.waiting_queue import FairWaitingQueue, WaitingQueue

_rank_of = attrgetter("rank")


class SchedulerQueues:
    """Running, waiting, swapped and parked: each request is in one of them."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.requests: dict[str, Request] = {}
        """All of them, by id."""
        self.running: list[Request] = []
        """In rank order; with static batching, finished members stay until their batch ends."""
        self.waiting = WaitingQueue(config.max_num_batched_tokens)
        self.swapped = RankQueue()
        self.parked = ParkedForks(self.requests)
        self.holders: dict[str, Request] = {}
        """Those in line that kept some blocks when they were preempted."""
        self._num_seats = config.max_num_seqs
        self._by_priority = config.scheduling_policy == "priority"
        self._long_prompt_tokens = config.max_num_batched_tokens
        self._arrivals = itertools.count()
        self._seatings = itertools.count()

    def share_fairly(self, fair_share: FairShare) -> None:
        """From now on new requests are in line by fair shares.  Before any request comes."""
        assert not self.requests
        self.waiting = FairWaitingQueue(self._long_prompt_tokens, fair_share)
        self._arrivals = itertools.count(UNSEATED_RANK)

    # -- questions ---------------------------------------------------------------------------
    @property
    def num_in_line(self) -> int:
        return len(self.waiting) + len(self.swapped)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.parked)

    @property
    def are_seats_taken(self) -> bool:
        return len(self.running) >= self._num_seats

    def first_in_line(self, *, skip_long: bool = False) -> Request | None:
        """The best rank among swapped and waiting requests."""
        waiting = self.waiting.short.peek() if skip_long else self.waiting.peek()
        swapped = self.swapped.peek()
        if waiting is None or swapped is None:
            return waiting or swapped
        return min(swapped, waiting, key=_rank_of)

    def last_holder(self, *, besides: Request | None = None) -> Request | None:
        """Who gives up kept blocks first: the last in rank."""
        holders = (holder for holder in self.holders.values() if holder is not besides)
        return max(holders, key=_rank_of, default=None)

    # -- coming, moving and going ------------------------------------------------------------
    def add(self, request: Request, *, may_park: bool) -> None:
        """A new request comes: into the line, or behind a sibling whose prompt it can share."""
        request.rank = (request.priority if self._by_priority else 0, next(self._arrivals))
        self.requests[request.request_id] = request
        if not (may_park and self.parked.park(request)):
            self.waiting.add(request)

    def seat(self, request: Request) -> None:
        """Out of the line, onto a seat."""
        if request.status is RequestStatus.SWAPPED:
            self.swapped.remove(request.request_id)
        else:
            self.waiting.remove(request.request_id)
        self.holders.pop(request.request_id, None)
        if not request.is_ranked:
            request.rank = (request.rank[0], next(self._seatings))
        request.status = RequestStatus.RUNNING
        bisect.insort(self.running, request, key=_rank_of)

    def take_out(self, request: Request) -> None:
        """Out of where it stands, seat or line; `put_back()` follows, or it has ended."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            request.num_preemptions += 1
            self.unpark_forks_of(request)
        elif request.status is RequestStatus.SWAPPED:
            self.swapped.remove(request.request_id)
        else:
            self.waiting.remove(request.request_id)
        self.holders.pop(request.request_id, None)

    def put_back(self, request: Request) -> None:
        """One that was preempted, into the line where it belongs now."""
        if request.host_blocks:
            request.status = RequestStatus.SWAPPED
            self.swapped.add(request)
        else:
            request.status = RequestStatus.PREEMPTED
            self.waiting.add(request)
        if request.block_table:
            self.holders[request.request_id] = request

    def exchange(self, request: Request, victim: Request) -> None:
        """A waiting request gets the rank of a running one, which is seated next."""
        self.waiting.remove(request.request_id)
        request.rank, victim.rank = victim.rank, (victim.rank[0], next(self._seatings))
        self.waiting.add(request)

    def unpark_forks_of(self, request: Request) -> None:
        """Its prompt is computed, or will not be soon: its forks wait no longer for it."""
        for fork in self.parked.take(request.request_id):
            self.waiting.add(fork)

    def withdraw(self, request: Request) -> None:
        """A request without a seat has ended."""
        if not self.parked.remove(request):
            self.take_out(request)

    # -- checks ------------------------------------------------------------------------------
    def check_integrity(self) -> list[Request]:
        """All requests.  Raises AssertionError unless each stands in one place."""
        standing = [*self.running, *self.waiting, *self.swapped, *self.parked]
        ids = [request.request_id for request in standing]
        assert len(ids) == len(set(ids)), "a request stands in two queues"
        assert set(ids) == set(self.requests), "a request stands in no queue"
        assert all(r.host_blocks for r in self.swapped), "nothing of a swapped request is swapped"
        ranks = [request.rank for request in self.running]
        assert ranks == sorted(ranks), "running is out of order"
        assert set(self.holders) <= set(ids), "one that has gone is said to hold blocks"
        return standing
