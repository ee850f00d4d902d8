"""Host block ids."""

from __future__ import annotations

import pytest

from chairlift.core.swap_pool import SwapPool


def test_ids_are_handed_out_once_and_taken_back() -> None:
    pool = SwapPool(3)
    held = pool.allocate(2)
    assert sorted(held) == [0, 1] and pool.num_free_blocks == 1
    assert pool.can_allocate(1) and not pool.can_allocate(2)
    pool.check_integrity(held)
    pool.free(held)
    pool.check_integrity([])


def test_overdraft_and_leak_are_assertions() -> None:
    pool = SwapPool(1)
    with pytest.raises(AssertionError, match="full"):
        pool.allocate(2)
    pool.allocate(1)
    with pytest.raises(AssertionError, match="lost"):
        pool.check_integrity([])


def test_empty_pool_has_room_for_nothing_only() -> None:
    pool = SwapPool(0)
    assert pool.can_allocate(0) and not pool.can_allocate(1)
