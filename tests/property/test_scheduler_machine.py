"""Everything at once: the real scheduler, cache and loop under arbitrary sequences of events.

The fake executor checks the contents of memory at each step; the machine checks the books after
each event, and at the end that every request ended once, with the tokens it yields when alone.
`CHAIRLIFT_FULL=1` runs a hundred times as many examples.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from chairlift.clock import ManualClock
from chairlift.config import SchedulerConfig
from chairlift.core.engine_core import EngineCore
from chairlift.core.kv_cache_manager import KVCacheManager
from chairlift.core.preemption_cost import PreemptionCost
from chairlift.core.request import RequestStatus
from chairlift.core.scheduler import Scheduler
from chairlift.core.scheduler_output import RequestUpdate, SchedulerOutput
from chairlift.errors import RequestError
from chairlift.events import StepRecord
from chairlift.pooling_params import PoolingType
from fake_executor import (
    FakeExecutor,
    FaultPoint,
    make_request,
    prefix_hashes,
    solo_tokens,
    solo_vector,
)

IS_FULL = os.environ.get("CHAIRLIFT_FULL") == "1"
NUM_EXAMPLES = 20_000 if IS_FULL else 200
FAMILIES = ([0, 1, 2, 3, 4] * 4, [1, 1, 1, 1] * 5, [4, 2, 0, 3] * 5)
"""Prompts begin like one of these, so that prefixes are shared."""

PLAGUES = ("departures", "faults", "shrinking", "nudges")
"""Kinds of disturbance; each example has some of them, so that calm ones get far."""


@dataclass
class Expected:
    """What the machine knows of a request that it has handed in."""

    prompt: list[int]
    max_tokens: int
    """0: the vector of its prompt is wanted, and no token."""
    seed: int
    stops: tuple[int, ...]
    salt: str
    priority: int
    tenant: str
    pooling_type: PoolingType = "last"
    vector: list[float] | None = None
    tokens: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    num_releases: int = 0
    was_cut: bool = False

    def solo(self) -> list[int]:
        return solo_tokens(
            self.prompt, max_tokens=self.max_tokens, seed=self.seed, stop_token_ids=self.stops
        )


class NudgedScheduler(Scheduler):
    """The scheduler, with preemptions from outside, before anybody's claim to a seat is heard."""

    def __init__(
        self, config: SchedulerConfig, kv_cache_manager: KVCacheManager, cost: PreemptionCost
    ) -> None:
        super().__init__(config, kv_cache_manager, cost)
        self.nudges: list[tuple[int, int]] = []
        self.num_nudged = 0
        self._settle = self.seat_claims.settle
        self.seat_claims.settle = self._nudge_and_settle  # type: ignore[method-assign]

    def _nudge_and_settle(self, output: SchedulerOutput) -> None:
        nudges, self.nudges = self.nudges, []
        for index, num_blocks in nudges:
            candidates = [request for request in self.running if not request.is_finished]
            if candidates and not self.kv.num_steps_in_flight:
                victim = candidates[index % len(candidates)]
                size = min(num_blocks, len(victim.block_table))
                self.preemptor.take_back(victim, size, output, "a nudge")
                self.num_nudged += 1
        self._settle(output)


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, departures, faults and shortages in any order."""

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        draw = data.draw
        block_size = draw(st.integers(1, 4))
        kv = KVCacheManager(
            draw(st.integers(2, 14)),
            block_size,
            enable_prefix_caching=draw(st.booleans()),
            num_swap_blocks=draw(st.sampled_from([0, 1, 3, 8, 20])),
        )
        max_num_seqs = draw(st.integers(1, 6))
        self.config = SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + draw(st.integers(0, 12)),
            batching_policy=draw(
                st.sampled_from(["continuous", "continuous", "dynamic", "static"])
            ),
            prefill_policy=draw(st.sampled_from(["chunked", "separated"])),
            scheduling_policy=draw(st.sampled_from(["fcfs", "priority"])),
            preemption_mode=draw(st.sampled_from(["auto", "recompute", "swap"])),
            static_batch_size=draw(st.integers(1, 6)),
            batch_wait_ms=50.0,
        )
        cost = PreemptionCost(swap_out_s_per_block=draw(st.sampled_from([1e-5, 1e-3, 1e-2])))
        self.plagues = draw(st.sets(st.sampled_from(PLAGUES)))
        self.clock = ManualClock()
        self.kv = kv
        self.scheduler = NudgedScheduler(self.config, kv, cost)
        if draw(st.booleans()):
            self.scheduler.share_fairly({"heavy": 3})
            self.scheduler.seat_claims.patience_steps = draw(st.integers(0, 4))
        self.executor = FakeExecutor.for_cache(kv, draw(st.integers(0, 1)))
        self.core = EngineCore(self.scheduler, self.executor, self.clock)
        self.core.recorder.listen(self.on_record)
        self.expected: dict[str, Expected] = {}
        self.ended: list[Expected] = []
        self.preempted: list[str] = []
        self.num_troubles = 0
        self.num_steps = 0
        self.may_fail = False

    # -- arrivals ------------------------------------------------------------------------------
    @rule(data=st.data(), num_requests=st.integers(1, 4))
    def add(self, data: st.DataObject, num_requests: int) -> None:
        for _ in range(num_requests):
            self.add_one(data.draw)

    def add_one(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        room = self.kv.capacity_tokens + 1
        max_tokens = draw(st.integers(1, max(1, min(room - 1, 24))))
        length = draw(st.integers(1, max(1, min(room - max_tokens, 28))))
        max_tokens = draw(st.sampled_from([max_tokens, max_tokens, max_tokens, 0]))
        shared = draw(st.integers(0, length))
        tail = draw(st.lists(st.integers(0, 2), min_size=length, max_size=length))
        prompt = (FAMILIES[draw(st.integers(0, 2))][:shared] + tail)[:length]
        request = Expected(
            prompt=prompt,
            max_tokens=max_tokens,
            seed=draw(st.integers(0, 3)),
            stops=draw(st.sampled_from([(), (), (), (), (0,), (3, 4)])),
            salt=draw(st.sampled_from(["", "", "tenant"])),
            priority=draw(st.integers(0, 2)),
            tenant=draw(st.sampled_from(["light", "light", "heavy", "other"])),
            pooling_type=draw(st.sampled_from(["last", "mean"])),
        )
        # Ids of requests that have gone may come again at once.
        name = draw(st.sampled_from(["a", "b", "c"])) if draw(st.booleans()) else None
        name = name if name is not None and name not in self.expected else f"r{self.num_requests}"
        if self.put(name, request, None):
            for index in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):
                self.fork(name, request, f"r{self.num_requests}.{index}")

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def fork_late(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.live))
        self.fork(name, self.expected[name], f"r{self.num_requests}.late")

    def fork(self, sibling: str, original: Expected, name: str) -> None:
        copy = Expected(
            prompt=original.prompt,
            max_tokens=original.max_tokens,
            seed=original.seed + 7 + len(self.expected),
            stops=original.stops,
            salt=original.salt,
            priority=original.priority,
            tenant=original.tenant,
            pooling_type=original.pooling_type,
        )
        self.put(name, copy, sibling)

    def put(self, name: str, expected: Expected, fork_of: str | None) -> bool:
        request = make_request(
            name,
            expected.prompt,
            expected.max_tokens,
            seed=expected.seed,
            stop_token_ids=expected.stops,
            priority=expected.priority,
            arrival_time=self.clock.now(),
            fork_of=fork_of,
            cache_salt=expected.salt,
            tenant=expected.tenant,
            pooling_type=expected.pooling_type,
        )
        try:
            self.core.add_request(request)
        except RequestError:
            assert request.num_max_tokens > self.kv.capacity_tokens
            return False
        self.num_troubles += 1
        self.expected[name] = expected
        return True

    # -- events --------------------------------------------------------------------------------
    @rule()
    def step(self) -> None:
        self.run_step()

    @rule()
    def some_steps(self) -> None:
        for _ in range(6):
            self.run_step()
            self.check_books()

    @precondition(lambda self: self.live and "departures" in self.plagues)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.live))
        is_known = name in self.scheduler.requests  # or its end is still to be told
        self.expected[name].was_cut |= is_known and not self.expected[name].reasons
        update = self.core.abort(name)
        assert (update is not None) == is_known
        if update is not None:
            assert update.is_released
            self.on_updates([update])
        assert self.core.abort(name) is None

    @precondition(lambda self: self.live and "departures" in self.plagues)
    @rule(data=st.data())
    def finish_outside(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.live))
        if not self.expected[name].reasons:
            self.expected[name].was_cut = True
        self.scheduler.finish(name, RequestStatus.FINISHED_STOPPED, stop_reason="fox")

    @precondition(lambda self: "nudges" in self.plagues)
    @rule(index=st.integers(0, 5), num_blocks=st.integers(0, 14))
    def nudge(self, index: int, num_blocks: int) -> None:
        self.scheduler.nudges.append((index, num_blocks))

    @precondition(lambda self: "shrinking" in self.plagues)
    @rule(num_blocks=st.integers(1, 6))
    def shrink(self, num_blocks: int) -> None:
        self.num_troubles += 1
        if self.kv.pool.num_usable_blocks > num_blocks:
            self.may_fail |= self.kv.pool.retire(num_blocks) > 0

    @precondition(lambda self: "shrinking" in self.plagues)
    @rule(num_blocks=st.integers(1, 6))
    def restore(self, num_blocks: int) -> None:
        self.num_troubles += 1
        self.kv.pool.restore(num_blocks)

    @precondition(lambda self: "faults" in self.plagues)
    @rule(point=st.sampled_from(["submit", "before_moves", "after_moves", "after_compute"]))
    def break_step(self, point: FaultPoint) -> None:
        self.may_fail = True
        self.num_troubles += 1
        self.executor.fault = point

    @precondition(lambda self: self.live and "faults" in self.plagues)
    @rule(data=st.data())
    def break_request(self, data: st.DataObject) -> None:
        self.may_fail = True
        self.executor.request_faults.add(data.draw(st.sampled_from(self.live)))

    @rule(milliseconds=st.sampled_from([1, 30, 60]))
    def wait(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds / 1e3)

    # -- checks --------------------------------------------------------------------------------
    @invariant()
    def check_books(self) -> None:
        if not hasattr(self, "core"):
            return
        scheduler = self.scheduler
        scheduler.check_integrity()
        assert len(scheduler.running) <= self.config.max_num_seqs
        assert set(scheduler.requests) <= set(self.live)
        for request in scheduler.requests.values():
            assert request.num_computed_tokens <= request.num_tokens + request.num_pending_tokens
            assert request.num_pending_tokens <= self.executor.overlap_depth
        for step in self.core._in_flight:
            for item in step.output.scheduled:
                assert all(self.kv.pool.ref_count(block_id) for block_id in item.block_table)
        self.check_cache()
        self.executor.poison_free(self.kv)

    def check_cache(self) -> None:
        """Each cached block holds what its place in the tree says, and its parents are there."""
        cache, pool = self.kv.prefix_cache, self.kv.pool
        nodes = {node.node_id: node for node in cache._by_block.values()}
        assert len(nodes) == len(cache._nodes) == len(cache)
        for block_id, node in cache._by_block.items():
            assert block_id == node.block_id and pool.is_cached(block_id)
            tokens, parent = list(node.tokens), node.parent
            while not isinstance(parent, str):
                tokens[:0] = nodes[parent].tokens
                parent = nodes[parent].parent
            stored = self.executor.memory[block_id][: len(node.tokens)]
            assert stored == prefix_hashes(tokens)[-len(stored) :]
        assert sum(map(pool.is_cached, range(pool.num_blocks))) == len(cache)

    def on_record(self, record: StepRecord) -> None:
        num_tokens = sum(member.num_new_tokens for member in record.members)
        assert num_tokens <= self.config.max_num_batched_tokens
        assert len(record.members) <= self.config.max_num_seqs
        self.preempted.extend(preemption.request_id for preemption in record.preemptions)

    def on_updates(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            expected = self.expected[update.request_id]
            expected.tokens.extend(update.new_token_ids)
            if update.pooled is not None:
                assert expected.vector is None
                expected.vector = update.pooled.tolist()
            if update.finish_reason is not None:
                expected.reasons.append(update.finish_reason)
                assert (update.finish_reason == "error") == (update.error is not None)
            if update.is_released:
                expected.num_releases += 1
                self.ended.append(self.expected.pop(update.request_id))
                self.check_ended(expected)

    def check_ended(self, expected: Expected) -> None:
        assert len(expected.reasons) == 1 and expected.num_releases == 1
        solo, reason = expected.solo(), expected.reasons[0]
        if reason == "error":
            assert self.may_fail
        elif not expected.was_cut:
            stops = not solo or solo[-1] in expected.stops
            assert reason == ("stop" if stops else "length")
            assert expected.tokens == solo
            assert (expected.vector is None) == (expected.max_tokens > 0)
        assert expected.tokens == solo[: len(expected.tokens)]
        if expected.vector is not None:
            assert expected.vector == solo_vector(expected.prompt, expected.pooling_type)

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        self.run_dry()
        assert not self.expected and not self.scheduler.requests
        self.run_step()  # the executor hears of the last departures
        assert not self.executor.tokens, "the executor keeps a request that has gone"
        assert self.kv.num_free_blocks == self.kv.pool.num_usable_blocks
        assert self.kv.swap_pool.num_free_blocks == self.kv.swap_pool.num_blocks
        self.check_preemptions()

    def run_dry(self) -> None:
        work = sum(len(e.prompt) + e.max_tokens for e in self.expected.values())
        limit = self.num_steps + 20 + 4 * work
        while self.core.has_work:
            assert self.num_steps < limit, "livelock"
            self.run_step()
            self.check_books()
            idle_s = self.core.idle_s()
            if idle_s:
                self.clock.advance(idle_s + 1e-9)

    def run_step(self) -> None:
        self.num_steps += 1
        self.on_updates(self.core.step())

    def check_preemptions(self) -> None:
        """Each preemption was paid for: by a token, an arrival or a change from outside."""
        num_tokens = sum(len(expected.tokens) for expected in self.ended)
        paid = num_tokens + self.num_troubles + self.scheduler.num_nudged
        assert len(self.preempted) <= paid, (len(self.preempted), paid)

    @property
    def live(self) -> list[str]:
        return list(self.expected) if hasattr(self, "expected") else []

    @property
    def num_requests(self) -> int:
        return len(self.expected) + len(self.ended)


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=NUM_EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    derandomize=not IS_FULL,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
