"""Matrices of floats as files store them: float32, half precision or bfloat16.

numpy has no bfloat16: its bits are the upper half of a float32's, kept as uint16.
`kv_dtype.from_stored` makes float32 of any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.kv_dtype import from_stored

FloatArray = NDArray[np.float32]
StoredFloats = FloatArray | NDArray[np.float16] | NDArray[np.uint16]

ShortForm = Literal["float16", "bfloat16"]
"""What 16 bits stand for."""

_SHORT_FORMS: dict[np.dtype[Any], ShortForm] = {
    np.dtype(np.float16): "float16",
    np.dtype(np.uint16): "bfloat16",
}


def short_form(matrix: StoredFloats) -> ShortForm | None:
    """What the 16 bits of a number stand for; None if it has more."""
    return _SHORT_FORMS.get(matrix.dtype)


def common_short_form(forms: Sequence[ShortForm | None]) -> ShortForm | None:
    """What matrices of these forms are stacked as; None: float32."""
    return forms[0] if len(set(forms)) == 1 else None


def stack_floats(parts: Sequence[StoredFloats]) -> StoredFloats:
    """Matrices below each other, in 16 bits if all are of one such form; one alone is no copy."""
    if common_short_form([short_form(part) for part in parts]) is None:
        parts = [from_stored(part) for part in parts]
    if len(parts) == 1:
        return parts[0]
    stacked: NDArray[Any] = np.concatenate(parts)
    return stacked
