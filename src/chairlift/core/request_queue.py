"""Requests in line, in the order of their `rank`, removable from the middle in O(1).

Two lanes: prompts too long for one step's budget stand apart, so that small requests need not wait
until a large one has been admitted.  Which lane goes next is the scheduler's decision.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from chairlift.core.request import Request

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


class WaitingQueue:
    """The `waiting` queue: a lane of short prompts and one of long ones."""

    def __init__(self, long_prompt_tokens: int) -> None:
        self._long_prompt_tokens = long_prompt_tokens
        self.short = RequestQueue()
        self.long = RequestQueue()

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
        heads = [head for lane in (self.short, self.long) if (head := lane.peek()) is not None]
        return min(heads, key=lambda request: request.rank, default=None)
