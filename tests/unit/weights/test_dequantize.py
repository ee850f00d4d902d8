"""Every block type against the `gguf` package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf.quants import dequantize as reference_dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.errors import ModelFileError
from chairlift.weights.dequantize import dequantize
from chairlift.weights.ggml_type import GGMLType, type_name

ALL_TYPES = pytest.mark.parametrize("type", list(GGMLType), ids=lambda type: type.name)


def reference(raw: npt.NDArray[np.uint8], type: GGMLType, shape: tuple[int, ...]) -> np.ndarray:
    with np.errstate(all="ignore"):
        rows = raw.reshape(shape[0], -1)
        return np.array(reference_dequantize(rows, gguf.GGMLQuantizationType(type.value)))


def assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape
    both_nan = np.isnan(ours) & np.isnan(theirs)
    np.testing.assert_array_equal(
        np.where(both_nan, 0, ours.view(np.uint32)), np.where(both_nan, 0, theirs.view(np.uint32))
    )


@ALL_TYPES
def test_block_sizes_are_those_of_the_format(type: GGMLType) -> None:
    sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(type.value)]
    assert (type.block_size, type.block_bytes) == sizes
    assert gguf.GGMLQuantizationType(type.value).name == type.name


def test_names_of_unsupported_types_are_those_of_the_format() -> None:
    for theirs in gguf.GGMLQuantizationType:
        assert type_name(theirs.value) == theirs.name
    assert type_name(1234) == "#1234"


@ALL_TYPES
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), num_rows=st.integers(1, 5), num_blocks=st.integers(1, 3))
def test_random_bytes_give_the_same_bits(
    type: GGMLType, seed: int, num_rows: int, num_blocks: int
) -> None:
    shape = (num_rows, num_blocks * type.block_size)
    raw = np.random.default_rng(seed).integers(
        0, 256, num_rows * num_blocks * type.block_bytes, dtype=np.uint8
    )
    assert_same_bits(dequantize(raw, type, shape), reference(raw, type, shape))


@ALL_TYPES
def test_a_tensor_larger_than_a_slice(type: GGMLType) -> None:
    # More than two slices of 65,536 elements, and a last one that is not full.
    shape = (3, 65_536 + 256)
    num_bytes = shape[0] * shape[1] // type.block_size * type.block_bytes
    raw = np.random.default_rng(1).integers(0, 256, num_bytes, dtype=np.uint8)
    assert_same_bits(dequantize(raw, type, shape), reference(raw, type, shape))


@pytest.mark.parametrize("fill", [0x00, 0x7F, 0x80, 0xFF])
@ALL_TYPES
def test_extreme_bytes_give_the_same_bits(type: GGMLType, fill: int) -> None:
    shape = (2, type.block_size)
    raw = np.full(2 * type.block_bytes, fill, np.uint8)
    assert_same_bits(dequantize(raw, type, shape), reference(raw, type, shape))


def test_shape_is_kept_and_the_input_left_alone() -> None:
    raw = np.arange(2 * 3 * 4 * 4, dtype=np.uint8)
    before = raw.copy()
    out = dequantize(raw, GGMLType.F32, (2, 3, 4))
    assert out.shape == (2, 3, 4)
    out[...] = 0
    np.testing.assert_array_equal(raw, before)


def test_unaligned_input() -> None:
    values = np.array([1.5, -2.25], np.float32)
    raw = np.frombuffer(b"x" + values.tobytes(), np.uint8)[1:]
    np.testing.assert_array_equal(dequantize(raw, GGMLType.F32, (2,)), values)


@pytest.mark.parametrize(("num_bytes", "shape"), [(17, (32,)), (36, (32,)), (18, (31,))])
def test_bytes_that_do_not_fit_the_shape_are_refused(
    num_bytes: int, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ModelFileError, match="not a Q4_0 tensor"):
        dequantize(np.zeros(num_bytes, np.uint8), GGMLType.Q4_0, shape)
