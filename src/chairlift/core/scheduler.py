"""Who rides in the next step: three queues and one decision.

`schedule()` tells the story: claims to seats are settled, running requests go on (decodes first,
and memory is taken back where it is short), prompts go on in chunks, waiting requests get on.
`update()` books what a step has computed.  Policies answer the questions that differ between ways
of batching; none of them is a branch in here.  The scheduler deals in integers and knows neither
text nor arrays.
"""

from __future__ import annotations

from collections.abc import Mapping

from chairlift.config import SchedulerConfig
from chairlift.core.admission import Admission
from chairlift.core.batching_policy import create_batching_policy
from chairlift.core.departures import Departures
from chairlift.core.fair_share import FairShare
from chairlift.core.kv_cache_manager import KVCacheManager
from chairlift.core.preemption_cost import PreemptionCost
from chairlift.core.preemptor import Preemptor
from chairlift.core.prefill_policy import create_prefill_policy
from chairlift.core.request import Request, RequestStatus
from chairlift.core.request_queue import RankQueue
from chairlift.core.request_updates import RequestUpdates
from chairlift.core.scheduler_output import (
    RequestUpdate,
    RunnerOutput,
    ScheduledRequest,
    SchedulerOutput,
)
from chairlift.core.scheduler_queues import SchedulerQueues
from chairlift.core.seat_claims import SeatClaims
from chairlift.core.step_builder import StepBuilder
from chairlift.core.waiting_queue import WaitingQueue
from chairlift.errors import ContextLengthError, RequestError
from chairlift.events import PreemptionMode

_LONG_PREFILL_SHARE = 4
"""While others want prefill, a prompt longer than a step leaves them 1 / this of the budget."""


