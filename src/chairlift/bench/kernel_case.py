"""One kernel at one shape: how to call it, what it cannot do without, how often a step does so.

Between two uses of a matrix a step reads all the others, so no cache still holds it.  A `Ring`
does the same in small: copies enough that the next one has been driven out of every cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chairlift.bench.machine_limits import Work
from chairlift.kernels.aligned import ALIGNMENT_BYTES
from chairlift.kernels.weight_memory import WeightMemory

Bytes = NDArray[np.uint8]

RING_BYTES = 128 << 20
"""More than the last-level caches of most machines hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """Something to time."""

    label: str
    num_rows: int
    work: Work
    call: Callable[[], object]
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
        self._memory = WeightMemory().take(count * stride).reshape(count, stride)
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
