"""The bytes of the KV cache and of the swap space, and moving blocks between them.

Block-major: all layers of one block are one contiguous piece, so that swapping and copying move
one piece per block.

```
blocks [num_blocks][num_layers][2 = K, V][block_size][num_kv_heads][head_dim]   float32
swap   [num_swap_blocks][ the same piece ]                                      memory or a file
```

Pages are committed by the operating system as they are first written: an idle engine holds none.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chairlift.core.kv_cache_manager import BlockMoves
from chairlift.errors import ConfigError
from chairlift.kernels.interface import FloatArray
from chairlift.models.model_config import ModelConfig


class KVCache:
    """Storage for `num_blocks` blocks and `num_swap_blocks` swapped ones."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_blocks: int,
        block_size: int,
        num_swap_blocks: int = 0,
        swap_path: str | None = None,
    ) -> None:
        piece = (config.num_layers, 2, block_size, config.num_kv_heads, config.head_dim)
        self.blocks: FloatArray = _map_memory((num_blocks, *piece))
        self.block_bytes = config.kv_bytes_per_token * block_size
        shape = (num_swap_blocks, *piece)
        self._swap = _map_memory(shape) if swap_path is None else _map_file(shape, Path(swap_path))

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


def _map_memory(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Reserved address space; the system commits a page when it is first written."""
    num_bytes = 4 * math.prod(shape)
    if num_bytes == 0:
        return np.empty(shape, dtype=np.float32)
    try:
        # Private pages: the shared ones that are mmap's default belong to a file system in memory,
        # which few systems back with huge pages and some limit on its own.
        memory = (
            mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MAP_ANONYMOUS")
            else mmap.mmap(-1, num_bytes)
        )
    except OSError as error:
        raise ConfigError(
            f"the system does not grant {num_bytes / 2**30:.1f} GiB of memory for keys and values"
            f" ({error.strerror}): set a smaller kv_cache_memory or swap_space",
            field="kv_cache_memory",
        ) from None
    return np.frombuffer(memory, dtype=np.float32).reshape(shape)


def _map_file(shape: tuple[int, ...], folder: Path) -> NDArray[np.float32]:
    """A file without a name in `folder`; its space is taken at once: no write can fail later."""
    num_bytes = 4 * math.prod(shape)
    if num_bytes == 0:
        return np.empty(shape, dtype=np.float32)
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
    return np.frombuffer(memory, dtype=np.float32).reshape(shape)
