"""The figures of a run, computed by hand."""

from __future__ import annotations

import pytest

from chairlift.bench.policy_run import PolicyRun, RequestResult, percentile
from unit.bench.step_records import make_record


def _result(name: str, num_tokens: int, arrival_s: float, first_token_s: float) -> RequestResult:
    return RequestResult(
        request_id=name,
        num_prompt_tokens=3,
        token_ids=(7,) * num_tokens,
        arrival_s=arrival_s,
        first_token_s=first_token_s,
        finished_s=first_token_s,
    )


def test_figures() -> None:
    records = (
        make_record(0, {"a": "prefill", "b": "prefill"}, num_waiting=1),
        make_record(1, {"a": "padding", "b": "decode"}, execute_s=3.0),
    )
    run = PolicyRun(
        policy="static",
        num_seats=4,
        start_s=10.0,
        duration_s=5.0,
        records=records,
        results=(_result("a", 4, 10.0, 11.0), _result("b", 6, 10.5, 14.5)),
    )
    assert run.num_output_tokens == 10
    assert run.tokens_per_s == 2.0
    assert run.mean_batch == 1.5  # two, then one: padding is of no use
    assert run.mean_running == 2.0
    assert run.wasted_share == pytest.approx((1 * 1 + 3 * 1) / (4 * 4))
    assert run.first_token_s(0.5) == 1.0
    assert run.first_token_s(0.99) == 4.0


def test_percentile_is_nearest_rank() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert percentile(values, 0.5) == 50.0
    assert percentile(values, 0.99) == 99.0
    assert percentile(values, 1.0) == 100.0
    assert percentile([3.0], 0.01) == 3.0
