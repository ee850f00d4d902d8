"""Options of `bench serve`: every mistake names its field, and options that belong together."""

from __future__ import annotations

import math
from typing import Any

import pytest

from chairlift.bench.serve.load_config import LoadConfig
from chairlift.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("base_url", "nowhere"),
        ("endpoint", "/v1/embeddings"),
        ("api_key", "a\r\nb"),
        ("header", ("no value",)),
        ("header", ("a b=c",)),
        ("header", ("a=b\r\nc: d",)),
        ("num_prompts", 0),
        ("request_rate", 0.0),
        ("request_rate", -1.0),
        ("request_rate", math.nan),
        ("max_concurrency", 0),
        ("dataset_name", "sonnet"),
        ("dataset_path", "x.jsonl"),
        ("input_len", "many"),
        ("output_len", "0"),
        ("shared_prefix_len", -1),
        ("num_prefixes", 0),
        ("num_prefixes", 2),
        ("prompt_form", "images"),
        ("token_ids", "7"),
        ("token_ids", "lognormal:5,1"),
        ("timed_trace_sec_multiplier", 0.0),
        ("timed_trace_chunk_hash_size", 0),
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("extra_body", "{"),
        ("extra_body", "[1]"),
        ("seed", -1),
        ("num_warmups", -1),
        ("goodput", ("ttft",)),
        ("percentile_metrics", "ttft,ttfb"),
        ("metric_percentiles", "x"),
        ("metric_percentiles", "101"),
        ("metric_percentiles", ""),
        ("timeout", 0.0),
        ("timeout", math.inf),
        ("wait_ready", -1.0),
        ("wait_ready", math.nan),
        ("burstiness", 0.0),
        ("burstiness", 2.0),
    ],
)
def test_a_bad_value_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field) as caught:
        LoadConfig(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"dataset_name": "custom"}, "dataset_path"),
        ({"dataset_name": "custom", "dataset_path": "x", "shared_prefix_len": 5}, "shared_prefix"),
        ({"dataset_name": "custom", "dataset_path": "x", "prompt_form": "ids"}, "prompt_form"),
        ({"endpoint": "/v1/chat/completions", "prompt_form": "ids"}, "prompt_form"),
        ({"request_rate": math.inf, "burstiness": 2.0}, "burstiness"),
        ({"dataset_name": "timed_trace", "dataset_path": "x", "burstiness": 2.0}, "burstiness"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        LoadConfig(**options)


TRACE = {"dataset_name": "timed_trace", "dataset_path": "x"}


@pytest.mark.parametrize(
    ("options", "closed", "described"),
    [
        ({}, False, "open loop, all at once"),
        ({"max_concurrency": 4}, True, "closed loop, 4 clients"),
        ({"max_concurrency": 4, "request_rate": math.inf}, True, "closed loop, 4 clients"),
        ({"request_rate": 2.5}, False, "open loop, 2.5 requests/s, burstiness 1"),
        (
            {"request_rate": 2.0, "max_concurrency": 4},
            False,
            "open loop, 2 requests/s, burstiness 1, at most 4 in flight",
        ),
        (TRACE, False, "open loop, times of the trace"),
        (
            {**TRACE, "max_concurrency": 4},
            False,
            "open loop, times of the trace, at most 4 in flight",
        ),
        ({**TRACE, "max_concurrency": 4, "request_rate": math.inf}, True, "closed loop, 4 clients"),
    ],
)
def test_which_loop_it_is(options: dict[str, Any], closed: bool, described: str) -> None:
    config = LoadConfig(**options)
    assert (config.is_closed_loop, config.describe_load()) == (closed, described)


def test_lists_in_one_word() -> None:
    config = LoadConfig(percentile_metrics="e2el, ttft", metric_percentiles="99.9,50,99.9")
    assert config.latencies == ("ttft", "e2el") and config.percentiles == (50.0, 99.9)
    assert LoadConfig(header=("A=b=c",)).headers == {"a": "b=c"}
