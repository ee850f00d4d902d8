"""Options of the engine: vLLM's defaults, and one line that names the field for a bad value."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from chairlift.config import EngineConfig, SchedulerConfig, parse_bytes
from chairlift.errors import ConfigError

BAD_VALUES: list[tuple[str, Any]] = [
    *[(name, 0) for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens")],
    *[(name, True) for name in ("max_model_len", "max_num_seqs", "threads", "block_size")],
    *[(name, 1.0) for name in ("max_num_seqs", "static_batch_size", "tensor_parallel_size")],
    *[(name, "8") for name in ("max_num_seqs", "threads", "seed")],
    *[("pooling_type", value) for value in ("max", "MEAN", 1, "")],
    ("static_batch_size", 0),
    ("threads", 0),
    ("block_size", 0),
    ("block_size", 257),
    ("long_prefill_token_threshold", -1),
    ("seed", -1),
    ("seed", 2**63),
    *[("gpu_memory_utilization", value) for value in (0, 0.001, 1.01, math.nan, True, "0.9")],
    *[("swap_space", value) for value in (-1, math.inf, math.nan, 10**400, "4")],
    *[("batch_wait_ms", value) for value in (-0.1, math.inf, None)],
    *[("kv_cache_memory", value) for value in (0, -1, 1.5, "0", "-1GiB", "2 XiB", "GiB", "", True)],
    *[("kv_cache_memory", value) for value in ("1e400", "nan", "inf", "2GiB2", "1" * 30)],
    *[(name, "sideways") for name in ("preemption_mode", "batching_policy", "prefill_policy")],
    *[(name, "sideways") for name in ("scheduling_policy", "kernels", "preset")],
    ("batching_policy", None),
    ("kernels", ["auto"]),
    *[("quant_compute", value) for value in (None, "faster", True)],
    *[("kv_cache_dtype", value) for value in (None, "fp8", "float64", 16)],
    *[("tensor_parallel_size", value) for value in (0, 2, True)],
    *[("enable_prefix_caching", value) for value in (None, 1, "yes")],
    ("enable_chunked_prefill", "no"),
    ("enforce_eager", None),
    *[("preallocate_kv_cache", value) for value in (None, 1, "yes")],
    *[("model", value) for value in (None, "", 7)],
    ("swap_path", ""),
    ("trace", 3),
]


@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
def test_a_bad_value_is_one_line_that_names_the_field(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**{name: value})
    assert caught.value.field == name
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_every_field_has_a_bad_value_above() -> None:
    assert {name for name, _ in BAD_VALUES} == set(EngineConfig.field_names())


def test_defaults_are_vllms_where_vllm_has_the_option() -> None:
    config = EngineConfig()
    assert config.block_size == 16
    assert config.swap_space == 4
    assert config.enable_prefix_caching is True
    assert config.tensor_parallel_size == 1
    assert config.enforce_eager is False
    assert config.max_model_len is None and config.max_num_batched_tokens is None
    assert config.scheduling_policy == "fcfs"
    assert config.batching_policy == "continuous"


def test_the_two_layers_agree_on_their_defaults() -> None:
    asked = EngineConfig()
    for item in dataclasses.fields(SchedulerConfig):
        value = getattr(asked, item.name)
        assert value is None or value == item.default, item.name


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().max_num_seqs = 3  # type: ignore[misc]


@pytest.mark.parametrize("name", ["auto", "int8", "float16", "fp16", "bfloat16", "bf16", "fp32"])
def test_names_of_what_a_cache_stores(name: Any) -> None:
    assert EngineConfig(kv_cache_dtype=name).kv_cache_dtype == name


@pytest.mark.parametrize("value", [1, 255, 256])
def test_block_sizes_at_the_border(value: int) -> None:
    assert EngineConfig(block_size=value).block_size == value


def test_fewer_tokens_than_requests_names_the_number_of_requests_that_fits() -> None:
    with pytest.raises(ConfigError, match="set max_num_seqs=100 or less") as caught:
        EngineConfig(max_num_batched_tokens=100, max_num_seqs=101)
    assert caught.value.field == "max_num_batched_tokens"
    EngineConfig(max_num_batched_tokens=100, max_num_seqs=100)


def test_a_presets_own_max_num_seqs_goes_with_few_tokens() -> None:
    """latency runs 16 requests: 100 tokens are enough for them."""
    assert EngineConfig(preset="latency", max_num_batched_tokens=100).preset == "latency"


@pytest.mark.parametrize(
    ("chunked", "policy", "agrees"),
    [
        (True, "chunked", True),
        (False, "separated", True),
        (True, "separated", False),
        (False, "chunked", False),
        (None, "separated", True),
        (False, None, True),
    ],
)
def test_both_words_for_chunked_prefill(chunked: Any, policy: Any, agrees: bool) -> None:
    if agrees:
        EngineConfig(enable_chunked_prefill=chunked, prefill_policy=policy)
        return
    with pytest.raises(ConfigError, match="contradicts") as caught:
        EngineConfig(enable_chunked_prefill=chunked, prefill_policy=policy)
    assert caught.value.field == "enable_chunked_prefill"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2GiB", 2 * 2**30),
        ("2gib", 2 * 2**30),
        (" 2 GiB ", 2 * 2**30),
        ("512MiB", 512 * 2**20),
        ("1KiB", 1024),
        ("1.5TiB", 3 * 2**39),
        ("2GB", 2 * 10**9),
        ("2g", 2 * 10**9),
        ("0.5 MB", 500_000),
        ("3k", 3000),
        ("1TB", 10**12),
        ("77b", 77),
        ("77", 77),
        (77, 77),
    ],
)
def test_bytes_from_texts(text: int | str, expected: int) -> None:
    assert parse_bytes(text, field="kv_cache_memory") == expected


def test_the_error_of_a_text_shows_the_form() -> None:
    with pytest.raises(ConfigError, match="a text such as 2GiB, got '2 gigs'"):
        parse_bytes("2 gigs", field="kv_cache_memory")
