"""The bytes of the KV cache and of the swap space, and moving blocks between them.

Block-major: all layers of one block are one contiguous piece, so that swapping and copying move
one piece per block.  What lies in a piece is the kernels' business.

```
blocks [num_blocks][piece]
swap   [num_swap_blocks][piece]        memory or a file
```

Pages are committed by the operating system as they are first written: an idle engine holds none,
unless it was asked to take them all at the start.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from chairlift.core.kv_cache_manager import BlockMoves
from chairlift.errors import ConfigError
from chairlift.kernels.interface import KvArray, KvBlockFormat
from chairlift.private_memory import map_private

_COMMITTED_AT_ONCE = 64 * 2**20
"""Bytes that one thread commits before it takes more, and before the program can be stopped."""


class KVCache:
    """Storage for `num_blocks` blocks and `num_swap_blocks` swapped ones."""

    def __init__(
        self,
        block: KvBlockFormat,
        *,
        num_blocks: int,
        num_swap_blocks: int = 0,
        swap_path: str | None = None,
    ) -> None:
        self.blocks: KvArray = _map_memory((num_blocks, *block.shape), block.dtype)
        self.block_bytes = block.num_bytes
        shape = (num_swap_blocks, *block.shape)
        self._swap: KvArray = (
            _map_memory(shape, block.dtype)
            if swap_path is None
            else _map_file(shape, block.dtype, Path(swap_path))
        )

    def preallocate(self, num_threads: int) -> float:
        """Have the system commit all blocks, which must hold nothing yet; returns the seconds."""
        start = time.perf_counter()
        pages = self.blocks.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE]
        stride = max(1, _COMMITTED_AT_ONCE // mmap.PAGESIZE)

        def write(first: int) -> None:
            pages[first : first + stride] = 0

        threads = ThreadPoolExecutor(num_threads)
        try:
            for _ in threads.map(write, range(0, len(pages), stride)):
                pass
        finally:  # nobody who stops the program waits for the rest
            threads.shutdown(cancel_futures=True)
        return time.perf_counter() - start

    def swap_out(self, pairs: list[tuple[int, int]]) -> float:
        """Copy (device block, host block) pairs; returns the seconds it took."""
        start = time.perf_counter()
        for device_block, host_block in pairs:
            self._swap[host_block] = self.blocks[device_block]
        return time.perf_counter() - start

    def swap_in(self, pairs: list[tuple[int, int]]) -> float:
        """Copy (host block, device block) pairs; returns the seconds it took."""
        start = time.perf_counter()
        for host_block, device_block in pairs:
            self.blocks[device_block] = self._swap[host_block]
        return time.perf_counter() - start

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy (device block, device block) pairs: copy on write."""
        for source, target in pairs:
            self.blocks[target] = self.blocks[source]

    def move(self, moves: BlockMoves) -> tuple[float, float]:
        """Swap-outs, swap-ins, copies, in this order; seconds of the first two."""
        swap_out_s = self.swap_out(moves.swap_outs) if moves.swap_outs else 0.0
        swap_in_s = self.swap_in(moves.swap_ins) if moves.swap_ins else 0.0
        self.copy(moves.copies)
        return swap_out_s, swap_in_s


def _map_memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> KvArray:
    """Reserved address space; the system commits a page when it is first written."""
    num_bytes = dtype.itemsize * math.prod(shape)
    if num_bytes == 0:
        return np.empty(shape, dtype)
    try:
        memory = map_private(num_bytes)
    except OSError as error:
        raise ConfigError(
            f"the system does not grant {num_bytes / 2**30:.1f} GiB of memory for keys and values"
            f" ({error.strerror}): set a smaller kv_cache_memory or swap_space",
            field="kv_cache_memory",
        ) from None
    return np.frombuffer(memory, dtype).reshape(shape)


def _map_file(shape: tuple[int, ...], dtype: np.dtype[Any], folder: Path) -> KvArray:
    """A file without a name in `folder`; its space is taken at once: no write can fail later."""
    num_bytes = dtype.itemsize * math.prod(shape)
    if num_bytes == 0:
        return np.empty(shape, dtype)
    try:
        with tempfile.TemporaryFile(dir=folder, prefix="chairlift-swap-") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            else:  # pragma: no cover  (not on Linux)
                file.truncate(num_bytes)
            memory = mmap.mmap(file.fileno(), num_bytes)
    except OSError as error:
        raise ConfigError(
            f"cannot reserve {num_bytes / 2**30:.1f} GiB of swap space in {folder}:"
            f" {error.strerror}; set a smaller swap_space or another swap_path",
            field="swap_path",
        ) from None
    return np.frombuffer(memory, dtype).reshape(shape)
