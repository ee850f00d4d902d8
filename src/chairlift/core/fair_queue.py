"""Requests in the order of fair shares between tenants.

Within a class of priority those come first that have lost their seat, then new ones, the tenant
with the smallest counter first and each tenant's in the order of their arrival.
"""

from __future__ import annotations

from chairlift.core.fair_share import FairShare
from chairlift.core.lazy_heap import LazyHeap
from chairlift.core.request import Request
from chairlift.core.request_queue import RankQueue, RequestQueue

Order = tuple[int, int, int]
"""Class of priority, counter of the tenant, arrival."""
Line = tuple[int, str]
"""Class of priority, tenant."""


class FairQueue(RequestQueue):
    """A line for each class and tenant, and a heap of the lines.

    O(log n) to add, amortised O(log n) to look and remove.
    """

    def __init__(self, fair_share: FairShare) -> None:
        super().__init__()
        self._fair_share = fair_share
        self._ranked = RankQueue()
        """Those that were let on before."""
        self._lines: dict[Line, RankQueue] = {}
        self._heap = LazyHeap(self._lines, self._order_of)
        """Counters only grow: what changes otherwise is pushed."""

    def add(self, request: Request) -> None:
        super().add(request)
        if request.is_ranked:
            self._ranked.add(request)
            return
        self._fair_share.joined(request.tenant)
        name = _line_of(request)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = RankQueue()
        line.add(request)
        if line.peek() is request:  # a fork that was parked may have come before the others
            self._heap.push(name)

    def remove(self, request_id: str) -> Request:
        request = super().remove(request_id)
        if request.is_ranked:
            return self._ranked.remove(request_id)
        name = _line_of(request)
        line = self._lines[name]
        line.remove(request_id)
        if not len(line):
            del self._lines[name]
        self._fair_share.left(request.tenant)
        return request

    def peek(self) -> Request | None:
        """The first in line."""
        new, ranked = self.peek_new(), self._ranked.peek()
        if new is None or ranked is None:
            return new or ranked
        return ranked if ranked.rank[0] <= new.rank[0] else new

    def peek_new(self) -> Request | None:
        """The first of those that were never let on."""
        first = self._heap.first()
        return None if first is None else self._lines[first].peek()

    def _order_of(self, name: Line) -> Order:
        first = self._lines[name].peek()
        assert first is not None
        return fair_order(first, self._fair_share)


def fair_order(request: Request, fair_share: FairShare) -> Order:
    """Where a request stands, between tenants: smaller goes first."""
    if request.is_ranked:
        return request.rank[0], -1, request.rank[1]
    return request.rank[0], fair_share.counter(request.tenant), request.rank[1]


def _line_of(request: Request) -> Line:
    return request.rank[0], request.tenant
