"""Memory for packed weights: cut from large pieces whose pages are asked to be huge.

A single matrix is often smaller than a huge page (2 MiB); side by side they fill some.  A piece
lives as long as any array in it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.aligned import ALIGNMENT_BYTES
from chairlift.private_memory import map_private

HUGE_PAGE_BYTES = 2 << 20
PIECE_BYTES = 16 * HUGE_PAGE_BYTES
"""Of address space: what is not used of the last piece is never touched."""


class WeightMemory:
    """Hands out memory and never takes it back: arrays own their piece together."""

    def __init__(self) -> None:
        self._free: NDArray[np.uint8] = np.empty(0, np.uint8)

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Bytes whose first lies on a cache line; zero, for they are new.

        Raises:
            MemoryError: the system has no such piece of address space.
        """
        rounded = -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if rounded > len(self._free):
            self._free = _new_piece(max(rounded, PIECE_BYTES))
        taken, self._free = self._free[:num_bytes], self._free[rounded:]
        return taken


def _new_piece(num_bytes: int) -> NDArray[np.uint8]:
    """At least so many bytes, from the start of a huge page on."""
    try:
        memory = map_private(num_bytes + HUGE_PAGE_BYTES)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no {num_bytes} bytes for weights: {error}") from error
    piece = np.frombuffer(memory, np.uint8)
    return piece[-piece.ctypes.data % HUGE_PAGE_BYTES :][:num_bytes]
