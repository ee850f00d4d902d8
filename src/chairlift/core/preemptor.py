"""Taking memory back: from whom, how much, and whether to swap it out or compute it again."""

from __future__ import annotations

from chairlift.config import PreemptionModeName
from chairlift.core.departures import Departures
from chairlift.core.kv_cache_manager import KVCacheManager
from chairlift.core.preemption_cost import PreemptionCost
from chairlift.core.request import Request
from chairlift.core.scheduler_output import SchedulerOutput
from chairlift.core.scheduler_queues import SchedulerQueues
from chairlift.events import Preemption, PreemptionMode

_MAX_RECOMPUTES = 2
"""After this many, `auto` swaps a request wherever the swap pool has room."""


class Preemptor:
    """Gives running requests room to grow, at the expense of those behind them."""

    def __init__(
        self,
        queues: SchedulerQueues,
        kv: KVCacheManager,
        departures: Departures,
        cost: PreemptionCost,
        mode: PreemptionModeName,
    ) -> None:
        self.num_preemptions: dict[PreemptionMode, int] = {"recompute": 0, "swap": 0}
        self._queues = queues
        self._kv = kv
        self._departures = departures
        self._cost = cost
        self._mode = mode

    def make_room(self, request: Request, output: SchedulerOutput) -> bool:
        """Blocks for the next token of a running request, taken from others if need be."""
        while missing := self._kv.num_missing_blocks(request):
            if self._kv.num_steps_in_flight or self._kv.num_deferred_blocks:
                output.needs_drain = True
                return False
            victim = self.choose_victim(request)
            if victim is None:
                if not any(running.is_finished for running in self._queues.running):
                    self._departures.fail_as_too_large(request)
                else:
                    self.take_back(request, 0, output, "its static batch holds the rest")
                return False
            num_blocks = max(missing, len(self._queues.running)) if victim is not request else 0
            self.take_back(victim, num_blocks, output, f"for {request.request_id}")
            if victim is request:
                return False
        return True

    def choose_victim(self, request: Request) -> Request | None:
        """Who gives memory: the last in rank, of those that kept blocks, then of the running.

        None: `request` is alone and still lacks memory.
        """
        holder = self._queues.last_holder()
        if holder is not None:
            return holder
        candidates = [running for running in self._queues.running if not running.is_finished]
        victim = candidates[-1]
        return None if victim is request and len(candidates) == 1 else victim

    def take_back(
        self, victim: Request, num_blocks: int, output: SchedulerOutput, reason: str
    ) -> None:
        """Preempt: give up (or swap out) the last blocks of a request and put it back in line."""
        kv = self._kv
        table_size = len(victim.block_table)
        if num_blocks > kv.num_reclaimable_blocks(victim):
            num_blocks = table_size
        keep = table_size - num_blocks
        num_tokens = max(0, victim.num_computed_tokens - keep * kv.block_size)
        mode, why = self._choose_mode(victim, num_blocks, num_tokens)
        free_before = kv.num_free_blocks
        self._queues.take_out(victim)
        if mode == "swap":
            kv.swap_out(victim, num_blocks)
        else:
            kv.drop_tail(victim, num_blocks)
            victim.num_recomputes += num_tokens > 0
        self._queues.put_back(victim)
        self.num_preemptions[mode] += 1
        output.preemptions.append(
            Preemption(
                request_id=victim.request_id,
                mode=mode,
                num_blocks=kv.num_free_blocks - free_before,
                num_blocks_kept=keep,
                num_tokens_dropped=num_tokens,
                swap_cost_s=self._cost.swap_s(kv.num_blocks_for(num_tokens)),
                recompute_cost_s=self._cost.recompute_s(num_tokens),
                reason=f"{reason}; {why}",
            )
        )

    def _choose_mode(
        self, victim: Request, num_blocks: int, num_tokens: int
    ) -> tuple[PreemptionMode, str]:
        """Swap or recompute, and why."""
        if num_tokens == 0 and not victim.host_blocks:
            return "recompute", "nothing computed is lost"
        if self._mode == "recompute":
            return "recompute", "preemption_mode is recompute"
        if not self._kv.can_swap_out(victim, num_blocks):
            return "recompute", "the swap pool has no room"
        if self._mode == "swap":
            return "swap", "preemption_mode is swap"
        if victim.host_blocks:
            return "swap", "the rest is swapped out already"
        if victim.num_recomputes >= _MAX_RECOMPUTES:
            return "swap", "it was recomputed twice"
        if self._cost.prefers_swap(self._kv.num_blocks_for(num_tokens), num_tokens):
            return "swap", "estimated cheaper"
        return "recompute", "estimated cheaper"
