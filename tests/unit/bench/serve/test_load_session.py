"""Whole measurements of a scripted server.  Times are checked from below only: a slow machine
makes them longer.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from chairlift.bench.serve import load_run
from chairlift.bench.serve.load_config import LoadConfig
from chairlift.bench.serve.load_report import LoadReport
from chairlift.bench.serve.load_session import measure_server
from chairlift.bench.serve.server_contact import ServerError
from chairlift.errors import ConfigError
from scripted_server import Exchange, Script, ScriptedServer, piece, serving, tokens

CHAT = "/v1/chat/completions"


def measure(server: ScriptedServer, **options: Any) -> LoadReport:
    usual: dict[str, Any] = {"num_prompts": 6, "input_len": "4", "output_len": "3"}
    return measure_server(LoadConfig(base_url=server.base_url, **{**usual, **options}))


def measure_script(script: Script, **options: Any) -> LoadReport:
    with serving(script) as server:
        return measure(server, **options)


def after_first(script: Script, others: Script) -> Script:
    """`script` for what is sent before a measurement, `others` for what is measured."""

    async def choose(exchange: Exchange) -> None:
        is_measured = exchange.headers["x-request-id"].startswith("bench-")
        await (others if is_measured else script)(exchange)

    return choose


@pytest.mark.parametrize("endpoint", ["/v1/completions", CHAT])
def test_latencies_are_those_of_the_script(endpoint: str) -> None:
    report = measure_script(
        tokens(first_s=0.1, gap_s=0.03), endpoint=endpoint, max_concurrency=3, output_len="4"
    )
    metrics = report.metrics
    assert len(metrics.completed) == 6 and not metrics.failures
    assert metrics.total_output_tokens == 24 and metrics.token_count_source == "usage"
    assert metrics.latency_ms("ttft").values[0] >= 99
    assert metrics.latency_ms("tpot").values[0] >= 29
    assert metrics.latency_ms("e2el").values[0] >= 189
    assert metrics.latency_ms("itl").median >= 29 and len(metrics.latency_ms("itl").values) == 18
    assert metrics.in_flight.peak == 3 and 1.0 < metrics.in_flight.mean <= 3.0
    assert metrics.answering.mean < metrics.in_flight.mean
    assert report.run.duration_s >= 2 * 0.189


def test_without_uvloop_the_loop_of_the_standard_library_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert len(measure_script(tokens(gap_s=0.01)).metrics.completed) == 6


def test_the_model_is_the_first_that_the_server_lists() -> None:
    with serving(tokens()) as server:
        assert measure(server).model == "scripted"
        assert {exchange.body["model"] for exchange in server.seen} == {"scripted"}
        assert measure(server, model="other").model == "other"
        assert server.seen[-1].body["model"] == "other"


def test_two_runs_of_a_seed_send_the_same_bytes() -> None:
    sent = []
    for _ in range(2):
        with serving(tokens()) as server:
            measure(server, max_concurrency=1, input_len="5-30", num_warmups=2)
            sent.append([exchange.raw_body for exchange in server.measured])
            ids = {exchange.headers["x-request-id"] for exchange in server.measured}
            assert len(ids) == 6
    assert sent[0] == sent[1] and len(set(sent[0])) == 6


class Crowd:
    """A script that holds its first answers back until `wanted` requests are there at once."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.at_once = self.peak = 0
        self.is_complete = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        self.at_once += 1
        self.peak = max(self.peak, self.at_once)
        if self.at_once == self.wanted:
            self.is_complete.set()
        await self.is_complete.wait()
        await tokens()(exchange)
        self.at_once -= 1


def test_a_closed_loop_keeps_its_clients_busy_and_no_more() -> None:
    crowd = Crowd(4)
    report = measure_script(after_first(tokens(), crowd), num_prompts=20, max_concurrency=4)
    assert len(report.metrics.completed) == 20
    assert crowd.peak == report.metrics.in_flight.peak == 4


def test_an_open_loop_does_not_wait_for_answers() -> None:
    """Nobody gets one before all six have asked."""
    report = measure_script(after_first(tokens(), Crowd(6)), request_rate=50.0)
    assert len(report.metrics.completed) == 6 and report.metrics.in_flight.peak == 6


