from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chairlift.config import EngineConfig
from chairlift.engine.resolved_config import ResolvedConfig, resolve_config
from chairlift.kernels.interface import KvBlockFormat, QuantCompute
from chairlift.machine import Machine
from chairlift.models.model_config import ModelConfig

GIB = 2**30
MODEL = ModelConfig(
    architecture="llama",
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position=4096,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    rope_dim=16,
    rope_interleaved=False,
)
MACHINE = Machine(
    num_cpus=6, total_memory_bytes=8 * GIB, free_memory_bytes=6 * GIB, memory_limit="machine"
)


def resolve(decided: QuantCompute | None = None, **asked: Any) -> ResolvedConfig:
    config = EngineConfig(**asked)
    block = KvBlockFormat(
        block_size=config.block_size,
        shape=(2, 2, config.block_size, 2, 16),
        dtype=np.dtype(np.float32),
        kv_dtype="float32",
    )
    return resolve_config(
        config,
        MODEL,
        MACHINE,
        block=block,
        weights={"float16": GIB - 2**20, "float32": 2**20},
        head_bytes=0,
        quant_compute=decided,
    )


def notes(**asked: Any) -> list[str]:
    """What is said to have no effect, or less than its name says."""
    marks = ("has no effect", "interrupts nobody")
    return [line for line in resolve(**asked).reasons if any(mark in line for mark in marks)]


def test_defaults_of_a_cpu() -> None:
    resolved = resolve()
    assert resolved.scheduler.max_num_batched_tokens == 512
    assert resolved.scheduler.max_num_seqs == 256
    assert resolved.scheduler.prefill_policy == "chunked"
    assert (resolved.num_threads, resolved.enable_prefix_caching) == (6, True)
    assert notes() == []
    assert resolved.memory.weights_bytes == GIB
    assert "weights kept as float16 (1023.0 MiB), float32 (1.0 MiB)" in resolved.reasons


@pytest.mark.parametrize(
    ("asked", "seqs", "tokens"),
    [
        ({"preset": "latency"}, 16, 2048),
        ({"preset": "throughput"}, 256, 8192),
        ({"preset": "latency", "max_num_seqs": 24}, 24, 2048),
        ({"preset": "throughput", "max_num_batched_tokens": 4096}, 256, 4096),
        ({"max_num_seqs": 600}, 600, 600),
        ({"max_num_seqs": 8, "max_num_batched_tokens": 64}, 8, 64),
    ],
)
def test_single_options_win_over_presets(asked: dict[str, Any], seqs: int, tokens: int) -> None:
    scheduler = resolve(**asked).scheduler
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == (seqs, tokens)


@pytest.mark.parametrize(
    ("asked", "limits"),
    [
        ({}, (256, 512)),
        ({"max_num_batched_tokens": 100}, (100, 100)),
        ({"max_num_seqs": 1000}, (1000, 1000)),
        ({"preset": "latency"}, (16, 2048)),
        ({"preset": "latency", "max_num_seqs": 256}, (256, 2048)),
        ({"preset": "latency", "max_num_seqs": 4096}, (4096, 4096)),
        ({"preset": "throughput", "max_num_batched_tokens": 64}, (64, 64)),
    ],
)
def test_seats_and_tokens_of_a_step(asked: dict[str, Any], limits: tuple[int, int]) -> None:
    scheduler = resolve(**asked).scheduler
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == limits


@pytest.mark.parametrize(
    ("asked", "policy"),
    [
        ({"enable_chunked_prefill": False}, "separated"),
        ({"enable_chunked_prefill": True}, "chunked"),
        ({"prefill_policy": "separated"}, "separated"),
    ],
)
def test_prefill_policy_has_two_names(asked: dict[str, Any], policy: str) -> None:
    assert resolve(**asked).scheduler.prefill_policy == policy


def test_every_scheduler_option_arrives() -> None:
    asked: dict[str, Any] = {
        "batching_policy": "static",
        "prefill_policy": "separated",
        "scheduling_policy": "priority",
        "preemption_mode": "swap",
        "static_batch_size": 5,
        "batch_wait_ms": 7.0,
        "long_prefill_token_threshold": 9,
        "max_num_seqs": 11,
        "max_num_batched_tokens": 13,
    }
    scheduler = resolve(**asked).scheduler
    assert {name: getattr(scheduler, name) for name in asked} == asked


def test_d12_start_says_which_features_are_in_force_and_what_has_no_effect() -> None:
    said = "\n".join(resolve(threads=3, enable_prefix_caching=False).reasons)
    for words in (
        "steps of at most 512 tokens (CPU default) for at most 256 requests",
        "batching continuous, prefill chunked, order fcfs, preemption auto, prefix caching off",
        "3 threads (threads)",
        "max_model_len 4096",
        "swap space",
        "KV cache",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("asked", "decided", "words"),
    [
        ("auto", "exact", "matrices exact: the file's codes and scales (default)"),
        ("exact", "exact", "matrices exact: the file's codes and scales (quant_compute)"),
        ("fast", "fast", "as bytes with one scale per output (quant_compute)"),
    ],
)
def test_d12_start_says_how_matrices_are_multiplied(asked: Any, decided: Any, words: str) -> None:
    first = resolve(quant_compute=asked, decided=decided).reasons[0]
    assert words in first
    assert "matrices" not in "".join(resolve().reasons), "floats have no choice"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"enforce_eager": True}, "enforce_eager"),
        ({"preemption_mode": "swap", "swap_space": 0}, "preemption_mode=swap"),
        ({"preemption_mode": "swap", "max_num_seqs": 1}, "preemption_mode=swap"),
        ({"preemption_mode": "recompute", "swap_path": "/tmp"}, "swap_path"),
        ({"static_batch_size": 8}, "static_batch_size"),
        ({"batching_policy": "dynamic", "static_batch_size": 8}, "static_batch_size"),
        ({"batch_wait_ms": 5.0}, "batch_wait_ms"),
        ({"batching_policy": "static", "scheduling_policy": "priority"}, "interrupts nobody"),
    ],
)
def test_d12_option_without_effect_says_so(asked: dict[str, Any], words: str) -> None:
    (note,) = notes(**asked)
    assert words in note


@pytest.mark.parametrize(
    "asked",
    [
        {"batching_policy": "static", "static_batch_size": 8, "batch_wait_ms": 5.0},
        {"batching_policy": "dynamic", "batch_wait_ms": 5.0},
        {"preemption_mode": "swap", "kv_cache_memory": "64MiB"},
        {"scheduling_policy": "priority"},
    ],
)
def test_d12_option_with_effect_is_not_accused(asked: dict[str, Any]) -> None:
    assert notes(**asked) == []
