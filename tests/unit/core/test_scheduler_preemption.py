"""Memory taken back: everybody ends, unchanged, and the record says what was done and why."""

from __future__ import annotations

import random

import pytest

from chairlift.core.preemption_cost import PreemptionCost
from chairlift.core.request import RequestStatus
from chairlift.errors import RequestError
from chairlift.events import Preemption
from fake_executor import Rig


def preemptions(rig: Rig) -> list[Preemption]:
    return [item for record in rig.records for item in record.preemptions]


@pytest.mark.parametrize("mode", ["auto", "recompute", "swap"])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_c1_four_requests_larger_than_the_pool_all_finish(
    mode: str, enable_prefix_caching: bool
) -> None:
    rig = Rig(
        12,
        num_swap_blocks=8,
        preemption_mode=mode,
        enable_prefix_caching=enable_prefix_caching,
    )
    for name in "abcd":
        rig.add(name, 10, 20)
    rig.run()
    rig.check_solo()
    assert preemptions(rig)


def test_c2_swapped_request_ends_as_uninterrupted() -> None:
    rig = Rig(8, num_swap_blocks=16, preemption_mode="swap", enable_prefix_caching=False)
    rig.add("a", 10, 18)
    victim = rig.add("b", 10, 18)
    statuses = set()
    while rig.core.has_work:
        rig.step()
        statuses.add(victim.status)
    assert RequestStatus.SWAPPED in statuses and victim.num_recomputes == 0
    rig.check_solo()
    num_computed = sum(m.num_new_tokens for r in rig.records for m in r.members)
    assert num_computed == 2 * (10 + 17), "nothing was computed twice"


def test_c3_every_preemption_names_mode_victim_and_cost() -> None:
    cost = PreemptionCost(prefill_s_per_token=0.5, swap_out_s_per_block=0.25)
    for mode in ("recompute", "swap"):
        rig = Rig(8, num_swap_blocks=16, preemption_mode=mode, cost=cost)
        rig.add("a", 10, 18)
        rig.add("b", 10, 18)
        rig.run()
        assert preemptions(rig)
        for item in preemptions(rig):
            assert item.request_id == "b"
            assert "for a" in item.reason or "for b" in item.reason
            if item.num_tokens_dropped:
                assert item.mode == mode and f"preemption_mode is {mode}" in item.reason
                assert item.swap_cost_s > 0 and item.recompute_cost_s > 0
        assert sum(rig.scheduler.num_preemptions.values()) == len(preemptions(rig))


def test_preemption_in_a_step_without_members_is_on_record() -> None:
    rig = Rig(22, prefill_policy="separated", max_num_batched_tokens=8, max_num_seqs=4)
    rig.add("long", 80, 2)
    rig.step()
    rig.add("stream", 4, 12)
    rig.run()
    assert "idle" in [record.kind for record in rig.records if record.preemptions]
    assert len(preemptions(rig)) == sum(rig.scheduler.num_preemptions.values())
    rig.check_solo()


@pytest.mark.parametrize(
    ("swap_s", "prefill_s", "mode"), [(1e-6, 1.0, "swap"), (1.0, 1e-6, "recompute")]
)
def test_auto_takes_the_cheaper_way(swap_s: float, prefill_s: float, mode: str) -> None:
    cost = PreemptionCost(
        swap_out_s_per_block=swap_s, swap_in_s_per_block=swap_s, prefill_s_per_token=prefill_s
    )
    rig = Rig(8, num_swap_blocks=16, cost=cost)
    rig.add("a", 10, 18)
    rig.add("b", 10, 18)
    rig.run()
    first = next(item for item in preemptions(rig) if item.num_tokens_dropped)
    assert first.mode == mode and "estimated cheaper" in first.reason
    assert (first.swap_cost_s < first.recompute_cost_s) == (mode == "swap")


def test_full_swap_pool_falls_back_to_recompute_and_says_so() -> None:
    rig = Rig(8, num_swap_blocks=0, preemption_mode="swap")
    rig.add("a", 10, 18)
    rig.add("b", 10, 18)
    rig.run()
    lossy = [item for item in preemptions(rig) if item.num_tokens_dropped]
    assert lossy and {item.mode for item in lossy} == {"recompute"}
    assert all("no room" in item.reason for item in lossy)
    rig.check_solo()


