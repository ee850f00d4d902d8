"""Requests in line, removable from the middle in O(1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from chairlift.core.lazy_heap import LazyHeap
from chairlift.core.request import Request


class RequestQueue(ABC):
    """Who stands in a line; the subclass says who is first."""

    def __init__(self) -> None:
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

    def remove(self, request_id: str) -> Request:
        return self._requests.pop(request_id)

    @abstractmethod
    def peek(self) -> Request | None:
        """The first in line."""


class RankQueue(RequestQueue):
    """In the order of `rank`.  O(log n) to add, amortised O(log n) to look."""

    def __init__(self) -> None:
        super().__init__()
        self._heap = LazyHeap(self._requests, lambda request_id: self._requests[request_id].rank)

    def add(self, request: Request) -> None:
        super().add(request)
        self._heap.push(request.request_id)

    def peek(self) -> Request | None:
        first = self._heap.first()
        return None if first is None else self._requests[first]
