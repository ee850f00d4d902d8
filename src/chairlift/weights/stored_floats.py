"""Tensors of floats as views of the file that holds them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.stored_floats import ShortForm, StoredFloats
from chairlift.weights.ggml_type import GGMLType

_FORMS: dict[GGMLType, ShortForm] = {GGMLType.F16: "float16", GGMLType.BF16: "bfloat16"}
_DTYPES = {GGMLType.F32: "<f4", GGMLType.F16: "<f2", GGMLType.BF16: "<u2"}


def short_form_of(type: GGMLType) -> ShortForm | None:
    """What its 16 bits stand for; None for another type."""
    return _FORMS.get(type)


def view_floats(
    raw: NDArray[np.uint8], type: GGMLType, shape: tuple[int, ...]
) -> StoredFloats | None:
    """The floats whose bytes are `raw`, not copied if they lie as numpy needs them; None for a
    type that is quantised."""
    if type not in _DTYPES:
        return None
    stored = raw.view(_DTYPES[type]).reshape(shape)
    native = stored.astype(stored.dtype.newbyteorder("="), copy=False)
    aligned: StoredFloats = np.require(native, requirements=("C", "A"))
    return aligned