def test_only_the_tail_is_taken() -> None:
    rig = Rig(12, preemption_mode="recompute", enable_prefix_caching=False)
    rig.add("a", 18, 12)
    rig.add("b", 22, 8)
    while not any(item.num_tokens_dropped for item in preemptions(rig)):
        rig.step()
    assert rig.requests["b"].num_computed_tokens > 0, "the front of its blocks was kept"
    rig.run()
    rig.check_solo()


def test_admission_leaves_a_block_for_each_running_request() -> None:
    rig = Rig(8)
    rig.add("a", 12, 8)
    rig.add("b", 20, 2)
    rig.step()
    assert rig.running_ids == ["a"] and rig.records[-1].limit == "blocks"
    rig.run()
    assert not preemptions(rig)
    rig.check_solo()


def test_blocks_kept_by_preempted_requests_go_first_last_in_rank_first() -> None:
    rig = Rig(scheduling_policy="priority", max_num_seqs=2)
    for name in ("low0", "low1"):
        rig.add(name, 12, 9, priority=5)
    rig.step(2)
    for name in ("high0", "high1"):
        rig.add(name, 12, 9, priority=0)
    rig.step(2)
    assert rig.running_ids == ["high0", "high1"]
    assert rig.scheduler.preemptor.choose_victim(rig.requests["high0"]) is rig.requests["low1"]


def test_last_come_is_preempted_first() -> None:
    rig = Rig(12)
    for name in "abc":
        rig.add(name, 10, 20)
    rig.run()
    assert preemptions(rig)[0].request_id == "c"
    assert "a" not in {item.request_id for item in preemptions(rig)}


def test_c4_request_larger_than_the_pool_is_refused_and_others_live() -> None:
    rig = Rig(8)
    rig.add("a", 10, 10)
    rig.step()
    with pytest.raises(RequestError, match="does not fit the KV cache"):
        rig.add("giant", 30, 4)
    rig.add("exact", 30, 3)
    rig.run()
    rig.check_solo("a", "exact")


def test_pool_that_shrinks_below_a_request_ends_it_alone() -> None:
    rig = Rig(8)
    rig.add("big", 10, 20)
    rig.add("small", 4, 6)
    rig.step(2)
    rig.kv.pool.retire(rig.kv.pool.num_free_blocks)
    rig.step(4)
    rig.run()
    assert rig.endings["big"].reason == "error"
    assert "do not fit the KV cache any more" in (rig.endings["big"].error or "")
    rig.check_solo("small")


