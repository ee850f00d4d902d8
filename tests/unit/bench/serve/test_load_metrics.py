"""Figures of runs whose figures can be added up by hand."""

from __future__ import annotations

import pytest

from chairlift.bench.serve.distribution import distribution_of
from chairlift.bench.serve.load_metrics import LoadMetrics, concurrency_steps, is_good
from chairlift.bench.serve.service_level import ServiceLevel
from unit.bench.serve.load_records import a_failure, a_record, a_run


def test_latencies_of_one_request() -> None:
    record = a_record(start_s=2.0, first_s=1.0, gaps_s=(0.25, 0.75))
    assert record.ttft_ms == pytest.approx(1000)
    assert record.itl_ms == pytest.approx([250, 750])
    assert record.e2el_ms == pytest.approx(2000)
    assert record.tpot_ms == pytest.approx(500)


def test_tokens_of_a_joined_chunk_share_its_time() -> None:
    """The time per token counts tokens; the gaps are those between chunks."""
    record = a_record(gaps_s=(0.5, 0.5), num_output_tokens=11)
    assert record.tpot_ms == pytest.approx(100) and record.itl_ms == pytest.approx([500, 500])


def test_a_single_token_has_no_time_per_further_token() -> None:
    record = a_record(gaps_s=())
    assert record.tpot_ms is None and record.itl_ms == []


def test_latency_counts_from_the_intended_time() -> None:
    late = a_record(start_s=5.0, intended_s=2.0)
    assert late.ttft_ms == pytest.approx(4000) and late.e2el_ms == pytest.approx(5000)


def test_throughput_counts_what_succeeded_over_the_whole_run() -> None:
    metrics = LoadMetrics(a_run(a_record(0), a_record(1, 2.0), a_failure(2, 0.0, 8.0)))
    assert metrics.run.duration_s == 8.0
    assert (len(metrics.completed), metrics.num_failed) == (2, 1)
    assert (metrics.total_input_tokens, metrics.total_output_tokens) == (20, 6)
    assert metrics.per_second(metrics.total_output_tokens) == pytest.approx(6 / 8)


def test_concurrency_is_weighted_by_time() -> None:
    """Two of 2 s and one refused after 1 s, over 4 s."""
    metrics = LoadMetrics(a_run(a_record(0), a_record(1, 2.0), a_failure(2, 0.0, 1.0)))
    assert metrics.in_flight.mean == pytest.approx((2 + 2 + 1) / 4)
    assert metrics.in_flight.peak == 2
    assert metrics.answering.mean == pytest.approx((1 + 1) / 4)
    assert metrics.answering.peak == 1


def test_one_that_begins_as_another_ends_is_not_beside_it() -> None:
    assert concurrency_steps([(0.0, 1.0), (1.0, 2.0)]) == [(0.0, 1), (1.0, 0), (1.0, 1), (2.0, 0)]


def test_failures_by_cause() -> None:
    metrics = LoadMetrics(
        a_run(a_failure(0, 0, 1, "timeout"), a_failure(1, 0, 1), a_failure(2, 0, 1), a_record(3))
    )
    assert list(metrics.failures.items()) == [("http_429", 2), ("timeout", 1)]
    assert metrics.example_of("http_429") == "message 1"


def test_goodput_needs_every_bound() -> None:
    good, slow_start = a_record(0), a_record(1, first_s=3.0)
    slow_tokens, failed = a_record(2, gaps_s=(2.0, 2.0)), a_failure(3, 0.0, 1.0)
    level = ServiceLevel({"ttft": 1500.0, "tpot": 600.0})
    metrics = LoadMetrics(a_run(good, slow_start, slow_tokens, failed))
    assert [is_good(record, level) for record in metrics.run.records] == [True, False, False, False]
    assert metrics.num_good(level) == 1
    assert metrics.num_good(ServiceLevel({"e2el": 2000.0})) == 1
    assert metrics.num_good(ServiceLevel({"e2el": 5000.0})) == 3


def test_a_bound_is_kept_when_it_is_just_reached() -> None:
    assert is_good(a_record(), ServiceLevel({"ttft": 1000.0}))
    assert not is_good(a_record(), ServiceLevel({"ttft": 999.9}))


def test_where_token_counts_come_from() -> None:
    usage, chunks = a_record(0), a_record(1, is_counted_by_server=False)
    assert LoadMetrics(a_run(usage)).token_count_source == "usage"
    assert LoadMetrics(a_run(chunks)).token_count_source == "chunks"
    assert LoadMetrics(a_run(usage, chunks)).token_count_source == "usage and chunks"


def test_share_of_cached_prompt_tokens() -> None:
    known = a_record(0, num_cached_tokens=5)
    assert LoadMetrics(a_run(known, a_record(1, num_cached_tokens=0))).cached_share == 0.25
    assert LoadMetrics(a_run(a_record(0))).cached_share is None


def test_draining() -> None:
    metrics = LoadMetrics(a_run(a_record(0), a_record(1, 1.0, gaps_s=(1.0, 1.0))))
    assert metrics.drain_share == pytest.approx(3 / 4)


def test_distribution() -> None:
    values = distribution_of([4.0, 1.0, 3.0, 2.0])
    assert (values.mean, values.median, values.largest) == (2.5, 2.5, 4.0)
    assert values.percentile(90) == pytest.approx(3.7)  # linear, as numpy and vLLM do
    assert values.std == pytest.approx(1.25**0.5)


def test_nothing_is_zero() -> None:
    empty = distribution_of([])
    assert (empty.mean, empty.std, empty.median, empty.largest) == (0.0, 0.0, 0.0, 0.0)
    metrics = LoadMetrics(a_run(a_failure(0, 0.0, 0.0)))
    assert metrics.per_second(5) == 0.0 and metrics.in_flight.mean == 0.0
    assert metrics.tokens_per_chunk == 0.0 and metrics.drain_share == 0.0
