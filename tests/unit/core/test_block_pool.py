"""The pool's order and counts."""

from __future__ import annotations

import pytest

from chairlift.core.block_pool import BlockPool


def cached_pool(num_blocks: int) -> tuple[BlockPool, list[int]]:
    """A pool of cached blocks, least recently used first, and the list of evicted ones."""
    pool = BlockPool(num_blocks)
    evicted: list[int] = []
    pool.on_evict(evicted.append)
    for block_id in [pool.allocate() for _ in range(num_blocks)]:
        pool.mark_cached(block_id)
        pool.release(block_id)
    return pool, evicted


def test_free_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(3)
    first, second = pool.allocate(), pool.allocate()
    pool.mark_cached(first)
    pool.release(first)
    pool.release(second)
    assert [pool.allocate() for _ in range(3)] == [second, 2, first]


def test_cached_blocks_are_evicted_least_recently_used_first() -> None:
    pool, evicted = cached_pool(3)
    pool.acquire(0)
    pool.release(0)
    assert [pool.allocate() for _ in range(3)] == [1, 2, 0]
    assert evicted == [1, 2, 0]


def test_cached_block_counts_as_free_until_acquired() -> None:
    pool, evicted = cached_pool(2)
    assert pool.num_free_blocks == 2
    pool.acquire(1)
    pool.acquire(1)
    assert pool.num_free_blocks == 1 and pool.ref_count(1) == 2
    pool.release(1)
    assert pool.num_free_blocks == 1
    pool.release(1)
    assert pool.num_free_blocks == 2 and not evicted


def test_only_a_sole_owner_of_uncached_contents_may_write() -> None:
    pool = BlockPool(1)
    block_id = pool.allocate()
    assert pool.is_writable(block_id)
    pool.acquire(block_id)
    assert not pool.is_writable(block_id)
    pool.release(block_id)
    pool.mark_cached(block_id)
    assert not pool.is_writable(block_id)


def test_retired_blocks_are_out_of_service_and_come_back() -> None:
    pool, evicted = cached_pool(4)
    held = pool.allocate()
    assert pool.retire(10) == 3
    assert (pool.num_free_blocks, pool.num_usable_blocks) == (0, 1)
    assert sorted(evicted) == [0, 1, 2, 3]
    pool.check_integrity([held])
    assert pool.restore(2) == 2
    assert (pool.num_free_blocks, pool.num_usable_blocks) == (2, 3)
    assert pool.restore(5) == 1
    pool.check_integrity([held])


def test_misuse_is_an_assertion() -> None:
    pool = BlockPool(1)
    with pytest.raises(AssertionError, match="is free"):
        pool.acquire(0)
    with pytest.raises(AssertionError, match="more often"):
        pool.release(0)
    with pytest.raises(AssertionError, match="no owner"):
        pool.mark_cached(0)
    pool.allocate()
    with pytest.raises(AssertionError, match="empty pool"):
        pool.allocate()
    with pytest.raises(ValueError, match="at least one"):
        BlockPool(0)


def test_check_integrity_notices_a_reference_that_nobody_counts() -> None:
    pool = BlockPool(2)
    block_id = pool.allocate()
    pool.check_integrity([block_id])
    with pytest.raises(AssertionError, match="references"):
        pool.check_integrity([block_id, block_id])
    with pytest.raises(AssertionError, match="references"):
        pool.check_integrity([])


def test_middle_of_the_list_is_unlinked_without_a_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, _ = cached_pool(1000)
    monkeypatch.setattr(pool, "_walk", lambda: pytest.fail("walked the list"))
    for block_id in (500, 0, 999):
        pool.acquire(block_id)
    assert pool.allocate() == 1
    assert pool.num_free_blocks == 996
