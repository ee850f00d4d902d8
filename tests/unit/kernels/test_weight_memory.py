"""Memory for weights: aligned, zero, never shared by two arrays, freed with the last of them."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from chairlift.kernels.aligned import ALIGNMENT_BYTES
from chairlift.kernels.weight_memory import HUGE_PAGE_BYTES, PIECE_BYTES, WeightMemory


def test_arrays_are_aligned_zero_and_apart() -> None:
    memory = WeightMemory()
    sizes = [1, 63, 64, 65, 4096, 0, 100_003]
    arrays = [memory.take(size) for size in sizes]
    for index, (array, size) in enumerate(zip(arrays, sizes, strict=True)):
        assert array.shape == (size,) and not array.any()
        assert array.ctypes.data % ALIGNMENT_BYTES == 0
        array[:] = index + 1
    for index, array in enumerate(arrays):
        assert (array == index + 1).all()


def test_a_piece_starts_with_a_huge_page() -> None:
    assert WeightMemory().take(10).ctypes.data % HUGE_PAGE_BYTES == 0


@pytest.mark.parametrize("num_bytes", [PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1])
def test_large_arrays_are_whole(num_bytes: int) -> None:
    memory = WeightMemory()
    memory.take(1000)
    large = memory.take(num_bytes)
    assert large.nbytes == num_bytes
    large[0] = large[-1] = 7
    assert memory.take(64)[0] == 0


def test_an_array_outlives_the_memory_it_came_from() -> None:
    memory = WeightMemory()
    kept = memory.take(100)
    kept[:] = 5
    gone = weakref.ref(memory)
    del memory
    gc.collect()
    assert gone() is None
    assert (kept == 5).all()


def test_too_much_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="no .* bytes for weights"):
        WeightMemory().take(1 << 60)


def test_equal_bytes_can_be_viewed_as_floats() -> None:
    floats = WeightMemory().take(4 * 10).view(np.float32)
    assert floats.shape == (10,)
