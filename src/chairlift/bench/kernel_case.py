"""One kernel at one shape: how to call it, what it cannot do without, how often a step does so.

Between two uses of a matrix a step reads all the others, so no cache still holds it.  A `Ring`
does the same in small: copies enough that the next one has been driven out of every cache.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chairlift.bench.machine_limits import Work
from chairlift.kernels.aligned import ALIGNMENT_BYTES

Bytes = NDArray[np.uint8]
IntArray = NDArray[np.int64]

RING_BYTES = 128 << 20
"""More than the last-level caches of most machines hold."""
FAR_BYTES = 16 << 20
"""That reading is measured on."""
_PIECE_BYTES = 4096
_LARGE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """Something to time."""

    family: str
    label: str
    num_rows: int
    work: Work
    call: Callable[[], object]
    read_rate: Callable[[], float] | None = None
    """1e9 bytes a second at which memory such as `call` reads can be read, measured where it will
    not come soon.  None: it reads nothing from memory."""
    count: int = 1
    """Calls per step of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseGroup:
    """Cases that share weights or a cache; built when their turn comes, and dropped after it."""

    family: str
    num_cases: int
    build: Callable[[], Iterator[KernelCase]]


class Ring:
    """Copies of an array of bytes, each on a cache line of its own.

    Args:
        content: what every copy holds.
        num_bytes: of all copies together, at least; never fewer than one copy.
    """

    def __init__(self, content: Bytes, num_bytes: int) -> None:
        stride = -(-content.size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        count = max(1, -(-num_bytes // stride))
        memory = _map(count * stride, is_large=content.size >= _LARGE_BYTES)
        self._memory = memory.reshape(count, stride)
        self._memory[:, : content.size] = content
        self._size = content.size
        self._next = 0

    def __len__(self) -> int:
        return len(self._memory)

    def copies(self) -> list[Bytes]:
        """All of them."""
        return [copy[: self._size] for copy in self._memory]

    def advance(self) -> int:
        """The index of the copy whose turn it is."""
        index = self._next
        self._next = (index + 1) % len(self)
        return index

    def far(self) -> tuple[Bytes, IntArray]:
        """The memory in pieces, and the pieces of up to 16 MiB from half way round on."""
        memory = self._memory.reshape(-1)
        size = min(_PIECE_BYTES, memory.size)
        pieces = memory[: memory.size // size * size].reshape(-1, size)
        start = (self._next + len(self) / 2) * self._memory.shape[1] / size
        count = min(len(pieces), max(1, FAR_BYTES // size))
        return pieces, (int(start) + np.arange(count)) % len(pieces)


def _map(num_bytes: int, *, is_large: bool) -> Bytes:
    """Memory in pages such as the engine's own arrays have."""
    if is_large:  # numpy asks for huge pages
        buffer = np.empty(num_bytes + ALIGNMENT_BYTES, np.uint8)
        return buffer[-buffer.ctypes.data % ALIGNMENT_BYTES :][:num_bytes]
    if not hasattr(mmap, "MAP_ANONYMOUS"):  # pragma: no cover  (Windows)
        return np.empty(num_bytes, np.uint8)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, np.uint8)
