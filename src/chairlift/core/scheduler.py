"""Who rides in the next step: three queues and one decision.

`schedule()` tells the story: running requests go on (decodes first), memory is taken back where it
is short, prompts go on in chunks, waiting requests get on.  `update()` books what a step has
computed.  Policies answer the questions that differ between ways of batching; none of them is a
branch in here.  The scheduler deals in integers and knows neither text nor arrays.

Order is by `rank` everywhere: who came first (or has the better priority) is served first and
preempted last, so the first in rank always gets on and everything ends.  Under fair shares who
came first is who was let on first: of those that were not yet, the queue chooses between tenants.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping

from chairlift.config import SchedulerConfig
from chairlift.core.batching_policy import create_batching_policy
from chairlift.core.fair_share import FairShare
from chairlift.core.kv_cache_manager import KVCacheManager
from chairlift.core.preemption_cost import PreemptionCost
from chairlift.core.prefill_policy import create_prefill_policy
from chairlift.core.request import UNSEATED_RANK, Request, RequestStatus
from chairlift.core.request_queue import RankQueue
from chairlift.core.scheduler_output import (
    NewRequest,
    RequestUpdate,
    RunnerOutput,
    ScheduledRequest,
    SchedulerOutput,
)
from chairlift.core.waiting_queue import FairWaitingQueue, WaitingQueue
from chairlift.errors import ContextLengthError, RequestError
from chairlift.events import AdmissionLimit, MemberKind, Preemption, PreemptionMode

_LONG_PREFILL_SHARE = 4
"""While others want prefill, a prompt longer than a step leaves them 1 / this of the budget."""
_MAX_OVERTAKES = 64
"""Short requests that may pass a long one which memory keeps out, before it must be next."""
_MAX_RECOMPUTES = 2
"""After this many, `auto` swaps a request wherever the swap pool has room."""
_PATIENCE_STEPS = 64
"""A tenant without a seat waits so long for one to become free before another one's is taken."""


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
        self.waiting = WaitingQueue(config.max_num_batched_tokens)
        self.fair_share: FairShare | None = None
        self.patience_steps = _PATIENCE_STEPS
        self.swapped = RankQueue()
        self.running: list[Request] = []
        """In rank order; with static batching, finished members stay until their batch ends."""
        self.requests: dict[str, Request] = {}
        self.num_preemptions: dict[PreemptionMode, int] = {"recompute": 0, "swap": 0}
        self.needs_drain = False
        """Memory is short and steps are in flight: read them before scheduling again."""
        self._parked: dict[str, list[Request]] = {}
        """Forks that wait until their sibling has computed the prompt."""
        self._holders: dict[str, Request] = {}
        """Preempted requests that kept some blocks."""
        self._sent: set[str] = set()
        self._finished_request_ids: list[str] = []
        self._updates: dict[str, RequestUpdate] = {}
        self._num_in_flight = 0
        self._num_overtakes = 0
        self._arrivals = itertools.count()
        self._seatings = itertools.count()
        self._kept_out_since: dict[str, int] = {}
        """Step in which a tenant without a seat was first seen at the head of the line."""
        self._next_step_id = 0

    def share_fairly(self, weights: Mapping[str, int]) -> None:
        """From now on tenants share the engine by weight.  Before any request comes."""
        assert not self.requests
        self.fair_share = FairShare(weights)
        self.waiting = FairWaitingQueue(self.config.max_num_batched_tokens, self.fair_share)
        self._arrivals = itertools.count(UNSEATED_RANK)

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
        by_priority = self.config.scheduling_policy == "priority"
        request.rank = (request.priority if by_priority else 0, next(self._arrivals))
        self.requests[request.request_id] = request
        sibling = self.requests.get(request.fork_of) if request.fork_of is not None else None
        if sibling is not None and self.batching.admits_while_running and self._will_share(sibling):
            self._parked.setdefault(sibling.request_id, []).append(request)
        else:
            self.waiting.add(request)

    def abort(self, request_id: str, *, stop_reason: str | None = None) -> RequestUpdate | None:
        """The caller has gone: free everything now.  None if there is no such request."""
        request = self.requests.get(request_id)
        if request is None:
            return None
        if not request.is_finished:
            request.stop_reason = stop_reason
        self._finish(request, RequestStatus.FINISHED_ABORTED)
        self._end_static_batch()
        return self._updates.pop(request_id, None)

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
            self._finish(request, status)
            self._end_static_batch()

    # -- questions ---------------------------------------------------------------------------
    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + sum(len(forks) for forks in self._parked.values())

    @property
    def has_requests(self) -> bool:
        return bool(self.requests)

    @property
    def has_updates(self) -> bool:
        """Something happened between steps that `take_updates()` has not told yet."""
        return bool(self._updates)

    def wake_at(self) -> float | None:
        """When a waiting window ends; None if only arrivals and steps matter."""
        first = self._next_in_line(skip_long=False)
        if first is None:
            return None
        return self.batching.wake_at(
            num_waiting=len(self.waiting) + len(self.swapped),
            oldest_arrival=first.arrival_time,
            num_running=len(self.running),
        )

    # -- one step ----------------------------------------------------------------------------
    def schedule(self, now: float) -> SchedulerOutput:
        """Build the next step.  It may hold nothing, when nobody can ride."""
        output = SchedulerOutput(step_id=self._next_step_id)
        self.needs_drain = False
        self._preempt_for_priority(output)
        self._preempt_for_fairness(output)
        phases = self.prefill.phases(
            has_prefill=bool(len(self.waiting) or len(self.swapped))
            or any(request.is_prefilling for request in self.running),
            has_decode=any(not request.is_prefilling for request in self.running),
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
        return self._seal(output)

    def _schedule_decodes(self, output: SchedulerOutput) -> int:
        """One token for each request that has its prompt behind it; returns the tokens used."""
        before = len(output.scheduled)
        index = 0
        while index < len(self.running):
            request = self.running[index]
            index += 1
            if request.is_finished:
                self._ride(output, request, 1, "padding")
            elif request.is_prefilling or request.is_all_sampled:
                continue
            elif self._make_room(request, output):
                self.kv.extend(request)
                self._ride(output, request, 1, "decode")
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
                left -= self._ride_chunk(output, request, left)
        left = self._admit(output, left, now, longest)
        if longest is not None and longest.status is RequestStatus.RUNNING:
            self._ride_chunk(output, longest, left + reserved)

    def _ride_chunk(self, output: SchedulerOutput, request: Request, budget: int) -> int:
        limit = self.config.long_prefill_token_threshold or budget
        num_tokens = min(request.num_remaining_tokens, budget, limit)
        if num_tokens > 0:
            self._ride(output, request, num_tokens, "prefill")
        return max(0, num_tokens)

    def _ride(
        self, output: SchedulerOutput, request: Request, num_tokens: int, kind: MemberKind
    ) -> None:
        """Enter a request into the step and advance its counters."""
        is_padding = kind == "padding"
        start = request.num_computed_tokens - is_padding  # padding computes its last token again
        reaches_end = num_tokens == request.num_remaining_tokens
        is_sampling = reaches_end and request.max_tokens > 0 and not is_padding
        output.scheduled.append(
            ScheduledRequest(
                request.request_id, kind, start, num_tokens, request.block_table, is_sampling
            )
        )
        if not is_padding:
            if self.fair_share is not None:
                if kind == "prefill":
                    self._charge_prompt(self.fair_share, request, num_tokens)
                if is_sampling:
                    self.fair_share.charge_output(request.tenant)
            request.num_computed_tokens += num_tokens
            request.num_pending_tokens += is_sampling
        if request.request_id not in self._sent:
            self._sent.add(request.request_id)
            output.new_requests.append(
                NewRequest(
                    request_id=request.request_id,
                    prompt_token_ids=request.prompt_token_ids,
                    stop_token_ids=request.stop_token_ids,
                    sampling_params=request.sampling_params,
                    pooling_params=request.pooling_params,
                    seed=request.seed,
                    choice_index=request.choice_index,
                    bad_word_ids=request.bad_word_ids,
                    grammar=request.grammar,
                )
            )

    @staticmethod
    def _charge_prompt(fair_share: FairShare, request: Request, num_tokens: int) -> None:
        """Book what is new of a prompt's chunk for the tenant: what is recomputed is not."""
        end = min(request.num_computed_tokens + num_tokens, request.num_prompt_tokens)
        num_new = end - max(request.num_computed_tokens, request.num_charged_tokens)
        if num_new > 0:
            request.num_charged_tokens = end
            fair_share.charge_prompt(request.tenant, num_new)

    def _seal(self, output: SchedulerOutput) -> SchedulerOutput:
        """Give the step its number and its block moves, if there is anything to do."""
        output.moves = self.kv.take_moves()
        output.num_free_blocks = self.kv.num_free_blocks
        output.finished_request_ids, self._finished_request_ids = self._finished_request_ids, []
        if output.has_work:
            self._next_step_id += 1
            self._num_in_flight += 1
            self.kv.step_submitted(output.step_id)
        return output

    # -- getting on --------------------------------------------------------------------------
    def _admit(
        self, output: SchedulerOutput, budget: int, now: float, longest: Request | None
    ) -> int:
        """Let requests on while the policy, the seats, the budget and memory allow it.

        `longest` is the long prompt in progress, which keeps other long ones of a worse rank out.
        Returns the budget left, and leaves in `output.limit` what kept the next one out.
        """
        first = self._next_in_line(skip_long=False)
        if first is None:
            return budget
        quota = self.batching.num_admissible(
            now=now,
            num_waiting=len(self.waiting) + len(self.swapped),
            oldest_arrival=first.arrival_time,
            num_running=len(self.running),
        )
        next_long = self.waiting.long.peek()
        overtaken: AdmissionLimit | None = None
        if longest is not None and next_long is not None and longest.rank < next_long.rank:
            overtaken = "long_prefill"
        while True:
            request = self._next_in_line(skip_long=overtaken is not None)
            output.limit = self._limit(request, output, quota, budget, overtaken)
            if request is None or output.limit != "arrivals":
                break
            is_long = self.waiting.is_long(request)
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
            self._get_on(request, output)
            quota -= 1
            budget -= self._ride_chunk(output, request, budget)
        self.batching.step_admitted(len(output.admitted), output.limit)
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
        if request is None:
            return overtaken if overtaken is not None and len(self.waiting) else "arrivals"
        if overtaken is not None and self._is_of_worse_class(request, self.waiting.long.peek()):
            return overtaken  # only its own class may pass it
        if len(self.running) >= self.config.max_num_seqs:
            return "max_num_seqs"
        if quota <= 0:
            return "batching_policy"
        if budget <= 0:
            return "max_num_batched_tokens"
        victims = [self.requests.get(item.request_id) for item in output.preemptions]
        if any(victim is not None and victim.rank <= request.rank for victim in victims):
            return "blocks"  # memory was just taken back, and not for somebody of a worse rank
        return "arrivals"

    def _next_in_line(self, *, skip_long: bool) -> Request | None:
        """The best rank among swapped and waiting requests."""
        waiting = self.waiting.short.peek() if skip_long else self.waiting.peek()
        heads = [head for head in (self.swapped.peek(), waiting) if head is not None]
        return min(heads, key=lambda request: request.rank, default=None)

    @staticmethod
    def _is_of_worse_class(request: Request, other: Request | None) -> bool:
        return other is not None and request.rank[0] > other.rank[0]

    def _may_be_overtaken(self, request: Request) -> bool:
        """Short requests may pass a new one that memory keeps out, a limited number of times."""
        return request.status is RequestStatus.WAITING and self._num_overtakes < _MAX_OVERTAKES

    def _give_blocks(self, request: Request, output: SchedulerOutput) -> bool:
        """Blocks for all tokens of a request that gets on; shared ones where they exist."""
        match = self.kv.lookup(request, self._sibling_to_share(request))
        is_first = request.status is RequestStatus.WAITING
        while not self.kv.admit(request, match, headroom=len(self.running)):
            if self.running or self._num_in_flight or self.kv.num_deferred_blocks:
                return False
            # Nobody runs: those that were preempted later must give up what they kept.
            others = [r for r in self._holders.values() if r is not request]
            if not others:
                if request.block_table:
                    self.kv.drop_tail(request, len(request.block_table))
                    continue
                self._fail(request, self._too_large(request))
                return False
            victim = max(others, key=lambda holder: holder.rank)
            self._take_back(victim, len(victim.block_table), output, f"for {request.request_id}")
            match = self.kv.lookup(request, self._sibling_to_share(request))
        if is_first:
            request.num_cached_tokens = match.num_tokens = request.num_computed_tokens
            self.kv.count_lookup(request, match)
        return True

    def _get_on(self, request: Request, output: SchedulerOutput) -> None:
        if request.status is RequestStatus.SWAPPED:
            self.swapped.remove(request.request_id)
        else:
            self.waiting.remove(request.request_id)
        self._holders.pop(request.request_id, None)
        if not request.is_ranked:
            request.rank = (request.rank[0], next(self._seatings))
        self._kept_out_since.pop(request.tenant, None)
        request.status = RequestStatus.RUNNING
        bisect.insort(self.running, request, key=lambda running: running.rank)
        output.admitted.append(request.request_id)

    # -- taking memory back ------------------------------------------------------------------
    def _make_room(self, request: Request, output: SchedulerOutput) -> bool:
        """Blocks for the next token of a running request, taken from others if need be."""
        while missing := self.kv.num_missing_blocks(request):
            if self._num_in_flight or self.kv.num_deferred_blocks:
                self.needs_drain = True
                return False
            victim = self._choose_victim(request)
            if victim is None:
                if not any(r.is_finished for r in self.running):
                    self._fail(request, self._too_large(request))
                else:
                    self._take_back(request, 0, output, "its static batch holds the rest")
                return False
            num_blocks = max(missing, len(self.running)) if victim is not request else 0
            self._take_back(victim, num_blocks, output, f"for {request.request_id}")
            if victim is request:
                return False
        return True

    def _choose_victim(self, request: Request) -> Request | None:
        """Who gives memory: the last in rank, of those that kept blocks, then of the running.

        None: `request` is alone and still lacks memory.
        """
        if self._holders:
            return max(self._holders.values(), key=lambda holder: holder.rank)
        candidates = [r for r in self.running if not r.is_finished]
        victim = max(candidates, key=lambda running: running.rank)
        return None if victim is request and len(candidates) == 1 else victim

    def _take_back(
        self, victim: Request, num_blocks: int, output: SchedulerOutput, reason: str
    ) -> None:
        """Preempt: give up (or swap out) the last blocks of a request and put it back in line."""
        table_size = len(victim.block_table)
        if num_blocks > self.kv.num_reclaimable_blocks(victim):
            num_blocks = table_size
        keep = table_size - num_blocks
        num_tokens = max(0, victim.num_computed_tokens - keep * self.kv.block_size)
        mode, why = self._choose_mode(victim, num_blocks, num_tokens)
        free_before = self.kv.num_free_blocks
        self._leave_line(victim)
        if mode == "swap":
            self.kv.swap_out(victim, num_blocks)
        else:
            self.kv.drop_tail(victim, num_blocks)
            victim.num_recomputes += num_tokens > 0
        self._return_to_line(victim)
        self.num_preemptions[mode] += 1
        output.preemptions.append(
            Preemption(
                request_id=victim.request_id,
                mode=mode,
                num_blocks=self.kv.num_free_blocks - free_before,
                num_blocks_kept=keep,
                num_tokens_dropped=num_tokens,
                swap_cost_s=self.cost.swap_s(self.kv.num_blocks_for(num_tokens)),
                recompute_cost_s=self.cost.recompute_s(num_tokens),
                reason=f"{reason}; {why}",
            )
        )

    def _choose_mode(
        self, victim: Request, num_blocks: int, num_tokens: int
    ) -> tuple[PreemptionMode, str]:
        """Swap or recompute, and why."""
        if num_tokens == 0 and not victim.host_blocks:
            return "recompute", "nothing computed is lost"
        if self.config.preemption_mode == "recompute":
            return "recompute", "preemption_mode is recompute"
        if not self.kv.can_swap_out(victim, num_blocks):
            return "recompute", "the swap pool has no room"
        if self.config.preemption_mode == "swap":
            return "swap", "preemption_mode is swap"
        if victim.host_blocks:
            return "swap", "the rest is swapped out already"
        if victim.num_recomputes >= _MAX_RECOMPUTES:
            return "swap", "it was recomputed twice"
        if self.cost.prefers_swap(self.kv.num_blocks_for(num_tokens), num_tokens):
            return "swap", "estimated cheaper"
        return "recompute", "estimated cheaper"

    def _leave_line(self, victim: Request) -> None:
        """Take a victim out of the queue in which it stands."""
        if victim.status is RequestStatus.RUNNING:
            self.running.remove(victim)
            victim.num_preemptions += 1
            self._unpark(victim.request_id)
        elif victim.status is RequestStatus.SWAPPED:
            self.swapped.remove(victim.request_id)
        else:
            self.waiting.remove(victim.request_id)
        self._holders.pop(victim.request_id, None)

    def _return_to_line(self, victim: Request) -> None:
        """Put a victim where it belongs now."""
        if victim.host_blocks:
            victim.status = RequestStatus.SWAPPED
            self.swapped.add(victim)
        else:
            victim.status = RequestStatus.PREEMPTED
            self.waiting.add(victim)
        if victim.block_table:
            self._holders[victim.request_id] = victim

    def _preempt_for_priority(self, output: SchedulerOutput) -> None:
        """A request of a better class gets the place of the last ones of worse classes."""
        request = self._next_in_line(skip_long=False)
        if self.config.scheduling_policy != "priority" or request is None:
            return
        if not self.batching.admits_while_running:
            return
        while True:
            missing = self._num_missing_to_get_on(request)
            if missing <= 0 and len(self.running) < self.config.max_num_seqs:
                return
            victim = self._choose_victim_of_worse_class(request, has_memory=missing <= 0)
            if victim is None:
                return
            if self._num_in_flight:
                self.needs_drain = True
                return
            self._take_back(victim, max(0, missing), output, f"priority of {request.request_id}")

    def _preempt_for_fairness(self, output: SchedulerOutput) -> None:
        """A tenant that has been kept out for long gets the place of one that has several.

        Places are changed: the new request is seated and ranked in the other one's stead, which is
        the next to get on.
        """
        if self.fair_share is None or not self.batching.admits_while_running:
            return
        request = self._first_kept_out()
        while request is not None:
            missing = self._num_missing_to_get_on(request)
            if missing <= 0 and len(self.running) < self.config.max_num_seqs:
                return
            victim = self._choose_victim_of_other_tenant(request, self.fair_share)
            if victim is None:
                return
            if self._num_in_flight:
                self.needs_drain = True
                return
            self.waiting.remove(request.request_id)
            request.rank, victim.rank = victim.rank, (victim.rank[0], next(self._seatings))
            self.waiting.add(request)
            self._take_back(victim, max(0, missing), output, f"fair share of {request.request_id}")

    def _first_kept_out(self) -> Request | None:
        """The next to be let on, if its tenant has had no seat for long."""
        assert isinstance(self.waiting, FairWaitingQueue)
        request = self.waiting.peek_new()
        if request is None:
            return None
        step_id = self._next_step_id
        since = self._kept_out_since.setdefault(request.tenant, step_id)
        if step_id - since < self.patience_steps:
            return None
        if any(running.tenant == request.tenant for running in self.running):
            del self._kept_out_since[request.tenant]
            return None
        return request

    def _choose_victim_of_other_tenant(
        self, request: Request, fair_share: FairShare
    ) -> Request | None:
        """The last in rank of tenants that were served more and have several seats."""
        num_seats = Counter(running.tenant for running in self.running if not running.is_finished)
        counter = fair_share.counter(request.tenant)
        for victim in reversed(self.running):
            if (
                not victim.is_finished
                and num_seats[victim.tenant] > 1
                and fair_share.counter(victim.tenant) > counter
                and not self._is_of_worse_class(request, victim)
            ):
                return victim
        return None

    def _num_missing_to_get_on(self, request: Request) -> int:
        """Blocks short before a request gets on, one for each running request included."""
        needed = self.kv.num_blocks_for(request.num_tokens) - len(request.block_table)
        return needed + len(self.running) - self.kv.num_free_blocks

    def _choose_victim_of_worse_class(
        self, request: Request, *, has_memory: bool
    ) -> Request | None:
        """The last in rank of those that kept blocks, if these are needed, or of the running."""
        holders = () if has_memory else self._holders.values()
        holder = max(holders, key=lambda holder: holder.rank, default=None)
        last = self.running[-1] if self.running else None
        for victim in (holder, last):
            if victim is not None and self._is_of_worse_class(victim, request):
                return victim
        return None

    def _too_large(self, request: Request) -> str:
        return (
            f"{request.num_tokens} tokens do not fit the KV cache any more:"
            f" it holds {self.kv.capacity_tokens}"
        )

    # -- the end of a step -------------------------------------------------------------------
    def update(self, output: SchedulerOutput, result: RunnerOutput) -> list[RequestUpdate]:
        """Book a step's tokens; returns what changed for each request, ended ones included."""
        self._resolve(output)
        for item in output.scheduled:
            request = self._member(item)
            if request is None:
                continue
            error = result.errors.get(item.request_id)
            if error is not None:
                request.num_pending_tokens = 0
                self._fail(request, error)
                continue
            self.kv.register_full_blocks(request, item.num_computed_tokens + item.num_new_tokens)
            prompt_logprobs = result.prompt_logprobs.get(item.request_id)
            if prompt_logprobs:
                self._update_for(request).prompt_logprobs.extend(prompt_logprobs)
            if item.is_sampling:
                self._book_token(request, result)
            elif not request.max_tokens:
                self._book_prompt(request, item, result)
            if request.num_output_tokens:
                self._unpark(request.request_id)
        self._observe(output, result)
        self._end_static_batch()
        return self.take_updates()

    def fail_step(self, output: SchedulerOutput, message: str) -> list[RequestUpdate]:
        """A whole step has failed: its members end, everybody else goes on."""
        for item in output.scheduled:
            request = self._member(item)
            if request is not None:
                request.num_pending_tokens = 0
                self._fail(request, message)
        self._fail_swap_outs(output, message)
        self._resolve(output)
        self._end_static_batch()
        return self.take_updates()

    def take_updates(self) -> list[RequestUpdate]:
        """What has happened to requests since the last call."""
        updates, self._updates = self._updates, {}
        return list(updates.values())

    def _fail_swap_outs(self, output: SchedulerOutput, message: str) -> None:
        """Blocks that left in a failed step may never have reached the swap pool."""
        for preemption in output.preemptions:
            request = self.requests.get(preemption.request_id)
            if request is None or preemption.mode != "swap":
                continue
            if request.host_blocks:
                self._leave_line(request)
                self.kv.drop_tail(request, 0)  # compute them again
                self._return_to_line(request)
            elif request.status is RequestStatus.RUNNING:
                request.num_pending_tokens = 0
                self._fail(request, message)  # a step in flight has already brought them back

    def _member(self, item: ScheduledRequest) -> Request | None:
        """Who rode in a step; None for padding, and where it ended while the step was in flight.

        Its id may belong to somebody else by now, its block table cannot.
        """
        request = self.requests.get(item.request_id)
        if request is None or request.is_finished or request.block_table is not item.block_table:
            return None
        return request

    def _resolve(self, output: SchedulerOutput) -> None:
        self.kv.step_resolved(output.step_id)
        self._num_in_flight -= 1

    def _book_token(self, request: Request, result: RunnerOutput) -> None:
        sampled = result.sampled[request.request_id]
        request.num_pending_tokens -= 1
        request.token_ids.append(sampled.token_id)
        update = self._update_for(request)
        update.new_token_ids.append(sampled.token_id)
        if sampled.logprobs is not None:
            update.logprobs.append(sampled.logprobs)
        if sampled.token_id in request.stop_token_ids:
            request.stop_reason = sampled.token_id
            self._finish(request, RequestStatus.FINISHED_STOPPED)
        elif request.num_output_tokens >= request.max_tokens:
            self._finish(request, RequestStatus.FINISHED_LENGTH)

    def _book_prompt(self, request: Request, item: ScheduledRequest, result: RunnerOutput) -> None:
        """Who needs no token has ended with its prompt."""
        if item.num_computed_tokens + item.num_new_tokens == request.num_prompt_tokens:
            self._update_for(request).pooled = result.pooled.get(request.request_id)
            self._finish(request, RequestStatus.FINISHED_STOPPED)

    def _observe(self, output: SchedulerOutput, result: RunnerOutput) -> None:
        moves = output.moves
        self.cost.observe_swap_out(len(moves.swap_outs), result.swap_out_s)
        self.cost.observe_swap_in(len(moves.swap_ins), result.swap_in_s)
        num_prefill = sum(i.num_new_tokens for i in output.scheduled if i.kind == "prefill")
        self.cost.observe_step(output.num_tokens, num_prefill, result.execute_s)

    def _fail(self, request: Request, message: str) -> None:
        request.error = message
        self._finish(request, RequestStatus.FINISHED_ERROR)

    def _finish(self, request: Request, status: RequestStatus) -> None:
        """End a request.  It leaves at once, unless its static batch still runs.

        One that had finished and was held keeps its reason, which was told already.
        """
        was_finished, was_running = request.is_finished, request.status is RequestStatus.RUNNING
        stays = (
            self.batching.holds_finished
            and was_running
            and status in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH)
        )
        if not was_finished:
            if not was_running:
                self._leave_line_or_parking(request)
            request.status = status
            update = self._update_for(request)
            update.finish_reason = request.finish_reason
            update.stop_reason, update.error = request.stop_reason, request.error
        if not stays:
            if was_running or was_finished:
                self.running.remove(request)
            self._release(request)

    def _leave_line_or_parking(self, request: Request) -> None:
        for forks in self._parked.values():
            if request in forks:
                forks.remove(request)
                return
        self._leave_line(request)

    def _release(self, request: Request) -> None:
        """Row and blocks go; whoever waited for its blocks stops waiting."""
        self.kv.free(request)
        self._unpark(request.request_id)
        del self.requests[request.request_id]
        if request.request_id in self._sent:
            self._sent.discard(request.request_id)
            self._finished_request_ids.append(request.request_id)
        self._update_for(request).is_released = True

    def _end_static_batch(self) -> None:
        """When its last member has finished, a static batch lets everybody go."""
        if self.batching.holds_finished and all(r.is_finished for r in self.running):
            for request in self.running:
                self._release(request)
            self.running.clear()

    def _update_for(self, request: Request) -> RequestUpdate:
        update = self._updates.get(request.request_id)
        if update is None:
            update = self._updates[request.request_id] = RequestUpdate(
                request_id=request.request_id, num_cached_tokens=request.num_cached_tokens
            )
        return update

    # -- forks -------------------------------------------------------------------------------
    def _will_share(self, sibling: Request) -> bool:
        """Whether waiting for this sibling's prompt is shorter than computing it again."""
        in_first_run = sibling.num_preemptions == 0 and not sibling.is_finished
        return in_first_run and sibling.num_output_tokens == 0

    def _sibling_to_share(self, request: Request) -> Request | None:
        """The sibling whose computed prompt `request` may share, block by block."""
        sibling = self.requests.get(request.fork_of) if request.fork_of is not None else None
        if sibling is None or sibling.status is not RequestStatus.RUNNING:
            return None
        if sibling.num_output_tokens == 0:
            return None  # the step that computes its prompt has not been read
        return sibling if sibling.num_preemptions == 0 and request.num_preemptions == 0 else None

    def _unpark(self, request_id: str) -> None:
        for fork in self._parked.pop(request_id, ()):
            self.waiting.add(fork)

    # -- checks ------------------------------------------------------------------------------
    def check_integrity(self) -> None:
        """Raise AssertionError unless requests and blocks are all accounted for, each once."""
        parked: Iterable[Request] = itertools.chain.from_iterable(self._parked.values())
        queues = [*self.running, *self.waiting, *self.swapped, *parked]
        ids = [request.request_id for request in queues]
        assert len(ids) == len(set(ids)), "a request stands in two queues"
        assert set(ids) == set(self.requests), "a request stands in no queue"
        assert all(r.host_blocks for r in self.swapped), "nothing of a swapped request is swapped"
        ranks = [request.rank for request in self.running]
        assert ranks == sorted(ranks), "running is out of order"
        self.kv.check_integrity(queues)
        if not self.requests:
            assert not self._parked and not self._holders and not self._sent
            if not self._num_in_flight:
                usable = self.kv.pool.num_usable_blocks
                assert self.kv.num_free_blocks == usable, "blocks leak"
