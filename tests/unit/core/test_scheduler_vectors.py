"""Requests that need no token: they end with their prompt, under every way of batching."""

from __future__ import annotations

import pytest

from chairlift.core.kv_cache_manager import KVCacheManager
from chairlift.core.request import Request
from chairlift.errors import ContextLengthError
from chairlift.pooling_params import PoolingType
from fake_executor import Rig, make_request

TYPES: list[PoolingType] = ["last", "mean"]


@pytest.mark.parametrize("pooling_type", TYPES)
@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_one_ends_in_the_step_that_computes_its_prompt(
    pooling_type: PoolingType, overlap_depth: int
) -> None:
    rig = Rig(overlap_depth=overlap_depth)
    rig.add("a", 7, 0, pooling_type=pooling_type)
    rig.run()
    rig.check_solo()
    (record,) = [record for record in rig.records if record.members]
    assert record.num_prefill_tokens == 7 and record.num_sampled_tokens == 0
    assert record.finished == (("a", "stop"),)
    assert rig.kv.num_free_blocks == rig.kv.pool.num_usable_blocks


@pytest.mark.parametrize("pooling_type", TYPES)
@pytest.mark.parametrize("batching", ["continuous", "dynamic", "static"])
@pytest.mark.parametrize("prefill", ["chunked", "separated"])
def test_they_ride_with_others_in_chunks(
    batching: str, prefill: str, pooling_type: PoolingType
) -> None:
    rig = Rig(
        batching_policy=batching,
        prefill_policy=prefill,
        static_batch_size=3,
        max_num_batched_tokens=8,
        max_num_seqs=4,
    )
    rig.add("writes", 5, 9)
    rig.add("a", 30, 0, pooling_type=pooling_type)
    rig.add("b", 3, 0, pooling_type=pooling_type)
    rig.add("c", 11, 2)
    rig.add("d", 1, 0, pooling_type=pooling_type)
    rig.run()
    rig.check_solo()


def test_a_static_batch_keeps_them_until_its_end() -> None:
    rig = Rig(batching_policy="static", static_batch_size=2)
    rig.add("writes", 5, 4)
    rig.add("a", 6, 0)
    rig.run()
    rig.check_solo()
    released = {rig.endings[name].released_at_step for name in ("writes", "a")}
    assert len(released) == 1
    padding = [m for r in rig.records for m in r.members if m.kind == "padding"]
    assert {m.request_id for m in padding} == {"a"}
    assert all(m.num_computed_tokens == 5 and m.num_new_tokens == 1 for m in padding)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("pooling_type", TYPES)
def test_preempted_in_a_chunk_they_end_the_same(mode: str, pooling_type: PoolingType) -> None:
    """Its chunks take so long that requests of a better class come between."""
    rig = Rig(
        num_blocks=9,
        num_swap_blocks=20,
        max_num_batched_tokens=4,
        max_num_seqs=4,
        scheduling_policy="priority",
        preemption_mode=mode,
    )
    rig.add("a", 24, 0, priority=2, pooling_type=pooling_type)
    rig.step(3)
    rig.add("b", 26, 5, priority=1)
    rig.run()
    rig.check_solo()
    assert rig.scheduler.num_preemptions[mode] > 0


def test_a_prompt_may_fill_the_whole_cache() -> None:
    rig = Rig(num_blocks=5, block_size=4, max_num_batched_tokens=64)
    capacity = rig.kv.capacity_tokens
    rig.add("a", capacity, 0)
    rig.run()
    rig.check_solo()
    with pytest.raises(ContextLengthError):
        rig.core.add_request(make_request("b", capacity + 1, 0))


def test_a_last_state_is_read_after_a_cached_prefix_and_a_mean_is_not() -> None:
    rig = Rig()
    prompt = list(range(20))
    for name, kind in (("a", "last"), ("b", "last"), ("c", "mean")):
        rig.add(name, prompt, 0, pooling_type=kind)
        rig.run()
    rig.check_solo()
    assert [rig.requests[name].num_cached_tokens for name in "abc"] == [0, 19, 0]


def test_an_abort_before_the_prompt_is_computed_leaves_no_vector() -> None:
    rig = Rig(max_num_batched_tokens=4, max_num_seqs=2)
    rig.add("a", 12, 0, pooling_type="mean")
    rig.step(2)
    rig.abort("a")
    assert rig.endings["a"].vector is None and rig.endings["a"].reason == "abort"
    rig.run()
    assert rig.kv.num_free_blocks == rig.kv.pool.num_usable_blocks


def test_a_tenant_pays_for_the_prompt_and_nothing_more() -> None:
    rig = Rig(shares={}, max_num_batched_tokens=8, max_num_seqs=2)
    rig.add("a", 20, 0, tenant="t")
    rig.run()
    other = Rig(shares={}, max_num_batched_tokens=32, max_num_seqs=2)
    other.add("a", 20, 0, tenant="t")
    other.run()
    assert rig.scheduler.fair_share is not None and other.scheduler.fair_share is not None
    paid = rig.scheduler.fair_share.counter("t")
    assert paid == other.scheduler.fair_share.counter("t") > 0
    writes = Rig(shares={}, max_num_batched_tokens=32, max_num_seqs=2)
    writes.add("a", 20, 1, tenant="t")
    writes.run()
    assert writes.scheduler.fair_share is not None
    assert writes.scheduler.fair_share.counter("t") > paid


def test_the_longest_stream_of_one_without_tokens_is_its_prompt() -> None:
    request: Request = make_request("a", 9, 0)
    assert request.num_max_tokens == 9 and request.is_all_sampled and request.is_prefilling
    assert KVCacheManager(8, 4).num_blocks_for(request.num_max_tokens) == 3
