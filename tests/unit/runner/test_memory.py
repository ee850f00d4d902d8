"""The memory plan: what it decides, why, and that the setting it proposes really fits."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.config import EngineConfig, parse_bytes
from chairlift.errors import ConfigError
from chairlift.kernels.interface import KvBlockFormat
from chairlift.machine import Machine, inspect_machine
from chairlift.models.model_config import ModelConfig
from chairlift.runner.memory import MemoryPlan, plan_memory

MIB, GIB = 2**20, 2**30
MODEL = ModelConfig(
    architecture="llama",
    vocab_size=32_000,
    hidden_size=512,
    intermediate_size=1024,
    num_layers=8,
    num_heads=8,
    num_kv_heads=4,
    head_dim=64,
    max_position=32_768,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    rope_dim=64,
    rope_interleaved=False,
)
WEIGHTS = 200 * MIB
TOKEN = 8 * 2 * 4 * 64 * 4
BLOCK = 16 * TOKEN  # 256 KiB


def kv_block(block_size: int = 16) -> KvBlockFormat:
    """Keys and values of eight layers and four heads of 64 floats."""
    return KvBlockFormat(
        block_size=block_size,
        shape=(8, 2, block_size, 4, 64),
        dtype=np.dtype(np.float32),
        kv_dtype="float32",
    )


def machine(free: int, total: int | None = None) -> Machine:
    return Machine(
        num_cpus=2,
        total_memory_bytes=total or 2 * free,
        free_memory_bytes=free,
        memory_limit="cgroup",
    )


def plan(
    free: int = 8 * GIB,
    total: int | None = None,
    *,
    tokens: int = 512,
    seqs: int = 256,
    weights: int = WEIGHTS,
    head: int = 0,
    **options: Any,
) -> MemoryPlan:
    return plan_memory(
        EngineConfig(**options),
        MODEL,
        machine(free, total),
        block=kv_block(options.get("block_size", 16)),
        weights_bytes=weights,
        head_bytes=head,
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
    )


def refusal(free: int = 8 * GIB, total: int | None = None, **options: Any) -> ConfigError:
    """The error of a plan that does not fit: one line that names the field."""
    with pytest.raises(ConfigError) as caught:
        plan(free, total, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.field is not None and caught.value.field in str(caught.value)
    return caught.value


def setting(error: ConfigError, name: str) -> Any:
    """The value that an error proposes for `name`."""
    found = re.search(rf"{name}=([\d.]+(?:MiB)?)", str(error))
    assert found is not None, f"{error} proposes no {name}"
    text = found[1].rstrip(".")
    return text if text.endswith("MiB") else float(text) if "." in text else int(text)


def test_default_pool_holds_max_num_seqs_requests_of_max_model_len_where_that_is_little() -> None:
    result = plan(seqs=4, max_model_len=1000)
    assert result.num_blocks == 4 * 63
    assert result.max_model_len == 1000
    assert result.kv_reason == "max_num_seqs requests of max_model_len"
    assert result.num_swap_blocks == 0 and "nobody will be preempted" in result.swap_reason


def test_default_pool_is_half_of_what_is_free_otherwise() -> None:
    result = plan()
    left = 8 * GIB - (result.peak_bytes - result.kv_bytes)
    assert result.num_blocks == left // 2 // BLOCK
    assert result.kv_reason == "half of the free memory inside the cgroup's limit"
    assert result.max_model_len == 32_768 and result.max_model_len_reason == "the model's context"


@pytest.mark.parametrize("value", ["512MiB", "0.5 GiB", 512 * MIB, str(512 * MIB)])
def test_kv_cache_memory_in_bytes_or_as_a_text(value: int | str) -> None:
    result = plan(kv_cache_memory=value, max_model_len=8192)
    assert result.kv_bytes == 512 * MIB
    assert result.kv_reason == "kv_cache_memory"


def test_default_pool_follows_the_limit_of_a_group(tmp_path: Path) -> None:
    """From the files in which the system tells it to the size of the pool."""
    pools = []
    for limit in (4 * GIB, 2 * GIB):
        folder = tmp_path / str(limit)
        for name, text in {
            "proc/meminfo": f"MemTotal: {64 * 2**20} kB\nMemAvailable: {60 * 2**20} kB\n",
            "proc/self/cgroup": "0::/pod\n",
            "cgroup/pod/memory.max": f"{limit}\n",
            "cgroup/pod/memory.current": f"{GIB // 4}\n",
        }.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        found = inspect_machine(proc=folder / "proc", cgroup_root=folder / "cgroup")
        result = plan_memory(
            EngineConfig(),
            MODEL,
            found,
            block=kv_block(),
            weights_bytes=WEIGHTS,
            head_bytes=0,
            max_num_batched_tokens=512,
            max_num_seqs=256,
        )
        assert "the cgroup's limit" in result.kv_reason
        assert result.free_memory_bytes == limit - GIB // 4
        assert result.weights_bytes + result.work_bytes + result.kv_bytes < limit - GIB // 4
        pools.append(result.kv_bytes)
    assert abs(pools[0] - pools[1] - GIB) <= kv_block().num_bytes, "half of two more"


def test_what_the_process_has_already_is_not_needed_again() -> None:
    """The interpreter is in the plan; what of it is there is missing from what is free."""
    found = dataclasses.replace(machine(2 * GIB), own_memory_bytes=40 * MIB)

    def kv_bytes(own: Machine) -> int:
        return plan_memory(
            EngineConfig(),
            MODEL,
            own,
            block=kv_block(),
            weights_bytes=WEIGHTS,
            head_bytes=0,
            max_num_batched_tokens=512,
            max_num_seqs=256,
        ).kv_bytes

    gained = kv_bytes(found) - kv_bytes(machine(2 * GIB))
    assert abs(gained - 20 * MIB) <= kv_block().num_bytes
    much = dataclasses.replace(found, own_memory_bytes=8 * GIB)
    assert kv_bytes(much) - kv_bytes(found) <= 20 * MIB, "what others have put there is theirs"


def test_kv_cache_memory_wins_over_gpu_memory_utilization_and_says_so() -> None:
    result = plan(kv_cache_memory="512MiB", gpu_memory_utilization=0.9)
    assert result.kv_bytes == 512 * MIB
    assert result.kv_reason == "kv_cache_memory, which wins over gpu_memory_utilization"


def test_gpu_memory_utilization_is_a_share_of_all_memory_for_everything() -> None:
    result = plan(8 * GIB, 16 * GIB, gpu_memory_utilization=0.25)
    assert 4 * GIB - BLOCK < result.peak_bytes <= 4 * GIB
    assert result.kv_reason == "gpu_memory_utilization 0.25"


def test_too_large_kv_cache_memory_names_the_one_that_fits() -> None:
    error = refusal(2 * GIB, kv_cache_memory="4GiB")
    fitting = setting(error, "kv_cache_memory")
    assert plan(2 * GIB, kv_cache_memory=fitting).peak_bytes <= 2 * GIB
    more = parse_bytes(fitting, field="") + MIB
    assert refusal(2 * GIB, kv_cache_memory=more).field == "kv_cache_memory"


def test_too_large_kv_cache_memory_with_less_than_a_mebibyte_left() -> None:
    free = plan(kv_cache_memory=BLOCK).peak_bytes + BLOCK // 2
    error = refusal(free, kv_cache_memory="1GiB")
    assert plan(free, kv_cache_memory=setting(error, "kv_cache_memory")).num_blocks == 1


def test_too_small_kv_cache_memory_names_one_block() -> None:
    error = refusal(kv_cache_memory=BLOCK - 1)
    assert plan(kv_cache_memory=setting(error, "kv_cache_memory")).num_blocks == 1


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(1 * GIB, 64 * GIB), st.floats(1.0, 30.0), st.floats(0.01, 1.0))
def test_a_wrong_gpu_memory_utilization_names_one_that_fits(
    free: int, ratio: float, share: float
) -> None:
    total = int(free * ratio)
    try:
        plan(free, total, gpu_memory_utilization=share)
        return
    except ConfigError as caught:
        error = caught
    assert error.field == "gpu_memory_utilization"
    name = "kv_cache_memory" if "instead" in str(error) else "gpu_memory_utilization"
    text = str(error).rpartition("; ")[2] if "; " in str(error) else str(error).rpartition(": ")[2]
    fitting = setting(ConfigError(text), name)
    assert plan(free, total, **{name: fitting}).num_blocks >= 1


@pytest.mark.parametrize(("tokens", "seqs"), [(200_000, 256), (4096, 4096), (600, 512)])
def test_steps_too_large_for_memory_name_the_size_that_fits(tokens: int, seqs: int) -> None:
    smallest = plan(kv_cache_memory=BLOCK, tokens=100, seqs=100).peak_bytes
    error = refusal(smallest + BLOCK, tokens=tokens, seqs=seqs)
    assert error.field == "max_num_batched_tokens"
    fitting = setting(error, "max_num_batched_tokens")
    if "max_num_seqs=" in str(error):
        seqs = setting(error, "max_num_seqs")
    assert seqs <= fitting
    assert plan(smallest + BLOCK, tokens=fitting, seqs=seqs).num_blocks >= 1


def test_a_model_that_does_not_fit_at_all_says_so() -> None:
    error = refusal(2 * GIB, weights=3 * GIB)
    assert error.field == "model"
    assert "3." in str(error) and "2.0 GiB are free" in str(error)


def test_max_model_len_beyond_the_models_context() -> None:
    error = refusal(max_model_len=40_000)
    assert error.field == "max_model_len" and "at most 32768" in str(error)
    assert plan(64 * GIB, max_model_len=32_768).max_model_len == 32_768


def test_b3_max_model_len_larger_than_the_kv_cache_shrinks_by_itself() -> None:
    result = plan(kv_cache_memory="64MiB")
    assert result.max_model_len == result.kv_tokens == 4096
    assert result.max_model_len_reason == "what the KV cache holds, of the model's 32768"


@pytest.mark.parametrize("options", [{"kv_cache_memory": "64MiB"}, {}])
def test_b3_max_model_len_larger_than_the_kv_cache_asked_for_names_the_largest_that_fits(
    options: dict[str, Any],
) -> None:
    free = 1 * GIB
    error = refusal(free, max_model_len=32_768, **options)
    assert error.field == "max_model_len"
    largest = setting(error, "max_model_len")
    assert plan(free, max_model_len=largest, **options).max_model_len == largest
    # Not a token is given away, but for the rope table, which is smaller for a smaller length.
    slightly_more = largest + 1 if options else largest * 101 // 100
    assert refusal(free, max_model_len=slightly_more, **options).field == "max_model_len"


def test_b3_max_model_len_larger_than_the_kv_cache_names_the_pool_that_would_hold_it() -> None:
    error = refusal(2 * GIB, max_model_len=32_768, kv_cache_memory="64MiB")
    pool = setting(error, "kv_cache_memory")
    assert plan(2 * GIB, max_model_len=32_768, kv_cache_memory=pool).max_model_len == 32_768
    error = refusal(800 * MIB, max_model_len=32_768, kv_cache_memory="64MiB")
    assert "or free memory" in str(error), "no pool is proposed that does not fit"


@pytest.mark.parametrize("options", [{}, {"kv_cache_memory": "200MiB"}, {"seqs": 2}])
def test_b2_what_fits_is_monotonic_in_max_model_len(options: dict[str, Any]) -> None:
    """No length fits above one that does not, and the pool never shrinks as lengths shrink."""
    for free in (800 * MIB, 1 * GIB, 2 * GIB, 4 * GIB):
        fits = []
        num_blocks = []
        for length in (1, *range(500, 32_769, 499), 32_768):
            try:
                num_blocks.append(plan(free, max_model_len=length, **options).num_blocks)
                fits.append(True)
            except ConfigError as error:
                assert error.field == "max_model_len"
                fits.append(False)
        assert fits == sorted(fits, reverse=True)
        assert fits[0]


def test_swap_space_in_memory_takes_half_of_what_is_left_at_most() -> None:
    result = plan(2 * GIB, kv_cache_memory="256MiB", swap_space=4)
    left = 2 * GIB - result.peak_bytes
    assert result.num_swap_blocks == left // 2 // BLOCK
    assert "half of what is left is taken" in result.swap_reason
    assert result.peak_bytes + result.swap_bytes <= 2 * GIB


def test_swap_space_in_memory_that_fits_is_taken_whole() -> None:
    result = plan(kv_cache_memory="256MiB", swap_space=0.5)
    assert result.swap_bytes == GIB // 2
    assert "swap_path makes it a file" in result.swap_reason


def test_a_swap_file_is_not_bounded_by_memory() -> None:
    result = plan(2 * GIB, kv_cache_memory="256MiB", swap_space=64, swap_path="/some/folder")
    assert result.swap_bytes == 64 * GIB
    assert result.swap_reason == "file in /some/folder"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"preemption_mode": "recompute"}, "preemption_mode is recompute"),
        ({"swap_space": 0}, "swap_space 0 holds no block"),
        ({"swap_space": 0, "swap_path": "/x"}, "swap_space 0 holds no block"),
    ],
)
def test_no_swap_space_has_a_reason(options: dict[str, Any], reason: str) -> None:
    result = plan(kv_cache_memory="256MiB", **options)
    assert result.num_swap_blocks == 0 and result.swap_reason == reason


def test_priorities_need_swap_space_although_all_requests_fit() -> None:
    assert plan(seqs=2, max_model_len=100).num_swap_blocks == 0
    assert plan(seqs=2, max_model_len=100, scheduling_policy="priority").num_swap_blocks > 0


def test_how_many_requests_fit() -> None:
    result = plan(kv_cache_memory=100 * BLOCK, max_model_len=1600)
    assert result.num_fitting_requests(1) == 100
    assert result.num_fitting_requests(16) == 100
    assert result.num_fitting_requests(17) == 50
    assert result.num_fitting_requests(1600) == 1
    assert "fits 1 requests of 1600 tokens, 1 of 1600" in result.describe()


def test_the_description_has_every_decision_with_its_reason() -> None:
    result = plan(kv_cache_memory="256MiB", swap_path="/some/folder")
    text = "\n".join(result.describe())
    assert "weights 200 MiB" in text and "of 8.0 GiB free" in text
    cache = "KV cache 256 MiB of float32 = 1024 blocks of 16 tokens, 16384 bytes each"
    assert f"{cache} (kv_cache_memory); committed as it is used" in text
    assert "fits 8 requests of 2048 tokens, 1 of 16384" in text
    assert "max_model_len 16384 (what the KV cache holds, of the model's 32768)" in text
    assert "swap space 4.0 GiB (file in /some/folder)" in text


def test_memory_that_is_taken_at_the_start_is_said_to_be() -> None:
    at_start, as_used = plan(preallocate_kv_cache=True), plan()
    assert dataclasses.replace(at_start, is_preallocated=False) == as_used
    assert "; committed at the start" in "\n".join(at_start.describe())


def test_a_head_that_takes_more_than_all_weights_while_it_is_packed() -> None:
    base = plan()
    assert plan(head=WEIGHTS + base.work_bytes // 2) == base
    rope_table = 4 * MODEL.max_position * MODEL.rope_dim
    assert plan(head=WEIGHTS + GIB).work_bytes == GIB + rope_table


def test_more_tokens_rows_or_positions_take_more_work_space() -> None:
    base = plan(max_model_len=1024).work_bytes
    assert plan(max_model_len=1024, tokens=8192).work_bytes > base
    rows = [plan(max_model_len=1024, seqs=seqs, tokens=1024).work_bytes for seqs in (512, 1024)]
    # Rows of logits are there a few at a time; what is noted of each row is far less.
    assert 0 < rows[1] - rows[0] < 512 * MODEL.vocab_size
    threads = [plan(max_model_len=1024, threads=count).work_bytes for count in (2, 4)]
    assert threads[1] > threads[0] == base
    assert plan(max_model_len=32_768).work_bytes > base
