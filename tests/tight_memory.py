"""Memory whose end is the end of what may be touched: the next byte lies on a page without access,
so a single read or write beyond an array's last element ends the process.

As a plugin, all that the bindings of the native kernels allocate is such memory; sanitizers watch
the rest:

    PYTHONPATH=tests python -m pytest -p tight_memory tests/unit/kernels
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from chairlift.kernels.cpu import attention_int8, int8, layer_blocks, linear_q8, ops
from chairlift.kernels.interface import FloatArray

Number = TypeVar("Number", bound=np.generic)


def tight_empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Zeros, C-contiguous, up to the last byte before a page that nobody may touch."""
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    used = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, used + mmap.PAGESIZE), np.uint8)
    _forbid(memory.ctypes.data + used, mmap.PAGESIZE)
    return memory[used - num_bytes : used].view(dtype).reshape(shape)


def tight(array: NDArray[Number]) -> NDArray[Number]:
    """A copy in such memory."""
    copy = tight_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def _forbid(address: int, num_bytes: int) -> None:
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(address, num_bytes, 0) != 0:
        raise OSError(ctypes.get_errno(), "a page stays open")


class TightMemory:
    """Stands in for `WeightMemory`."""

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        return tight_empty((num_bytes,), np.uint8)


def tight_floats(*shape: int) -> FloatArray:
    """Stands in for `aligned_empty`."""
    return tight_empty(shape, np.float32)


def tight_cache(
    pages: attention_int8.KvInt8Ops,
    num_blocks: int,
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
) -> NDArray[np.uint8]:
    """Stands in for `KvInt8Ops.new_cache`."""
    return tight_empty(
        (num_blocks, num_layers, pages.piece_bytes(num_kv_heads, head_dim)), np.uint8
    )


def replace_memory(replace: Callable[[object, str, object], None]) -> None:
    """Put tight memory in place of what the bindings allocate; `replace` is like `setattr`."""
    for module in (int8, layer_blocks, linear_q8, ops):
        replace(module, "aligned_empty", tight_floats)
    for module in (linear_q8, ops):
        replace(module, "WeightMemory", TightMemory)
    replace(attention_int8.KvInt8Ops, "new_cache", tight_cache)


def pytest_configure() -> None:
    def replace(owner: object, name: str, value: object) -> None:
        assert hasattr(owner, name), f"{owner} has no {name}: this plugin is out of date"
        setattr(owner, name, value)

    replace_memory(replace)