class Scheduler:
    """Three queues over one KV cache.  O(1) per request and step."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache_manager: KVCacheManager,
        cost: PreemptionCost | None = None,
    ) -> None:
        self.config = config
        self.kv = kv_cache_manager
        self.cost = cost or PreemptionCost()
        self.batching = create_batching_policy(
            config.batching_policy,
            max_num_seqs=config.max_num_seqs,
            static_batch_size=config.static_batch_size,
            batch_wait_s=config.batch_wait_ms / 1e3,
        )
        self.prefill = create_prefill_policy(config.prefill_policy)
        self.fair_share: FairShare | None = None
        self.queues = SchedulerQueues(config)
        self._updates = RequestUpdates()
        self._builder = StepBuilder(
            self.kv, long_prefill_token_threshold=config.long_prefill_token_threshold
        )
        self._departures = Departures(
            self.queues,
            self.kv,
            self._builder,
            self._updates,
            holds_finished=self.batching.holds_finished,
        )
        self.preemptor = Preemptor(
            self.queues, self.kv, self._departures, self.cost, config.preemption_mode
        )
        self.seat_claims = SeatClaims(
            self.queues,
            self.kv,
            self.preemptor,
            by_priority=config.scheduling_policy == "priority",
            while_running=self.batching.admits_while_running,
        )
        self._admission = Admission(
            self.queues,
            self.kv,
            self.batching,
            self._builder,
            self.preemptor,
            self.seat_claims,
            self._departures,
        )

    def share_fairly(self, weights: Mapping[str, int]) -> None:
        """From now on tenants share the engine by weight.  Before any request comes."""
        self.fair_share = FairShare(weights)
        self.queues.share_fairly(self.fair_share)
        self._builder.fair_share = self.fair_share
        self.seat_claims.fair_share = self.fair_share

    # -- arrivals and departures -------------------------------------------------------------
    def add_request(self, request: Request) -> None:
        """Put a request in line.  Raises `RequestError` if it can never fit."""
        capacity = self.kv.capacity_tokens
        if request.num_max_tokens > capacity:
            raise ContextLengthError(
                f"prompt of {request.num_prompt_tokens} tokens with max_tokens={request.max_tokens}"
                f" does not fit the KV cache: the largest request that fits has {capacity + 1}"
                " tokens in all",
                field="max_tokens" if request.num_prompt_tokens <= capacity else "prompt",
            )
        if request.request_id in self.requests:
            raise RequestError(f"request id {request.request_id!r} is in use", field="request_id")
        self.queues.add(request, may_park=self.batching.admits_while_running)

    def abort(self, request_id: str, *, stop_reason: str | None = None) -> RequestUpdate | None:
        """The caller has gone: free everything now.  None if there is no such request."""
        request = self.requests.get(request_id)
        if request is None:
            return None
        if not request.is_finished:
            request.stop_reason = stop_reason
        self._departures.finish(request, RequestStatus.FINISHED_ABORTED)
        self._departures.end_static_batch()
        return self._updates.take_one(request_id)

    def finish(
        self,
        request_id: str,
        status: RequestStatus,
        *,
        stop_reason: int | str | None = None,
        error: str | None = None,
    ) -> None:
        """End a request for a reason seen outside: a stop string, a fault in its text."""
        request = self.requests.get(request_id)
        if request is not None and not request.is_finished:
            request.stop_reason, request.error = stop_reason, error
            self._departures.finish(request, status)
            self._departures.end_static_batch()

    # -- questions ---------------------------------------------------------------------------
    @property
    def requests(self) -> Mapping[str, Request]:
        """All that have come and not gone, by id."""
        return self.queues.requests

    @property
    def running(self) -> list[Request]:
        return self.queues.running

    @property
    def waiting(self) -> WaitingQueue:
        return self.queues.waiting

    @property
    def swapped(self) -> RankQueue:
        return self.queues.swapped

    @property
    def num_waiting(self) -> int:
        """Parked forks included, swapped requests not."""
        return self.queues.num_waiting

    @property
    def num_preemptions(self) -> Mapping[PreemptionMode, int]:
        return self.preemptor.num_preemptions

    @property
    def has_requests(self) -> bool:
        return bool(self.queues.requests)

    @property
    def has_updates(self) -> bool:
        """Something happened between steps that `take_updates()` has not told yet."""
        return bool(self._updates)

    def wake_at(self) -> float | None:
        """When a waiting window ends; None if only arrivals and steps matter."""
        first = self.queues.first_in_line()
        if first is None:
            return None
        return self.batching.wake_at(
            num_waiting=self.queues.num_in_line,
            oldest_arrival=first.arrival_time,
            num_running=len(self.running),
        )

    # -- one step ----------------------------------------------------------------------------
    def schedule(self, now: float) -> SchedulerOutput:
        """Build the next step.  It may hold nothing, when nobody can ride."""
        output = self._builder.begin()
        self.seat_claims.settle(output)
        running = self.queues.running
        phases = self.prefill.phases(
            has_prefill=bool(self.queues.num_in_line)
            or any(request.is_prefilling for request in running),
            has_decode=any(not request.is_prefilling for request in running),
        )
        budget = self.config.max_num_batched_tokens
        if phases.decode:
            budget -= self._schedule_decodes(output)
        if phases.prefill:
            self._schedule_prefills(output, budget, now)
            if not output.scheduled and not phases.decode:
                self._schedule_decodes(output)  # nobody could get on: no reason to stand still
        elif self.num_waiting or len(self.swapped):
            output.limit = "prefill_policy"
        self.prefill.step_built(has_prefill=any(i.kind == "prefill" for i in output.scheduled))
        return self._builder.seal(output)

    def _schedule_decodes(self, output: SchedulerOutput) -> int:
        """One token for each request that has its prompt behind it; returns the tokens used."""
        before = len(output.scheduled)
        running = self.queues.running
        index = 0
        while index < len(running):
            request = running[index]
            index += 1
            if request.is_finished:
                self._builder.add_padding(output, request)
            elif request.is_prefilling or request.is_all_sampled:
                continue
            elif self.preemptor.make_room(request, output):
                self.kv.extend(request)
                self._builder.add_decode(output, request)
            elif request.status is not RequestStatus.RUNNING:
                index -= 1  # it went itself, and the next one took its place
        return len(output.scheduled) - before

    def _schedule_prefills(self, output: SchedulerOutput, budget: int, now: float) -> None:
        """Chunks of prompts: of running requests first, then of those that get on now."""
        prefills = [r for r in self.running if r.is_prefilling and not r.is_finished]
        longest: Request | None = None
        left, reserved = budget, 0
        for request in prefills:
            if longest is None and request.num_remaining_tokens > budget:
                # A prompt longer than the step takes what others leave, and at least its share.
                longest, reserved = request, left - left // _LONG_PREFILL_SHARE
                left -= reserved
            else:
                left -= self._builder.add_chunk(output, request, left)
        left = self._admission.admit(output, left, now, longest)
        if longest is not None and longest.status is RequestStatus.RUNNING:
            self._builder.add_chunk(output, longest, left + reserved)

    # -- the end of a step -------------------------------------------------------------------
    def update(self, output: SchedulerOutput, result: RunnerOutput) -> list[RequestUpdate]:
        """Book a step's tokens; returns what changed for each request, ended ones included."""
        self.kv.step_resolved(output.step_id)
        for item in output.scheduled:
            request = self._member(item)
            if request is None:
                continue
            error = result.errors.get(item.request_id)
            if error is not None:
                self._departures.fail(request, error)
                continue
            self.kv.register_full_blocks(request, item.num_computed_tokens + item.num_new_tokens)
            prompt_logprobs = result.prompt_logprobs.get(item.request_id)
            if prompt_logprobs:
                self._updates.of(request).prompt_logprobs.extend(prompt_logprobs)
            if item.is_sampling:
                self._book_token(request, result)
            elif not request.max_tokens:
                self._book_prompt(request, item, result)
            if request.num_output_tokens:
                self.queues.unpark_forks_of(request)
        self._observe(output, result)
        self._departures.end_static_batch()
        return self.take_updates()

    def fail_step(self, output: SchedulerOutput, message: str) -> list[RequestUpdate]:
        """A whole step has failed: its members end, everybody else goes on."""
        for item in output.scheduled:
            request = self._member(item)
            if request is not None:
                self._departures.fail(request, message)
        self._fail_swap_outs(output, message)
        self.kv.step_resolved(output.step_id)
        self._departures.end_static_batch()
        return self.take_updates()

    def take_updates(self) -> list[RequestUpdate]:
        """What has happened to requests since the last call."""
        return self._updates.take()

    def _fail_swap_outs(self, output: SchedulerOutput, message: str) -> None:
        """Blocks that left in a failed step may never have reached the swap pool."""
        for preemption in output.preemptions:
            request = self.requests.get(preemption.request_id)
            if request is None or preemption.mode != "swap":
                continue
            if request.host_blocks:
                self.queues.take_out(request)
                self.kv.drop_tail(request, 0)  # compute them again
                self.queues.put_back(request)
            elif request.status is RequestStatus.RUNNING:
                self._departures.fail(request, message)  # a step in flight has brought them back

    def _member(self, item: ScheduledRequest) -> Request | None:
        """Who rode in a step; None for padding, and where it ended while the step was in flight.

        Its id may belong to somebody else by now, its block table cannot.
        """
        request = self.queues.requests.get(item.request_id)
        if request is None or request.is_finished or request.block_table is not item.block_table:
            return None
        return request

    def _book_token(self, request: Request, result: RunnerOutput) -> None:
        sampled = result.sampled[request.request_id]
        request.num_pending_tokens -= 1
        request.token_ids.append(sampled.token_id)
        update = self._updates.of(request)
        update.new_token_ids.append(sampled.token_id)
        if sampled.logprobs is not None:
            update.logprobs.append(sampled.logprobs)
        if sampled.token_id in request.stop_token_ids:
            request.stop_reason = sampled.token_id
            self._departures.finish(request, RequestStatus.FINISHED_STOPPED)
        elif request.num_output_tokens >= request.max_tokens:
            self._departures.finish(request, RequestStatus.FINISHED_LENGTH)

    def _book_prompt(self, request: Request, item: ScheduledRequest, result: RunnerOutput) -> None:
        """Who needs no token has ended with its prompt."""
        if item.num_computed_tokens + item.num_new_tokens == request.num_prompt_tokens:
            self._updates.of(request).pooled = result.pooled.get(request.request_id)
            self._departures.finish(request, RequestStatus.FINISHED_STOPPED)

    def _observe(self, output: SchedulerOutput, result: RunnerOutput) -> None:
        moves = output.moves
        self.cost.observe_swap_out(len(moves.swap_outs), result.swap_out_s)
        self.cost.observe_swap_in(len(moves.swap_ins), result.swap_in_s)
        num_prefill = sum(i.num_new_tokens for i in output.scheduled if i.kind == "prefill")
        self.cost.observe_step(output.num_tokens, num_prefill, result.execute_s)

    # -- checks ------------------------------------------------------------------------------
    def check_integrity(self) -> None:
        """Raise AssertionError unless requests and blocks are all accounted for, each once."""
        self.kv.check_integrity(self.queues.check_integrity())
        if not self.requests:
            assert not self._builder.num_known, "the runner was not told of an end"
            if not self.kv.num_steps_in_flight:
                usable = self.kv.pool.num_usable_blocks
                assert self.kv.num_free_blocks == usable, "blocks leak"
