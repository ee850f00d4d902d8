"""Arrays that start on a cache line, so that no result can depend on where an array lies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.interface import FloatArray

ALIGNMENT_BYTES = 64
FLOATS_PER_LINE = ALIGNMENT_BYTES // 4


def address_of(x: NDArray[Any]) -> int:
    """Of its first element."""
    address: int = x.__array_interface__["data"][0]  # a third of the time of `x.ctypes`
    return address


def aligned_empty(*shape: int) -> FloatArray:
    """An uninitialised C-contiguous float32 array whose first byte is on a cache line."""
    num_floats = math.prod(shape)
    buffer = np.empty(num_floats + FLOATS_PER_LINE, np.float32)
    skip = (-address_of(buffer) % ALIGNMENT_BYTES) // 4
    return buffer[skip : skip + num_floats].reshape(shape)


def aligned_rows(x: FloatArray) -> FloatArray:
    """A copy of [T, K] in which every row starts on a cache line; a view [T, K] of it."""
    num_rows, width = x.shape
    stride = -(-width // FLOATS_PER_LINE) * FLOATS_PER_LINE
    rows = aligned_empty(num_rows, stride)[:, :width]
    rows[:] = x
    return rows
