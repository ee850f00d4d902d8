"""What keys and values are stored as, and how a cache of floats lies in arrays.

numpy has no bfloat16: its bits are the upper half of a float32's, kept as uint16.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]

KvDtype = Literal["int8", "float16", "bfloat16", "float32"]

ALIASES: dict[str, KvDtype] = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}

FLOAT_STORAGE: dict[KvDtype, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "float32": np.dtype(np.float32),
}
"""The elements of an array of each kind of floats."""


def kv_dtype_of(array: NDArray[Any]) -> KvDtype:
    """What an array of floats stores.  Raises ValueError for another type."""
    for name, dtype in FLOAT_STORAGE.items():
        if array.dtype == dtype:
            return name
    raise ValueError(f"kv_cache must be float32, float16 or bfloat16, not {array.dtype}")


def to_stored(x: FloatArray, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Floats as they are stored: the nearest number, ties to even."""
    if dtype != np.uint16:
        with np.errstate(over="ignore"):  # beyond 65504 half precision has infinity
            return x.astype(dtype, copy=False)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    stored: NDArray[Any] = np.where(np.isnan(x), bits >> np.uint32(16) | np.uint32(0x40), nearest)
    return stored.astype(np.uint16)


def from_stored(stored: NDArray[Any]) -> FloatArray:
    """What was stored, as float32; exact."""
    if stored.dtype != np.uint16:
        return stored.astype(np.float32, copy=False)
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