def test_waiting_for_a_place_is_not_omitted() -> None:
    """Latencies count from the intended time, also behind a limit of the client's."""
    report = measure_script(tokens(first_s=0.1), request_rate=200.0, max_concurrency=1)
    last = report.run.records[-1]
    assert last.intended_s == pytest.approx(6 / 200.0)
    assert last.ttft_ms is not None and last.ttft_ms >= 6 * 100 - 31
    assert last.sent_s - last.intended_s >= 0.4
    assert "--max-concurrency 1 held requests back" in report.text()


def test_a_busy_client_is_called_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that thinks too long between packets sees every token late, and says so."""
    monkeypatch.setattr(load_run, "PROGRESS_INTERVAL_S", 0.01)
    with serving(tokens(gap_s=0.02)) as server:
        config = LoadConfig(base_url=server.base_url, num_prompts=4, input_len="4", output_len="9")
        report = measure_server(config, on_progress=lambda progress: time.sleep(0.06))
    assert report.run.client.lag_ms.percentile(99) >= 25
    assert any(note.startswith("the client was a limit") for note in report.notes)


async def refuse(exchange: Exchange) -> None:
    await exchange.answer(
        {"error": {"message": "the queue is full", "code": "queue_full"}}, 429, retry_after="2"
    )


async def drop_in_stream(exchange: Exchange) -> None:
    await exchange.start_stream()
    await exchange.event(piece("a"))
    await asyncio.sleep(0.02)
    exchange.drop()


async def error_in_stream(exchange: Exchange) -> None:
    await exchange.start_stream()
    await exchange.event(piece("a"))
    await exchange.event({"error": {"message": "the engine died"}})
    await exchange.end_stream()


async def crash(exchange: Exchange) -> None:
    await exchange.answer({"error": {"message": "oh"}}, 500)


async def hang(exchange: Exchange) -> None:
    await asyncio.sleep(30)


def test_failures_are_counted_by_cause_and_the_rest_is_measured() -> None:
    scripts = [tokens(), refuse, drop_in_stream, error_in_stream, crash, hang, tokens()]

    async def one_after_the_other(exchange: Exchange) -> None:
        number = int(exchange.headers["x-request-id"].rpartition("-")[2])
        await scripts[number](exchange)

    report = measure_script(
        after_first(tokens(), one_after_the_other), num_prompts=7, request_rate=50.0, timeout=1.0
    )
    assert report.metrics.failures == dict.fromkeys(
        ["http_429", "connection_lost", "stream_error", "http_500", "timeout"], 1
    )
    assert len(report.metrics.completed) == 2 and report.metrics.total_output_tokens == 6
    assert report.run.records[1].retry_after_s == 2.0
    text = report.text()
    assert "2 completed, 5 failed" in text
    for message in ("the queue is full", "the engine died", "within the timeout"):
        assert message in text


def test_a_refused_client_of_a_closed_loop_waits_as_it_is_told() -> None:
    async def once(exchange: Exchange) -> None:
        body = {"error": {"message": "full"}}
        await exchange.answer(body, 429, retry_after="1")

    async def script(exchange: Exchange) -> None:
        is_first = exchange.headers["x-request-id"].endswith("-0")
        await (once if is_first else tokens())(exchange)

    report = measure_script(after_first(tokens(), script), num_prompts=2, max_concurrency=1)
    refused, answered = report.run.records
    assert refused.failure is not None and answered.failure is None
    assert answered.sent_s - refused.finished_s >= 0.99


def test_without_usage_chunks_are_counted_and_the_report_says_so() -> None:
    report = measure_script(tokens(has_usage=False))
    assert report.metrics.total_output_tokens == 18
    assert report.metrics.token_count_source == "chunks"
    assert "the server sent no usage" in report.text()


def test_goodput_counts_good_requests_out_of_all() -> None:
    async def script(exchange: Exchange) -> None:
        is_refused = exchange.headers["x-request-id"].endswith(("-1", "-4"))
        await (refuse if is_refused else tokens())(exchange)

    report = measure_script(after_first(tokens(), script), goodput=("ttft:600000",))
    good = report.to_json()["request_goodput"]
    assert good == pytest.approx(4 / report.run.duration_s)
    assert "within ttft 600000 ms: 4 of 6 (66.7%)" in report.text()
    assert "0 of 6 (0.0%)" in measure_script(tokens(first_s=0.01), goodput=("ttft:1",)).text()


def test_a_trace_is_replayed_at_its_times(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [(0, 3, 2), (200, 5, 1), (300, 7, 4)]
    path.write_text(
        "\n".join(
            json.dumps({"timestamp": t, "input_length": i, "output_length": o}) for t, i, o in rows
        )
    )
    with serving(tokens()) as server:
        report = measure(
            server,
            dataset_name="timed_trace",
            dataset_path=str(path),
            timed_trace_sec_multiplier=0.001,
            num_prompts=None,
            output_len=None,
        )
        lengths = [(len(e.body["prompt"]), e.body["max_tokens"]) for e in server.measured]
    assert lengths == [(3, 2), (5, 1), (7, 4)]
    records = report.run.records
    assert [record.intended_s for record in records] == pytest.approx([0.0, 0.2, 0.3])
    assert all(record.sent_s >= record.intended_s - 1e-3 for record in records)


def test_json_has_the_keys_that_others_read_and_no_key_of_the_user() -> None:
    with serving(tokens(cached=2)) as server:
        report = measure(
            server,
            api_key="s3cret",
            header=("x-other=s3cret",),
            max_concurrency=2,
            goodput=("ttft:9000",),
        )
        assert server.seen[-1].headers["authorization"] == "Bearer s3cret"
        assert server.seen[-1].headers["x-other"] == "s3cret"
    content = json.loads(json.dumps(report.to_json(is_detailed=True), allow_nan=False))
    assert "s3cret" not in json.dumps(content)
    assert content["completed"] == 6 and content["failed"] == 0
    assert content["total_input_tokens"] == 42 and content["total_output_tokens"] == 18
    assert content["output_throughput"] == pytest.approx(18 / content["duration"])
    assert content["max_concurrency"] == 2 and content["request_rate"] == "inf"
    assert content["max_concurrent_requests"] == 2
    assert content["cached_share"] == pytest.approx(2 / 7)
    for name in ("ttft", "tpot", "itl", "e2el"):
        for figure in ("mean", "median", "std", "p90", "p99"):
            assert content[f"{figure}_{name}_ms"] >= 0.0
    assert set(content["client"]) >= {"cpu_share", "lag_p99_ms", "num_cpus"}
    assert [request["index"] for request in content["requests"]] == list(range(6))
    assert all(request["is_good"] for request in content["requests"])
    assert all(len(request["itl_ms"]) == 2 for request in content["requests"])
    assert "requests" not in report.to_json()


def test_only_the_figures_that_were_asked_for() -> None:
    report = measure_script(tokens(), percentile_metrics="ttft", metric_percentiles="50,99.9")
    content = report.to_json()
    assert "p99.9_ttft_ms" in content and "p99_ttft_ms" not in content
    assert "mean_tpot_ms" not in content
    assert "TTFT" in report.text() and "TPOT" not in report.text() and "p99.9" in report.text()


def test_a_prefix_in_the_path_and_v1_in_the_address() -> None:
    with serving(tokens()) as server:
        server.base_url += "/v1"
        assert len(measure(server, max_concurrency=1).metrics.completed) == 6
        assert {exchange.path for exchange in server.seen} == {"/v1/completions"}


def test_a_server_that_refuses_the_first_request_ends_it_with_its_message() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.answer({"error": {"message": "prompt is too long"}}, 400)

    with pytest.raises(ServerError, match="http_400: prompt is too long"):
        measure_script(script)


def test_a_run_needs_no_more_connections_than_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "chairlift.bench.serve.load_session.allow_open_connections", lambda count: 5
    )
    with serving(tokens()) as server:
        with pytest.raises(ConfigError, match="may have 5 connections open") as caught:
            measure(server)
        assert caught.value.field == "max_concurrency"
        assert len(measure(server, max_concurrency=5).metrics.completed) == 6
