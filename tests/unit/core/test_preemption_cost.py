"""The estimate behind swap or recompute."""

from __future__ import annotations

import pytest

from chairlift.core.preemption_cost import PreemptionCost


def test_swap_costs_both_ways_and_recompute_costs_tokens() -> None:
    cost = PreemptionCost(
        swap_out_s_per_block=0.002, swap_in_s_per_block=0.001, prefill_s_per_token=0.01
    )
    assert cost.swap_s(10) == pytest.approx(0.03)
    assert cost.recompute_s(160) == pytest.approx(1.6)


def test_swap_must_be_clearly_cheaper() -> None:
    cost = PreemptionCost(
        swap_out_s_per_block=0.5, swap_in_s_per_block=0.5, prefill_s_per_token=1.0
    )
    assert cost.prefers_swap(num_blocks=79, num_tokens=100)
    assert not cost.prefers_swap(num_blocks=80, num_tokens=100)


def test_estimates_follow_what_is_measured() -> None:
    cost = PreemptionCost()
    for _ in range(60):
        cost.observe_swap_out(4, 0.4)
        cost.observe_swap_in(2, 0.1)
        cost.observe_step(64, 64, 0.64)
    assert cost.swap_out_s_per_block == pytest.approx(0.1, rel=1e-3)
    assert cost.swap_in_s_per_block == pytest.approx(0.05, rel=1e-3)
    assert cost.prefill_s_per_token == pytest.approx(0.01, rel=1e-3)


def test_steps_that_say_little_are_ignored() -> None:
    cost = PreemptionCost()
    cost.observe_step(31, 31, 9.0)
    cost.observe_step(100, 49, 9.0)
    cost.observe_swap_out(0, 9.0)
    cost.observe_swap_in(0, 9.0)
    assert cost == PreemptionCost()
