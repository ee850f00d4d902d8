"""When requests must be over: a heap of (deadline, request id), cleaned as it is looked at."""

from __future__ import annotations

import heapq


class Deadlines:
    """Deadlines of live requests, on the engine's clock.  O(log n) each."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._by_request: dict[str, float] = {}

    def add(self, request_id: str, deadline_s: float) -> None:
        self._by_request[request_id] = deadline_s
        heapq.heappush(self._heap, (deadline_s, request_id))

    def remove(self, request_id: str) -> None:
        """Forget a request that is over; one without a deadline is fine."""
        self._by_request.pop(request_id, None)

    def next_s(self) -> float | None:
        """The earliest deadline of a live request."""
        while self._heap:
            deadline_s, request_id = self._heap[0]
            if self._by_request.get(request_id) == deadline_s:
                return deadline_s
            heapq.heappop(self._heap)
        return None

    def take_expired(self, now: float) -> list[str]:
        """Requests whose time is up, each once."""
        expired = []
        while (deadline_s := self.next_s()) is not None and deadline_s <= now:
            _, request_id = heapq.heappop(self._heap)
            del self._by_request[request_id]
            expired.append(request_id)
        return expired
