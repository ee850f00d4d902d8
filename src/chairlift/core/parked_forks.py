"""Forks that wait until a sibling has computed the prompt they share."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from chairlift.core.request import Request, RequestStatus


class ParkedForks:
    """Who waits behind whom, and whose blocks a fork may share."""

    def __init__(self, requests: Mapping[str, Request]) -> None:
        """`requests`: all that there are, by id."""
        self._requests = requests
        self._forks_of: dict[str, list[Request]] = {}
        """By the sibling's id."""

    def __len__(self) -> int:
        return sum(len(forks) for forks in self._forks_of.values())

    def __iter__(self) -> Iterator[Request]:
        return itertools.chain.from_iterable(self._forks_of.values())

    def park(self, request: Request) -> bool:
        """Let a fork wait; False where computing the prompt again is as quick."""
        sibling = self._sibling(request)
        if sibling is None or not _is_in_first_run(sibling) or sibling.num_output_tokens:
            return False
        self._forks_of.setdefault(sibling.request_id, []).append(request)
        return True

    def take(self, request_id: str) -> Iterable[Request]:
        """Those that waited for this sibling, which has nothing more to wait for."""
        return self._forks_of.pop(request_id, ())

    def remove(self, request: Request) -> bool:
        """A fork has ended; False if it was not parked."""
        for sibling_id, forks in self._forks_of.items():
            if request in forks:
                forks.remove(request)
                if not forks:
                    del self._forks_of[sibling_id]
                return True
        return False

    def sibling_to_share(self, request: Request) -> Request | None:
        """The sibling whose computed prompt `request` may share, block by block."""
        sibling = self._sibling(request)
        if sibling is None or sibling.status is not RequestStatus.RUNNING:
            return None
        if sibling.num_output_tokens == 0:
            return None  # the step that computes its prompt has not been read
        return sibling if sibling.num_preemptions == 0 and request.num_preemptions == 0 else None

    def _sibling(self, request: Request) -> Request | None:
        return self._requests.get(request.fork_of) if request.fork_of is not None else None


def _is_in_first_run(request: Request) -> bool:
    return request.num_preemptions == 0 and not request.is_finished
