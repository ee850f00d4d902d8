"""/metrics: what a scrape shows of a server that has been at work."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from chairlift.server.histogram import Histogram
from http_harness import RunningServer, scrape, until

PROMPT = "A tale of two metrics."
VLLM_NAMES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:time_to_first_token_seconds",
    "vllm:time_per_output_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:num_preemptions",
    "vllm:request_success",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
}
"""As the parser names them: counters without `_total`."""


def families(server: RunningServer) -> set[str]:
    text = server.get("/metrics").body.decode()
    return {family.name for family in text_string_to_metric_families(text)}


def test_numbers_follow_the_requests(serve: Any) -> None:
    with serve() as server:
        before = scrape(server)
        assert before["chairlift:prompt_tokens_total"][()] == 0
        assert before["chairlift:engine_up"][()] == 1
        usage = server.complete(PROMPT, max_tokens=6, ignore_eos=True, n=2, temperature=1).json[
            "usage"
        ]
        server.complete(PROMPT, max_tokens=4, ignore_eos=True, stream=True)
        until(lambda: scrape(server)["chairlift:requests_finished_total"][("length",)] == 3)
        after = scrape(server)
    assert after["chairlift:prompt_tokens_total"][()] == 2 * usage["prompt_tokens"]
    assert after["chairlift:generation_tokens_total"][()] == 16
    for name, count in {
        "time_to_first_token_seconds": 3,
        "inter_token_latency_seconds": 13,
        "time_per_output_token_seconds": 3,
        "queue_time_seconds": 3,
        "prefill_time_seconds": 3,
        "decode_time_seconds": 3,
        "e2e_latency_seconds": 3,
    }.items():
        assert after[f"chairlift:{name}_count"][()] == count, name
        assert after[f"chairlift:{name}_bucket"][("+Inf",)] == count, name
    assert after["chairlift:e2e_latency_seconds_sum"][()] > 0
    assert after["chairlift:step_time_seconds_count"][()] >= 10
    assert after["chairlift:num_requests_running"][()] == 0
    assert after["chairlift:prefix_cache_hit_tokens_total"][()] > 0
    assert after["vllm:generation_tokens_total"][("tiny",)] == 16
    assert after["vllm:request_success_total"]["length", "tiny"] == 3
    assert after["vllm:time_to_first_token_seconds_count"][("tiny",)] == 3
    assert after["chairlift:http_requests_total"]["completions", "200"] == 2


def test_rejections_and_ignored_fields_have_few_labels(serve: Any) -> None:
    with serve() as server:
        server.complete(model="nobody")
        server.complete(max_tokens=-1)
        server.complete(user="me", made_up_by_client=1, another_one=2)
        until(lambda: ("other",) in scrape(server).get("chairlift:ignored_fields_total", {}))
        samples = scrape(server)
    assert samples["chairlift:rejections_total"] == {("model_not_found",): 1, ("status_400",): 1}
    assert samples["chairlift:ignored_fields_total"] == {("user",): 1, ("other",): 2}


def test_stop_strings_and_disconnects_are_told_apart(serve: Any) -> None:
    from http_harness import request_bytes

    with serve() as server:
        text = server.complete(PROMPT, max_tokens=8, ignore_eos=True).json["choices"][0]["text"]
        server.complete(PROMPT, max_tokens=8, ignore_eos=True, stop=[text[:1]])
        with server.connect() as connection:
            body = {"model": "tiny", "prompt": "x", "ignore_eos": True}
            connection.sendall(request_bytes("/v1/completions", {**body, "max_tokens": 200}))
            until(lambda: bool(server.engine.scheduler.requests))
        server.check_idle()
        until(lambda: scrape(server)["chairlift:client_disconnects_total"][()] == 1)
        finished = scrape(server)["chairlift:requests_finished_total"]
    assert finished == {("length",): 1, ("stop",): 1, ("abort",): 1}


def test_vllm_names_come_by_default_and_go_by_option(serve: Any) -> None:
    with serve() as server:
        assert families(server) >= VLLM_NAMES
    with serve(metrics_compat="none") as server:
        names = families(server)
        assert not [name for name in names if name.startswith("vllm:")]
        assert "chairlift:num_requests_running" in names


def test_metrics_are_guarded_unless_public(serve: Any) -> None:
    with serve(api_key=("secret",)) as server:
        assert server.get("/metrics").status == 401
        headers = {"authorization": "Bearer secret"}
        assert server.get("/metrics", headers=headers).status == 200
    with serve(api_key=("secret",), public_metrics=True) as server:
        assert server.get("/metrics").status == 200


def test_histogram_counts_are_cumulative() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0)]
    assert histogram.sum == 12.0
