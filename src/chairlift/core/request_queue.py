"""Requests in line, removable from the middle in O(1).

They stand in the order of their `rank` or, between tenants, of their fair shares: within a class
of priority those come first that have lost their seat, then new ones, the tenant with the smallest
counter first and each tenant's in the order of their arrival.

Two lanes: prompts too long for one step's budget stand apart, so that small requests need not wait
until a large one has been admitted.  Which lane goes next is the scheduler's decision.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from chairlift.core.fair_share import FairShare
from chairlift.core.request import Request

Order = tuple[int, int, int]
"""Class of priority, counter of the tenant, arrival."""
Line = tuple[int, str]
"""Class of priority, tenant."""

_MIN_HEAP_SIZE = 64
"""The heap is built anew when removed entries outnumber the others by more than this."""


class RequestQueue:
    """A heap by rank with lazy removal.  O(log n) to add, amortised O(1) to look and remove."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], str]] = []
        self._requests: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def __iter__(self) -> Iterator[Request]:
        """In no particular order."""
        return iter(self._requests.values())

    def add(self, request: Request) -> None:
        assert request.request_id not in self._requests, request.request_id
        self._requests[request.request_id] = request
        heapq.heappush(self._heap, (request.rank, request.request_id))

    def remove(self, request_id: str) -> None:
        del self._requests[request_id]
        if len(self._heap) > 2 * len(self._requests) + _MIN_HEAP_SIZE:
            self._heap = [(request.rank, name) for name, request in self._requests.items()]
            heapq.heapify(self._heap)

    def peek(self) -> Request | None:
        """The first in line."""
        while self._heap:
            rank, request_id = self._heap[0]
            request = self._requests.get(request_id)
            if request is not None and request.rank == rank:
                return request
            heapq.heappop(self._heap)
        return None


class FairQueue:
    """A line for each class and tenant, and a heap of the lines.

    O(log n) to add, amortised O(log n) to look and remove.  Counters only grow, so an entry of
    the heap that is out of date stands too far in front, and is put right when it gets there.
    """

    def __init__(self, fair_share: FairShare) -> None:
        self._fair_share = fair_share
        self._requests: dict[str, Request] = {}
        self._ranked = RequestQueue()
        """Those that were let on before."""
        self._lines: dict[Line, RequestQueue] = {}
        self._heap: list[tuple[Order, Line]] = []
        self._in_heap: set[Line] = set()
        """Each line stands there once, also for a while after it has become empty."""

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def __iter__(self) -> Iterator[Request]:
        """In no particular order."""
        return iter(self._requests.values())

    def add(self, request: Request) -> None:
        assert request.request_id not in self._requests, request.request_id
        self._requests[request.request_id] = request
        if request.is_ranked:
            self._ranked.add(request)
            return
        self._fair_share.joined(request.tenant)
        name = (request.rank[0], request.tenant)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = RequestQueue()
        line.add(request)
        if name not in self._in_heap:
            self._in_heap.add(name)
            heapq.heappush(self._heap, (fair_order(request, self._fair_share), name))

    def remove(self, request_id: str) -> None:
        request = self._requests.pop(request_id)
        if request.is_ranked:
            self._ranked.remove(request_id)
            return
        name = (request.rank[0], request.tenant)
        line = self._lines[name]
        line.remove(request_id)
        if not len(line):
            del self._lines[name]
        self._fair_share.left(request.tenant)
        if len(self._heap) > 2 * len(self._lines) + _MIN_HEAP_SIZE:
            self._heap = [(self._order_of(each), name) for name, each in self._lines.items()]
            heapq.heapify(self._heap)
            self._in_heap = set(self._lines)

    def peek(self) -> Request | None:
        """The first in line."""
        new, ranked = self.peek_new(), self._ranked.peek()
        if new is None or ranked is None:
            return new or ranked
        return ranked if ranked.rank[0] <= new.rank[0] else new

    def peek_new(self) -> Request | None:
        """The first of those that were never let on."""
        while self._heap:
            order, name = self._heap[0]
            line = self._lines.get(name)
            if line is None:
                heapq.heappop(self._heap)
                self._in_heap.discard(name)
                continue
            actual = self._order_of(line)
            if order == actual:
                return line.peek()
            heapq.heapreplace(self._heap, (actual, name))
        return None

    def _order_of(self, line: RequestQueue) -> Order:
        first = line.peek()
        assert first is not None
        return fair_order(first, self._fair_share)


def fair_order(request: Request, fair_share: FairShare) -> Order:
    """Where a request stands, between tenants: smaller goes first."""
    if request.is_ranked:
        return request.rank[0], -1, request.rank[1]
    return request.rank[0], fair_share.counter(request.tenant), request.rank[1]


class WaitingQueue:
    """The `waiting` queue: a lane of short prompts and one of long ones."""

    def __init__(self, long_prompt_tokens: int) -> None:
        self._long_prompt_tokens = long_prompt_tokens
        self.short: RequestQueue | FairQueue = RequestQueue()
        self.long: RequestQueue | FairQueue = RequestQueue()

    def __len__(self) -> int:
        return len(self.short) + len(self.long)

    def __iter__(self) -> Iterator[Request]:
        yield from self.short
        yield from self.long

    def is_long(self, request: Request) -> bool:
        """More tokens to compute than one step's budget."""
        return request.num_remaining_tokens > self._long_prompt_tokens

    def add(self, request: Request) -> None:
        (self.long if self.is_long(request) else self.short).add(request)

    def remove(self, request_id: str) -> bool:
        """Take a request out wherever it stands; False if it is not here."""
        for lane in (self.short, self.long):
            if request_id in lane:
                lane.remove(request_id)
                return True
        return False

    def peek(self) -> Request | None:
        """The first of both lanes."""
        short, long = self.short.peek(), self.long.peek()
        return self._first(short, long)

    def _first(self, short: Request | None, long: Request | None) -> Request | None:
        if short is None or long is None:
            return short or long
        return short if short.rank < long.rank else long


class FairWaitingQueue(WaitingQueue):
    """The same, in the order of fair shares."""

    def __init__(self, long_prompt_tokens: int, fair_share: FairShare) -> None:
        super().__init__(long_prompt_tokens)
        self._fair_share = fair_share
        self.short: FairQueue = FairQueue(fair_share)
        self.long: FairQueue = FairQueue(fair_share)

    def peek_new(self) -> Request | None:
        """The first of those that were never let on."""
        return self._first(self.short.peek_new(), self.long.peek_new())

    def _first(self, short: Request | None, long: Request | None) -> Request | None:
        if short is None or long is None:
            return short or long
        orders = fair_order(short, self._fair_share), fair_order(long, self._fair_share)
        return short if orders[0] < orders[1] else long
