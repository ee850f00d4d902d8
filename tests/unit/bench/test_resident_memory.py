"""Resident memory, from the operating system's own words."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from chairlift.bench.resident_memory import MemoryUse, memory_use, peak_resident_bytes
from chairlift.runner.memory import MemoryPlan


def test_the_peak_is_read_from_the_status_file(tmp_path: Path) -> None:
    status = tmp_path / "self" / "status"
    status.parent.mkdir()
    status.write_text("Name:\tpython\nVmPeak:\t  900 kB\nVmHWM:\t  123 kB\nVmRSS:\t   45 kB\n")
    assert peak_resident_bytes(tmp_path) == 123 * 1024


def test_without_that_file_the_resource_usage_tells(tmp_path: Path) -> None:
    assert peak_resident_bytes(tmp_path) > 1e6


def test_both_sources_tell_about_the_same(tmp_path: Path) -> None:
    """The second counts what the process was before it became this one, too."""
    assert 1e7 < peak_resident_bytes() <= 1.05 * peak_resident_bytes(tmp_path)


def test_a_cache_taken_at_the_start_is_used_as_a_whole() -> None:
    plan = MemoryPlan(
        weights_bytes=1,
        work_bytes=2,
        block_bytes=10,
        block_size=16,
        kv_dtype="float32",
        num_blocks=50,
        num_swap_blocks=0,
        max_model_len=800,
        free_memory_bytes=10_000,
        kv_reason="",
        swap_reason="",
        max_model_len_reason="",
    )
    assert memory_use(plan, most_used_blocks=7, peak_loading_bytes=0).kv_used_bytes == 70
    at_start = dataclasses.replace(plan, is_preallocated=True)
    assert memory_use(at_start, most_used_blocks=7, peak_loading_bytes=0).kv_used_bytes == 500


def test_what_is_beside_weights_and_used_blocks() -> None:
    use = MemoryUse(
        weights_bytes=100,
        kv_planned_bytes=1000,
        kv_used_bytes=700,
        peak_loading_bytes=300,
        peak_bytes=950,
    )
    assert use.other_bytes == 150
    assert use.to_json()["other_bytes"] == 150
