"""Static and dynamic batching in the same scheduler."""

from __future__ import annotations

import pytest

from fake_executor import Rig


def static_rig(**options: object) -> Rig:
    return Rig(
        batching_policy="static",
        **{"static_batch_size": 2, "max_num_seqs": 8} | options,  # type: ignore[arg-type]
    )


def kinds(rig: Rig) -> dict[str, str]:
    return {member.request_id: member.kind for member in rig.records[-1].members}


def test_static_batch_waits_until_it_is_full() -> None:
    rig = static_rig()
    rig.add("a", 3, 2)
    rig.step()
    assert rig.running_ids == [] and rig.core.idle_s() == pytest.approx(0.05)
    rig.add("b", 3, 2)
    assert rig.core.idle_s() == 0.0, "a full batch need not sit out its window"
    rig.step()
    assert rig.running_ids == ["a", "b"]


def test_static_batch_starts_incomplete_after_its_window() -> None:
    rig = static_rig(batch_wait_ms=50.0)
    rig.add("a", 3, 2)
    rig.clock.advance(0.049)
    rig.step()
    assert rig.records == []
    rig.clock.advance(0.002)
    rig.step()
    assert rig.running_ids == ["a"]


def test_finished_members_compute_padding_and_are_answered_together() -> None:
    rig = static_rig()
    rig.add("short", 3, 1)
    rig.add("long", 3, 4)
    rig.step()
    assert rig.endings["short"].reason == "length" and not rig.endings["short"].is_released
    rig.step()
    assert kinds(rig) == {"short": "padding", "long": "decode"}
    assert rig.records[-1].num_padding_tokens == 1
    rig.run()
    assert {ending.released_at_step for ending in rig.endings.values()} == {4}
    rig.check_solo()


def test_d11_static_trace_lists_the_members_of_each_step() -> None:
    rig = static_rig()
    rig.add("a", 3, 1)
    rig.add("b", 3, 3)
    rig.add("c", 3, 1)
    rig.run()
    trace = [[f"{m.request_id}:{m.kind}" for m in record.members] for record in rig.records]
    assert trace == [
        ["a:prefill", "b:prefill"],
        ["a:padding", "b:decode"],
        ["a:padding", "b:decode"],
        ["c:prefill"],
    ]


def test_nobody_takes_the_place_of_a_finished_member() -> None:
    rig = static_rig()
    rig.add("a", 3, 1)
    rig.add("b", 3, 5)
    rig.step()
    rig.add("c", 3, 1)
    rig.add("d", 3, 1)
    rig.step(3)
    assert rig.records[-1].limit == "batching_policy" and rig.scheduler.num_waiting == 2
    rig.run()
    rig.check_solo()


def test_aborted_member_leaves_its_static_batch_at_once() -> None:
    rig = static_rig()
    rig.add("a", 3, 1)
    rig.add("b", 3, 9)
    rig.step(2)
    free = rig.kv.num_free_blocks
    rig.abort("a")
    assert rig.endings["a"].reason == "length", "its end had been told already"
    assert rig.endings["a"].is_released and rig.kv.num_free_blocks > free
    rig.run()
    rig.check_solo()


def test_abort_of_the_last_member_hands_over_the_others_answers() -> None:
    rig = static_rig()
    rig.add("a", 3, 1)
    rig.add("b", 3, 9)
    rig.step(2)
    rig.abort("b")
    assert not rig.scheduler.has_requests and rig.core.has_work
    rig.run()
    rig.check_solo("a")


@pytest.mark.parametrize("policy", ["static", "dynamic"])
def test_prompts_beyond_one_steps_budget_form_one_batch(policy: str) -> None:
    rig = Rig(batching_policy=policy, static_batch_size=4, max_num_seqs=4, max_num_batched_tokens=8)
    for name in "abcd":
        rig.add(name, 8, 6)
    rig.step(4)
    assert rig.running_ids == ["a", "b", "c", "d"]
    rig.run()
    rig.check_solo()


def test_dynamic_member_leaves_but_its_place_stays_empty() -> None:
    rig = Rig(batching_policy="dynamic", max_num_seqs=2)
    for name, max_tokens in (("a", 1), ("b", 4), ("c", 2)):
        rig.add(name, 3, max_tokens)
    rig.step(2)
    assert rig.endings["a"].released_at_step == 1
    assert kinds(rig) == {"b": "decode"}
    rig.step(2)
    assert rig.scheduler.num_waiting == 1
    rig.run()
    rig.check_solo()


def test_continuous_fills_the_place_in_the_next_step() -> None:
    rig = Rig(max_num_seqs=2)
    for name, max_tokens in (("a", 1), ("b", 4), ("c", 2)):
        rig.add(name, 3, max_tokens)
    rig.step(2)
    assert kinds(rig) == {"b": "decode", "c": "prefill"}


def test_static_batch_in_a_small_pool_ends() -> None:
    rig = static_rig(static_batch_size=4)
    rig = Rig(6, batching_policy="static", static_batch_size=4, max_num_seqs=4)
    for name in "abcd":
        rig.add(name, 4, 12)
    rig.run()
    rig.check_solo()


def test_priority_does_not_break_up_a_batch_that_nobody_may_join() -> None:
    rig = Rig(batching_policy="dynamic", scheduling_policy="priority", max_num_seqs=2)
    rig.add("a", 3, 6, priority=1)
    rig.add("b", 3, 6, priority=1)
    rig.step(2)
    rig.add("urgent", 3, 2, priority=0)
    rig.run()
    assert not any(rig.scheduler.num_preemptions.values())
    rig.check_solo()
