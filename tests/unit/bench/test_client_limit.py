"""The bench says when it was the client that kept the batch small."""

from __future__ import annotations

from chairlift.bench.client_limit import client_limit_note
from chairlift.bench.policy_run import PolicyRun
from chairlift.events import StepRecord
from unit.bench.step_records import make_record


def _run(records: list[StepRecord], num_seats: int = 32) -> PolicyRun:
    return PolicyRun(
        policy="continuous",
        num_seats=num_seats,
        start_s=0.0,
        duration_s=float(len(records)),
        records=tuple(records),
        results=(),
    )


def test_d10_bench_says_when_the_client_was_the_limit() -> None:
    run = _run([make_record(step, {"a": "decode"}) for step in range(10)])
    note = client_limit_note(run, 1)
    assert note is not None and "1.0 requests ran" in note
    assert "the client sends one at a time: no engine setting helps" in note


def test_d10_several_at_once_but_fewer_than_seats() -> None:
    members = {str(index): "decode" for index in range(8)}
    note = client_limit_note(_run([make_record(step, members) for step in range(10)]), 8)
    assert note is not None
    assert "8.0 requests ran" in note and "seats for 32" in note and "send more" in note


def test_d10_no_note_where_requests_waited() -> None:
    waiting = [make_record(step, {"a": "decode"}, num_waiting=3) for step in range(10)]
    assert client_limit_note(_run(waiting), 4) is None


def test_d10_no_note_where_something_else_kept_requests_out() -> None:
    memory = [make_record(step, {"a": "decode"}, limit="blocks") for step in range(10)]
    assert client_limit_note(_run(memory), 4) is None


def test_d10_no_note_where_the_client_fills_the_seats() -> None:
    run = _run([make_record(step, {"a": "decode"}) for step in range(10)], num_seats=1)
    assert client_limit_note(run, 1) is None
