"""Who may get on in another one's place: a better class of priority, a tenant kept out for long."""

from __future__ import annotations

from collections import Counter

from chairlift.core.fair_share import FairShare
from chairlift.core.kv_cache_manager import KVCacheManager
from chairlift.core.preemptor import Preemptor
from chairlift.core.request import Request
from chairlift.core.scheduler_output import SchedulerOutput
from chairlift.core.scheduler_queues import SchedulerQueues
from chairlift.core.waiting_queue import FairWaitingQueue

_PATIENCE_STEPS = 64
"""A tenant without a seat waits so long for one to become free before another one's is taken."""


class SeatClaims:
    """Takes seats and memory back for the next in line, where it has a claim to them."""

    def __init__(
        self,
        queues: SchedulerQueues,
        kv: KVCacheManager,
        preemptor: Preemptor,
        *,
        by_priority: bool,
        while_running: bool,
    ) -> None:
        """`while_running`: others may get on although a batch is running."""
        self.fair_share: FairShare | None = None
        """By which tenants have claims, if they share fairly."""
        self.patience_steps = _PATIENCE_STEPS
        self._queues = queues
        self._kv = kv
        self._preemptor = preemptor
        self._by_priority = by_priority
        self._while_running = while_running
        self._kept_out_since: dict[str, int] = {}
        """Step in which a tenant without a seat was first seen at the head of the line."""

    def settle(self, output: SchedulerOutput) -> None:
        """Make room for those that have a claim, before the step is filled."""
        if not self._while_running:
            return
        if self._by_priority:
            self._claim_for_priority(output)
        if self.fair_share is not None:
            self._claim_for_fairness(output, self.fair_share)

    def note_seated(self, request: Request) -> None:
        """It has got on: its tenant is not kept out."""
        self._kept_out_since.pop(request.tenant, None)

    def _claim_for_priority(self, output: SchedulerOutput) -> None:
        """A request of a better class gets the place of the last ones of worse classes."""
        request = self._queues.first_in_line()
        if request is None:
            return
        while self._is_kept_out(request):
            victim = self._last_of_worse_class(request)
            if victim is None or self._must_drain(output):
                return
            self._take_place(request, victim, output, "priority of")

    def _claim_for_fairness(self, output: SchedulerOutput, fair_share: FairShare) -> None:
        """A tenant that has been kept out for long gets the place of one that has several.

        Places are changed: the new request is seated and ranked in the other one's stead, which is
        the next to get on.
        """
        request = self._first_kept_out_for_long(output.step_id)
        if request is None:
            return
        while self._is_kept_out(request):
            victim = self._last_of_favoured_tenant(request, fair_share)
            if victim is None or self._must_drain(output):
                return
            self._queues.exchange(request, victim)
            self._take_place(request, victim, output, "fair share of")

    def _take_place(
        self, request: Request, victim: Request, output: SchedulerOutput, claim: str
    ) -> None:
        num_blocks = max(0, self._num_missing_blocks(request))
        self._preemptor.take_back(victim, num_blocks, output, f"{claim} {request.request_id}")

    def _must_drain(self, output: SchedulerOutput) -> bool:
        """Nothing can be taken from a step in flight: it is read first."""
        if self._kv.num_steps_in_flight:
            output.needs_drain = True
        return output.needs_drain

    def _is_kept_out(self, request: Request) -> bool:
        return self._queues.are_seats_taken or self._num_missing_blocks(request) > 0

    def _num_missing_blocks(self, request: Request) -> int:
        """Blocks short before a request gets on, one for each running request included."""
        needed = self._kv.num_blocks_for(request.num_tokens) - len(request.block_table)
        return needed + len(self._queues.running) - self._kv.num_free_blocks

    def _last_of_worse_class(self, request: Request) -> Request | None:
        """The last in rank of those that kept blocks, if these are needed, or of the running."""
        running = self._queues.running
        last = running[-1] if running else None
        holder = self._queues.last_holder() if self._num_missing_blocks(request) > 0 else None
        for victim in (holder, last):
            if victim is not None and victim.is_of_worse_class_than(request):
                return victim
        return None

    def _first_kept_out_for_long(self, step_id: int) -> Request | None:
        """The next to be let on, if its tenant has had no seat for long."""
        assert isinstance(self._queues.waiting, FairWaitingQueue)
        request = self._queues.waiting.peek_new()
        if request is None:
            return None
        since = self._kept_out_since.setdefault(request.tenant, step_id)
        if step_id - since < self.patience_steps:
            return None
        if any(running.tenant == request.tenant for running in self._queues.running):
            del self._kept_out_since[request.tenant]
            return None
        return request

    def _last_of_favoured_tenant(self, request: Request, fair_share: FairShare) -> Request | None:
        """The last in rank of tenants that were served more and have several seats."""
        running = self._queues.running
        num_seats = Counter(rider.tenant for rider in running if not rider.is_finished)
        counter = fair_share.counter(request.tenant)
        for victim in reversed(running):
            if (
                not victim.is_finished
                and num_seats[victim.tenant] > 1
                and fair_share.counter(victim.tenant) > counter
                and not request.is_of_worse_class_than(victim)
            ):
                return victim
        return None