@pytest.mark.parametrize("seed", range(120))
def test_c5_no_livelock_in_tiny_pools(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(
        rng.randint(3, 10),
        block_size=rng.choice([1, 2, 4]),
        num_swap_blocks=rng.choice([0, 2, 8]),
        enable_prefix_caching=rng.random() < 0.5,
        overlap_depth=rng.choice([0, 0, 1]),
        max_num_seqs=rng.randint(1, 6),
        max_num_batched_tokens=rng.randint(6, 20),
        batching_policy=rng.choice(["continuous", "continuous", "dynamic", "static"]),
        prefill_policy=rng.choice(["chunked", "separated"]),
        scheduling_policy=rng.choice(["fcfs", "priority"]),
        preemption_mode=rng.choice(["auto", "recompute", "swap"]),
    )
    room = rig.kv.capacity_tokens
    num_tokens = 0
    for index in range(10):
        prompt = rng.randint(1, room)
        max_tokens = rng.randint(1, room - prompt + 1)
        rig.add(f"r{index}", prompt, max_tokens, priority=rng.randint(0, 2), seed=index)
        num_tokens += max_tokens
        rig.step(rng.randint(0, 2))
    rig.run(max_steps=50 + 6 * num_tokens)
    rig.check_solo()
    assert len(preemptions(rig)) <= num_tokens + 10, "each one is paid for by a token or arrival"


# -- priority ----------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_d4_low_priority_job_is_paused_and_resumes_unchanged(mode: str) -> None:
    rig = Rig(
        10,
        num_swap_blocks=10,
        scheduling_policy="priority",
        preemption_mode=mode,
        enable_prefix_caching=False,
    )
    low = rig.add("low", 20, 16, priority=5)
    rig.step(5)
    rig.add("high", 16, 8, priority=0)
    rig.step()
    assert rig.running_ids == ["high"], "it need not wait a step for the memory"
    while not rig.endings["high"].is_released:
        rig.step()
    assert not rig.endings["low"].is_released and low.num_preemptions >= 1
    assert preemptions(rig)[0].reason.startswith("priority of high")
    rig.run()
    rig.check_solo()


def test_paused_job_keeps_its_blocks_where_only_its_seat_is_needed() -> None:
    rig = Rig(scheduling_policy="priority", max_num_seqs=1)
    low = rig.add("low", 20, 16, priority=5)
    rig.step(5)
    rig.add("high", 8, 4, priority=0)
    rig.run()
    assert low.num_recomputes == 0
    num_computed = sum(m.num_new_tokens for r in rig.records for m in r.members)
    assert num_computed == 20 + 15 + 8 + 3, "nothing was computed twice"
    rig.check_solo()


def test_d3_priority_decides_admission_order() -> None:
    rig = Rig(scheduling_policy="priority", max_num_seqs=1)
    rig.add("first", 3, 3, priority=0)
    rig.step()
    for name, priority in (("low", 9), ("middle", 5), ("high", 0), ("high2", 0)):
        rig.add(name, 3, 2, priority=priority)
    rig.run()
    admitted = [name for record in rig.records for name in record.admitted]
    assert admitted == ["first", "high", "high2", "middle", "low"]


def test_d3_priority_is_ignored_under_fcfs() -> None:
    rig = Rig(scheduling_policy="fcfs", max_num_seqs=1)
    rig.add("low", 3, 4, priority=9)
    rig.step()
    rig.add("high", 3, 2, priority=0)
    rig.run()
    assert [name for record in rig.records for name in record.admitted] == ["low", "high"]
    assert not preemptions(rig)


def test_d3_long_high_priority_prompt_is_not_behind_a_long_low_one_in_progress() -> None:
    rig = Rig(128, scheduling_policy="priority", max_num_batched_tokens=8, max_num_seqs=8)
    rig.add("low", 160, 2, priority=5)
    rig.step(2)
    rig.add("high", 40, 2, priority=0)
    rig.add("low_short", 4, 2, priority=5)
    rig.step()
    assert "high" in rig.running_ids
    while not rig.endings["high"].tokens:
        rig.step()
    assert rig.num_steps <= 10, "it takes most of each step at once"
    rig.run()
    rig.check_solo()


def test_d3_low_priority_never_passes_a_high_one_that_waits_for_memory() -> None:
    rig = Rig(12, scheduling_policy="priority", max_num_batched_tokens=8, max_num_seqs=8)
    rig.add("high0", 16, 16, priority=0)
    rig.step(3)
    rig.add("high1", 30, 2, priority=0)
    rig.add("low", 4, 1, priority=5)
    rig.run()
    admitted = [name for record in rig.records for name in record.admitted]
    assert admitted.index("high1") < admitted.index("low")
    assert not any(item.request_id == "low" for item in preemptions(rig))
    rig.check_solo()


def test_d3_memory_kept_by_a_paused_low_job_goes_to_a_high_one() -> None:
    rig = Rig(12, scheduling_policy="priority", max_num_seqs=2, enable_prefix_caching=False)
    rig.add("low", 32, 4, priority=5)
    rig.add("high0", 4, 12, priority=0)
    rig.step(2)
    rig.add("high1", 4, 12, priority=0)  # takes the seat of the low one, which keeps its blocks
    rig.step(2)
    assert rig.running_ids == ["high0", "high1"]
    assert rig.requests["low"].block_table
    rig.abort("high1")
    rig.add("high2", 20, 4, priority=0)
    rig.step()
    assert "high2" in rig.running_ids, "the paused job's blocks must not keep it out"
    rig.run()
    rig.check_solo("low", "high0", "high2")
