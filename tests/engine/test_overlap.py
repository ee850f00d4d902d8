"""One step ahead of the tokens: the same tokens, and no block is freed under a step in flight."""

from __future__ import annotations

import random

import pytest

from chairlift.core.request import RequestStatus
from fake_executor import Rig


def play(seed: int, overlap_depth: int) -> Rig:
    """A random small pool with arrivals, forks and stop tokens; the same for both depths."""
    rng = random.Random(seed)
    rig = Rig(
        rng.randint(6, 16),
        num_swap_blocks=rng.choice([0, 4, 16]),
        enable_prefix_caching=rng.random() < 0.5,
        overlap_depth=overlap_depth,
        max_num_seqs=rng.randint(2, 6),
        max_num_batched_tokens=rng.randint(6, 24),
        batching_policy=rng.choice(["continuous", "continuous", "dynamic", "static"]),
        prefill_policy=rng.choice(["chunked", "separated"]),
        scheduling_policy=rng.choice(["fcfs", "priority"]),
        preemption_mode=rng.choice(["auto", "recompute", "swap"]),
    )
    for index in range(10):
        name = f"r{index}"
        prompt = [0] * rng.randint(0, 6) + [rng.randint(0, 2) for _ in range(rng.randint(1, 8))]
        stops = rng.choice([(), (), (3,)])
        priority, max_tokens = rng.randint(0, 2), rng.randint(1, 10)
        named = {"seed": index, "stop_token_ids": stops, "priority": priority}
        rig.add(name, prompt, max_tokens, **named)
        if rng.random() < 0.3:
            rig.add(f"{name}.1", prompt, max_tokens, fork_of=name, **named | {"seed": 50 + index})
        for _ in range(rng.randint(0, 3)):
            step_and_look(rig)
    while rig.core.has_work:
        assert rig.num_steps < 2000
        step_and_look(rig)
        if idle_s := rig.core.idle_s():
            rig.clock.advance(idle_s + 1e-9)
    return rig


def step_and_look(rig: Rig) -> None:
    rig.step()
    for step in rig.core._in_flight:
        for item in step.output.scheduled:
            assert all(rig.kv.pool.ref_count(block_id) for block_id in item.block_table)


@pytest.mark.parametrize("seed", range(60))
def test_overlap_depth_1_equals_depth_0(seed: int) -> None:
    ahead, behind = play(seed, 1), play(seed, 0)
    assert ahead.endings.keys() == behind.endings.keys()
    for name, ending in ahead.endings.items():
        assert (ending.tokens, ending.reason) == (
            behind.endings[name].tokens,
            behind.endings[name].reason,
        )
    ahead.check_solo()


def test_step_is_submitted_before_the_one_before_is_read() -> None:
    rig = Rig(overlap_depth=1)
    rig.add("a", 4, 5)
    rig.step()
    assert rig.endings["a"].tokens == [] and rig.requests["a"].num_pending_tokens == 1
    rig.step()
    assert len(rig.endings["a"].tokens) == 1 and len(rig.executor.steps) == 2
    rig.run()
    rig.check_solo()
    assert len(rig.records) == 5, "no step beyond the last token"


def test_token_computed_past_a_stop_is_thrown_away() -> None:
    rig = Rig(overlap_depth=1)
    rig.add("a", 4, 60, stop_token_ids=[0])
    rig.run()
    rig.check_solo()
    assert rig.endings["a"].reason == "stop"
    assert rig.records[-1].num_sampled_tokens == 1, "one step was ahead"


def test_blocks_of_an_aborted_request_stay_until_its_step_is_read() -> None:
    rig = Rig(8, overlap_depth=1)
    rig.add("a", 12, 9)
    rig.step()
    rig.abort("a")
    assert rig.kv.num_free_blocks == 5 and rig.kv.num_deferred_blocks == 3
    rig.step()
    assert rig.kv.num_free_blocks == 8


def test_step_in_flight_is_not_booked_for_a_new_request_of_the_same_id() -> None:
    rig = Rig(overlap_depth=1)
    rig.add("a", [1, 2, 3], 5, seed=1)
    rig.step(2)
    rig.abort("a")
    rig.add("a", [4, 4, 4, 4], 5, seed=2)
    rig.run()
    rig.check_solo()


def test_shortage_reads_the_steps_in_flight_before_it_preempts() -> None:
    rig = Rig(8, overlap_depth=1, preemption_mode="swap", num_swap_blocks=8)
    rig.add("a", 10, 18)
    rig.add("b", 10, 18)
    rig.run()
    assert rig.scheduler.num_preemptions["swap"]
    rig.check_solo()


def test_priority_preempts_although_steps_are_in_flight() -> None:
    rig = Rig(overlap_depth=1, scheduling_policy="priority", max_num_seqs=1)
    rig.add("low", 6, 30, priority=5)
    rig.step(3)
    rig.add("high", 6, 2, priority=0)
    rig.step(6)
    assert rig.endings["high"].is_released and not rig.endings["low"].is_released
    rig.run()
    rig.check_solo()


def test_fork_does_not_build_on_a_prompt_whose_step_may_still_fail() -> None:
    rig = Rig(overlap_depth=1, enable_prefix_caching=False)
    rig.add("a", 8, 6)
    rig.executor.fault = "before_moves"
    rig.step()
    rig.add("fork", rig.requests["a"].prompt_token_ids, 6, seed=1, fork_of="a")
    rig.run()
    assert rig.endings["a"].reason == "error"
    rig.check_solo("fork")


def test_swapped_blocks_that_a_failed_step_lost_are_not_used() -> None:
    rig = Rig(
        overlap_depth=1,
        num_swap_blocks=16,
        preemption_mode="swap",
        enable_prefix_caching=False,
        max_num_seqs=4,
    )
    rig.add("a", 8, 30)
    victim = rig.add("b", 8, 30)
    rig.step(4)
    while rig.core._in_flight:
        rig.take(rig.core._read_oldest())
    settle = rig.scheduler.seat_claims.settle

    def preempt_once(output: object) -> None:
        rig.scheduler.seat_claims.settle = settle  # type: ignore[method-assign]
        rig.scheduler.preemptor.take_back(victim, len(victim.block_table), output, "test")  # type: ignore[arg-type]

    rig.scheduler.seat_claims.settle = preempt_once  # type: ignore[method-assign]
    rig.executor.fault = "before_moves"
    rig.step(2)
    assert victim.status is RequestStatus.FINISHED_ERROR
    rig.run()
    assert {ending.reason for ending in rig.endings.values()} == {"error"}
