"""Batching and prefill policies, asked directly."""

from __future__ import annotations

import pytest

from chairlift.config import BatchingPolicyName
from chairlift.core.batching_policy import BatchingPolicy, create_batching_policy
from chairlift.core.prefill_policy import StepPhases, create_prefill_policy


def batching(name: BatchingPolicyName) -> BatchingPolicy:
    return create_batching_policy(name, max_num_seqs=8, static_batch_size=4, batch_wait_s=1.0)


def admissible(
    policy: BatchingPolicy, *, now: float = 0.0, num_waiting: int, num_running: int = 0
) -> int:
    return policy.num_admissible(
        now=now, num_waiting=num_waiting, oldest_arrival=0.0, num_running=num_running
    )


def test_continuous_admits_beside_running_requests() -> None:
    policy = batching("continuous")
    assert admissible(policy, num_waiting=5, num_running=3) == 5
    assert policy.wake_at(num_waiting=5, oldest_arrival=0.0, num_running=0) is None
    assert policy.admits_while_running and not policy.holds_finished


@pytest.mark.parametrize(("name", "size"), [("dynamic", 8), ("static", 4)])
def test_batch_forms_when_full_or_due(name: BatchingPolicyName, size: int) -> None:
    policy = batching(name)
    assert admissible(policy, num_waiting=size - 1, now=0.9) == 0
    assert admissible(policy, num_waiting=size + 3, now=0.9) == size
    assert admissible(policy, num_waiting=2, now=1.0) == 2


@pytest.mark.parametrize("name", ["dynamic", "static"])
def test_nobody_gets_on_a_running_batch(name: BatchingPolicyName) -> None:
    policy = batching(name)
    assert admissible(policy, num_waiting=20, num_running=1, now=9.0) == 0
    assert not policy.admits_while_running


def test_batch_stays_open_while_only_the_budget_keeps_members_out() -> None:
    policy = batching("static")
    assert admissible(policy, num_waiting=9) == 4
    policy.step_admitted(1, "max_num_batched_tokens")
    assert admissible(policy, num_waiting=8, num_running=1) == 3
    policy.step_admitted(2, "long_prefill")
    assert admissible(policy, num_waiting=6, num_running=3) == 1
    policy.step_admitted(1, "batching_policy")
    assert admissible(policy, num_waiting=5, num_running=4) == 0


def test_batch_closes_when_memory_keeps_members_out() -> None:
    policy = batching("dynamic")
    assert admissible(policy, num_waiting=8) == 8
    policy.step_admitted(3, "blocks")
    assert admissible(policy, num_waiting=5, num_running=3) == 0


@pytest.mark.parametrize("name", ["dynamic", "static"])
def test_window_ends_at_once_for_a_full_batch(name: BatchingPolicyName) -> None:
    policy = batching(name)
    assert policy.wake_at(num_waiting=1, oldest_arrival=5.0, num_running=0) == 6.0
    assert policy.wake_at(num_waiting=8, oldest_arrival=5.0, num_running=0) == 5.0
    assert policy.wake_at(num_waiting=8, oldest_arrival=5.0, num_running=1) is None
    assert policy.wake_at(num_waiting=0, oldest_arrival=5.0, num_running=0) is None


def test_static_batch_is_no_larger_than_the_seats() -> None:
    policy = create_batching_policy(
        "static", max_num_seqs=2, static_batch_size=32, batch_wait_s=1.0
    )
    assert admissible(policy, num_waiting=10) == 2
    assert policy.holds_finished


def test_chunked_steps_hold_both_kinds() -> None:
    policy = create_prefill_policy("chunked")
    assert policy.phases(has_prefill=True, has_decode=True) == StepPhases(True, True)


def test_separated_steps_alternate_while_both_kinds_have_work() -> None:
    policy = create_prefill_policy("separated")
    kinds = []
    for _ in range(4):
        phases = policy.phases(has_prefill=True, has_decode=True)
        assert phases.decode != phases.prefill
        policy.step_built(has_prefill=phases.prefill)
        kinds.append("prefill" if phases.prefill else "decode")
    assert kinds == ["prefill", "decode", "prefill", "decode"]


def test_separated_prefills_go_on_when_nobody_decodes() -> None:
    policy = create_prefill_policy("separated")
    policy.step_built(has_prefill=True)
    assert policy.phases(has_prefill=True, has_decode=False) == StepPhases(False, True)
    assert policy.phases(has_prefill=False, has_decode=True) == StepPhases(True, False)
