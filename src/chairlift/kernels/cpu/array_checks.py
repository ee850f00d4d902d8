"""What the library takes on trust: dtypes, shapes and density of arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike, NDArray


def check_array(
    name: str, array: NDArray[np.generic], dtype: DTypeLike, shape: tuple[int | None, ...]
) -> None:
    """Raise ValueError unless `array` is dense, of `dtype` and of `shape` (None: any length)."""
    if array.dtype != dtype:
        raise ValueError(f"{name} must be {np.dtype(dtype)}, not {array.dtype}")
    fits = array.ndim == len(shape) and all(
        wanted is None or wanted == actual
        for wanted, actual in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{name} must have shape {shape}, not {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous")
