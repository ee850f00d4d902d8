"""Floats of 16 bits in arrays: what they stand for, and stacking them."""

from __future__ import annotations

import numpy as np
import pytest

from chairlift.kernels.kv_dtype import from_stored
from chairlift.kernels.stored_floats import (
    StoredFloats,
    common_short_form,
    short_form,
    stack_floats,
)

ONES: dict[str, StoredFloats] = {
    "float32": np.ones((2, 3), np.float32),
    "float16": np.ones((2, 3), np.float16),
    "bfloat16": np.full((2, 3), 0x3F80, np.uint16),
}


@pytest.mark.parametrize("name", list(ONES))
def test_widening(name: str) -> None:
    wide = from_stored(ONES[name])
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(wide, np.ones((2, 3)))
    assert short_form(ONES[name]) == (None if name == "float32" else name)


def test_float32_is_not_copied() -> None:
    assert from_stored(ONES["float32"]) is ONES["float32"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["float16", "float16"], "float16"),
        (["bfloat16"] * 3, "bfloat16"),
        (["float16", "bfloat16"], None),
        (["bfloat16", "float32"], None),
        (["float32", "float32"], None),
    ],
)
def test_a_stack_has_16_bits_if_all_have_the_same(names: list[str], expected: str | None) -> None:
    parts = [ONES[name] for name in names]
    stacked = stack_floats(parts)
    assert short_form(stacked) == expected == common_short_form([short_form(p) for p in parts])
    np.testing.assert_array_equal(from_stored(stacked), np.ones((2 * len(parts), 3)))


def test_one_matrix_is_not_copied() -> None:
    assert stack_floats([ONES["bfloat16"]]) is ONES["bfloat16"]
