"""What has happened to requests and was not told yet."""

from __future__ import annotations

from chairlift.core.request import Request
from chairlift.core.scheduler_output import RequestUpdate


class RequestUpdates:
    """One update for each request that has news."""

    def __init__(self) -> None:
        self._updates: dict[str, RequestUpdate] = {}

    def __len__(self) -> int:
        return len(self._updates)

    def of(self, request: Request) -> RequestUpdate:
        """The one to write news of this request into."""
        update = self._updates.get(request.request_id)
        if update is None:
            update = self._updates[request.request_id] = RequestUpdate(
                request_id=request.request_id, num_cached_tokens=request.num_cached_tokens
            )
        return update

    def take(self) -> list[RequestUpdate]:
        """All of them, in the order in which they began."""
        updates, self._updates = self._updates, {}
        return list(updates.values())

    def take_one(self, request_id: str) -> RequestUpdate | None:
        return self._updates.pop(request_id, None)
