"""A pytest plugin for sanitizers: what the native kernels would cut from a larger piece of memory
is allocated alone, exactly as large as asked for, so that a step past its end is seen.

    PYTHONPATH=tests python -m pytest -p tight_memory tests/unit/kernels
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.cpu import attention_int8, int8, linear_q8, ops
from chairlift.kernels.interface import FloatArray


class TightMemory:
    """Stands in for `WeightMemory`."""

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        return np.zeros(num_bytes, np.uint8)


def tight_floats(*shape: int) -> FloatArray:
    return np.empty(shape, np.float32)


def tight_cache(
    pages: attention_int8.KvInt8Ops,
    num_blocks: int,
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
) -> NDArray[np.uint8]:
    size = pages.piece_bytes(num_kv_heads, head_dim)
    return np.empty((num_blocks, num_layers, size), np.uint8)


def replace(owner: object, name: str, value: object) -> None:
    assert hasattr(owner, name), f"{owner} has no {name}: this plugin is out of date"
    setattr(owner, name, value)


def pytest_configure() -> None:
    for module in (int8, linear_q8, ops):
        replace(module, "aligned_empty", tight_floats)
    for module in (linear_q8, ops):
        replace(module, "WeightMemory", TightMemory)
    replace(attention_int8.KvInt8Ops, "new_cache", tight_cache)
