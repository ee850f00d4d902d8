"""What the report says about the measurement itself."""

from __future__ import annotations

from typing import Any

import pytest

from chairlift.bench.serve.load_config import LoadConfig
from chairlift.bench.serve.load_metrics import LoadMetrics
from chairlift.bench.serve.load_notes import notes_about
from chairlift.bench.serve.load_run import LoadRun
from unit.bench.serve.load_records import a_client, a_record, a_run


def notes(run: LoadRun, **options: Any) -> str:
    return "\n".join(notes_about(LoadConfig(**options), LoadMetrics(run)))


def quiet_run(**options: Any) -> LoadRun:
    """Some requests wait for their first token, and the last is short."""
    return a_run(*(a_record(i, 2.0 * (i // 2)) for i in range(20)), **options)


def test_nothing_to_say() -> None:
    assert notes(quiet_run(), max_concurrency=2) == ""


def test_a_client_that_was_too_busy() -> None:
    run = quiet_run(client=a_client(cpu_s=8.5))
    assert "the client was the limit: it used 85% of the one core" in notes(run, request_rate=1.0)


def test_a_client_that_was_late() -> None:
    run = quiet_run(client=a_client(lags_ms=(1.0, 80.0)))
    assert "event loop ran up to 79 ms late (p99)" in notes(run, request_rate=1.0)


def test_one_at_a_time() -> None:
    run = a_run(*(a_record(i, 2.0 * i) for i in range(10)))
    text = notes(run, max_concurrency=1)
    assert "concurrency 1: 1.0 requests ran on average" in text
    assert "no setting of the server helps" in text


def test_nobody_waited() -> None:
    run = a_run(*(a_record(i, 2.0 * (i // 2), first_s=0.01, gaps_s=(1.99,)) for i in range(20)))
    text = notes(run, max_concurrency=2)
    assert "nobody waited, all 2.0 requests in flight" in text and "higher --max-conc" in text


def test_a_limit_that_held_back_an_open_loop() -> None:
    run = a_run(*(a_record(i, 2.0 * i, intended_s=0.1 * i) for i in range(10)))
    text = notes(run, request_rate=10.0, max_concurrency=1)
    assert "--max-concurrency 1 held requests back" in text and "which their latencies" in text


def test_an_open_loop_within_its_limit_has_no_note() -> None:
    run = a_run(*(a_record(i, 2.0 * i) for i in range(10)))
    assert notes(run, request_rate=0.5, max_concurrency=8) == ""


def test_a_long_drain_unless_all_was_sent_at_once() -> None:
    run = a_run(a_record(0), a_record(1, 1.0))
    assert "the last 67% of the run had nothing more to send" in notes(run, max_concurrency=2)
    assert notes(a_run(a_record(0), a_record(1))) == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"is_counted_by_server": False}, "the server sent no usage"),
        ({"num_cached_tokens": 6}, "60% of the prompt tokens came from the server's prefix cache"),
        ({"num_output_tokens_asked": 9}, "answers were shorter than asked for (60 of 180 tokens)"),
    ],
)
def test_what_makes_a_workload_another_one(changes: dict[str, Any], message: str) -> None:
    run = a_run(*(a_record(i, 2.0 * (i // 2), **changes) for i in range(20)))
    assert message in notes(run, max_concurrency=2)


def test_a_prefix_that_is_shared_on_purpose_has_no_note() -> None:
    run = a_run(*(a_record(i, 2.0 * (i // 2), num_cached_tokens=5) for i in range(20)))
    assert notes(run, max_concurrency=2, shared_prefix_len=8) == ""
