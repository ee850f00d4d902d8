"""The `waiting` queue, in two lanes.

Prompts too long for one step's budget stand apart, so that small requests need not wait until a
large one has been admitted.  Which lane goes next is the scheduler's decision.
"""

from __future__ import annotations

from collections.abc import Iterator

from chairlift.core.fair_queue import FairQueue, fair_order
from chairlift.core.fair_share import FairShare
from chairlift.core.request import Request
from chairlift.core.request_queue import RankQueue, RequestQueue


class WaitingQueue:
    """A lane of short prompts and one of long ones."""

    def __init__(self, long_prompt_tokens: int) -> None:
        self._long_prompt_tokens = long_prompt_tokens
        self.short: RequestQueue = RankQueue()
        self.long: RequestQueue = RankQueue()

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
        return self._first(self.short.peek(), self.long.peek())

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
