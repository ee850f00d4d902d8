"""Getting on: who is let on in a step, until what keeps the next one out."""

from __future__ import annotations

from chairlift.core.batching_policy import BatchingPolicy
from chairlift.core.departures import Departures
from chairlift.core.kv_cache_manager import KVCacheManager
from chairlift.core.preemptor import Preemptor
from chairlift.core.request import Request, RequestStatus
from chairlift.core.scheduler_output import SchedulerOutput
from chairlift.core.scheduler_queues import SchedulerQueues
from chairlift.core.seat_claims import SeatClaims
from chairlift.core.step_builder import StepBuilder
from chairlift.events import AdmissionLimit

_MAX_OVERTAKES = 64
"""Short requests that may pass a long one which memory keeps out, before it must be next."""


class Admission:
    """Lets requests on while the policy, the seats, the budget and memory allow it."""

    def __init__(
        self,
        queues: SchedulerQueues,
        kv: KVCacheManager,
        batching: BatchingPolicy,
        builder: StepBuilder,
        preemptor: Preemptor,
        seat_claims: SeatClaims,
        departures: Departures,
    ) -> None:
        self._queues = queues
        self._kv = kv
        self._batching = batching
        self._builder = builder
        self._preemptor = preemptor
        self._seat_claims = seat_claims
        self._departures = departures
        self._num_overtakes = 0

    def admit(
        self, output: SchedulerOutput, budget: int, now: float, longest: Request | None
    ) -> int:
        """Let requests on; returns the budget left, and leaves in `output.limit` what ended it.

        `longest` is the long prompt in progress, which keeps other long ones of a worse rank out.
        """
        first = self._queues.first_in_line()
        if first is None:
            return budget
        quota = self._batching.num_admissible(
            now=now,
            num_waiting=self._queues.num_in_line,
            oldest_arrival=first.arrival_time,
            num_running=len(self._queues.running),
        )
        next_long = self._queues.waiting.long.peek()
        overtaken: AdmissionLimit | None = None
        if longest is not None and next_long is not None and longest.rank < next_long.rank:
            overtaken = "long_prefill"
        while True:
            request = self._queues.first_in_line(skip_long=overtaken is not None)
            output.limit = self._limit(request, output, quota, budget, overtaken)
            if request is None or output.limit != "arrivals":
                break
            is_long = self._queues.waiting.is_long(request)
            if not self._give_blocks(request, output):
                if request.is_finished:
                    continue
                if is_long and overtaken is None and self._may_be_overtaken(request):
                    overtaken = "blocks"
                    continue
                output.limit = "blocks"
                break
            if overtaken == "blocks":
                self._num_overtakes += 1
            elif is_long:
                self._num_overtakes = 0
                overtaken = "long_prefill"
            self._seat(request, output)
            quota -= 1
            budget -= self._builder.add_chunk(output, request, budget)
        self._batching.step_admitted(len(output.admitted), output.limit)
        return budget

    def _limit(
        self,
        request: Request | None,
        output: SchedulerOutput,
        quota: int,
        budget: int,
        overtaken: AdmissionLimit | None,
    ) -> AdmissionLimit:
        """What forbids admitting `request`, "arrivals" if nothing does."""
        waiting = self._queues.waiting
        if request is None:
            return overtaken if overtaken is not None and len(waiting) else "arrivals"
        if overtaken is not None:
            passed = waiting.long.peek()
            if passed is not None and request.is_of_worse_class_than(passed):
                return overtaken  # only its own class may pass it
        if self._queues.are_seats_taken:
            return "max_num_seqs"
        if quota <= 0:
            return "batching_policy"
        if budget <= 0:
            return "max_num_batched_tokens"
        victims = [self._queues.requests.get(item.request_id) for item in output.preemptions]
        if any(victim is not None and victim.rank <= request.rank for victim in victims):
            return "blocks"  # memory was just taken back, and not for somebody of a worse rank
        return "arrivals"

    def _may_be_overtaken(self, request: Request) -> bool:
        """Short requests may pass a new one that memory keeps out, a limited number of times."""
        return request.status is RequestStatus.WAITING and self._num_overtakes < _MAX_OVERTAKES

    def _give_blocks(self, request: Request, output: SchedulerOutput) -> bool:
        """Blocks for all tokens of a request that gets on; shared ones where they exist."""
        kv, queues = self._kv, self._queues
        match = kv.lookup(request, queues.parked.sibling_to_share(request))
        is_first = request.status is RequestStatus.WAITING
        while not kv.admit(request, match, headroom=len(queues.running)):
            if queues.running or kv.num_steps_in_flight or kv.num_deferred_blocks:
                return False
            # Nobody runs: those that were preempted later must give up what they kept.
            victim = queues.last_holder(besides=request)
            if victim is None:
                if request.block_table:
                    kv.drop_tail(request, len(request.block_table))
                    continue
                self._departures.fail_as_too_large(request)
                return False
            num_blocks = len(victim.block_table)
            self._preemptor.take_back(victim, num_blocks, output, f"for {request.request_id}")
            match = kv.lookup(request, queues.parked.sibling_to_share(request))
        if is_first:
            request.num_cached_tokens = match.num_tokens = request.num_computed_tokens
            kv.count_lookup(request, match)
        return True

    def _seat(self, request: Request, output: SchedulerOutput) -> None:
        self._queues.seat(request)
        self._seat_claims.note_seated(request)
        output.admitted.append(request.request_id)
