"""Weights of 16 bits give the very bits that their float32 copies give."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.kernels.cpu.library import NativeLibrary
from chairlift.kernels.cpu.ops import NativeKernels, NativeLinear
from chairlift.kernels.interface import FloatArray, Linear
from chairlift.kernels.kv_dtype import from_stored
from chairlift.kernels.reference import ReferenceKernels
from chairlift.kernels.stored_floats import ShortForm, StoredFloats

FORMS: tuple[ShortForm, ...] = ("float16", "bfloat16")
SPECIAL = np.array(
    [
        *(0x0000, 0x8000),  # zeros
        *(0x0001, 0x8001, 0x03FF, 0x0400, 0x007F, 0x0080),  # denormals and what follows them
        *(0x7BFF, 0xFBFF, 0x7F7F, 0xFF7F),  # the largest
        *(0x7C00, 0xFC00, 0x7F80, 0xFF80),  # infinities
        *(0x7C01, 0x7F81, 0xFFFE),  # no numbers
    ],
    np.uint16,
)
"""Of one form or the other; in the other one some are ordinary."""


def random(*shape: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def short(form: ShortForm, *shape: int, seed: int = 0) -> StoredFloats:
    values = random(*shape, seed=seed)
    if form == "float16":
        return values.astype(np.float16)
    return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def from_bits(form: ShortForm, bits: NDArray[np.uint16]) -> StoredFloats:
    return bits.view(np.float16) if form == "float16" else bits


def assert_same_bits(found: FloatArray, expected: FloatArray) -> None:
    """Zeros have signs; what is no number has none."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(found[numbers].view(np.uint32), expected[numbers].view(np.uint32))


def packed(linear: Linear) -> NativeLinear:
    assert isinstance(linear, NativeLinear)
    return linear


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("out_features", "in_features"), [(1, 1), (31, 7), (32, 96), (33, 40), (200, 65), (17, 576)]
)
def test_products_have_the_bits_of_the_float32_copy(
    native: NativeKernels, form: ShortForm, out_features: int, in_features: int
) -> None:
    matrix, bias = short(form, out_features, in_features), random(out_features, seed=1)
    weight = native.prepare_linear([matrix], [bias])
    copy = native.prepare_linear([from_stored(matrix)], [bias])
    assert packed(weight).form == form and 2 * packed(weight).num_bytes == copy.num_bytes
    x = random(300, in_features, seed=2)
    for num_rows in [*range(1, 30), 64, 255, 256, 257, 300]:
        assert_same_bits(native.linear(x[:num_rows], weight), native.linear(x[:num_rows], copy))


@pytest.mark.parametrize("form", FORMS)
def test_every_number_is_read_exactly(native: NativeKernels, form: ShortForm) -> None:
    """All 65,536 of them, each in an output of its own."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    matrix = from_bits(form, bits.reshape(-1, 1))
    expected = from_stored(matrix)[:, 0]
    weight = native.prepare_linear([matrix], [None])
    ids = np.arange(1 << 16, dtype=np.int32)
    rows = native.embed(native.prepare_table(matrix, weight), ids)[:, 0]
    assert_same_bits(rows, expected)
    for num_rows in (1, 2):
        product = native.linear(np.ones((num_rows, 1), np.float32), weight)[-1]
        np.testing.assert_array_equal(product, expected)


@pytest.mark.parametrize("form", FORMS)
def test_special_numbers_stay_in_their_output(native: NativeKernels, form: ShortForm) -> None:
    """Each among others in an output of its own, and all of them in one."""
    matrix = short(form, 3 * len(SPECIAL), 61, seed=3)
    special = from_bits(form, SPECIAL)
    matrix[::3][np.arange(len(SPECIAL)), np.arange(len(SPECIAL)) * 3] = special
    matrix[1, : len(SPECIAL)] = special
    weight = native.prepare_linear([matrix], [None])
    copy = native.prepare_linear([from_stored(matrix)], [None])
    x = random(9, 61, seed=4)
    for num_rows in (1, 2, 9):
        result = native.linear(x[:num_rows], weight)
        assert_same_bits(result, native.linear(x[:num_rows], copy))
        assert np.isnan(result[:, 1]).all() and np.isfinite(result[:, 2::3]).all()
        assert np.isinf(result).any()


@pytest.mark.parametrize("form", FORMS)
def test_denormal_products_are_not_flushed(native: NativeKernels, form: ShortForm) -> None:
    matrix = from_bits(form, np.array([[1], [0x8001]], np.uint16))
    weight = native.prepare_linear([matrix], [None])
    expected = from_stored(matrix)[:, 0]
    assert np.all(expected != 0)
    for num_rows in (1, 2):
        result = native.linear(np.full((num_rows, 1), 4, np.float32), weight)
        assert_same_bits(result, np.tile(4 * expected, (num_rows, 1)))


@pytest.mark.parametrize("form", FORMS)
def test_products_are_those_of_the_reference(native: NativeKernels, form: ShortForm) -> None:
    matrix, bias, x = short(form, 203, 65), random(203, seed=1), random(37, 65, seed=2)
    reference = ReferenceKernels(1)
    expected = reference.linear(x, reference.prepare_linear([matrix], [bias]))
    for num_rows in (1, 8, 37):
        found = native.linear(x[:num_rows], native.prepare_linear([matrix], [bias]))
        np.testing.assert_allclose(found, expected[:num_rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_stack_of_one_form_stays_in_16_bits(native: NativeKernels, form: ShortForm) -> None:
    parts = [short(form, rows, 48, seed=rows) for rows in (33, 7, 64)]
    weight = native.prepare_linear(parts, [None, random(7), None])
    copy = native.prepare_linear([from_stored(part) for part in parts], [None, random(7), None])
    assert packed(weight).form == form
    x = random(5, 48, seed=1)
    np.testing.assert_array_equal(native.linear(x, weight), native.linear(x, copy))


def test_a_mixed_stack_becomes_float32(native: NativeKernels) -> None:
    parts = [short("float16", 33, 48), short("bfloat16", 7, 48), random(20, 48)]
    weight = native.prepare_linear(parts, [None] * 3)
    copy = native.prepare_linear([from_stored(part) for part in parts], [None] * 3)
    assert packed(weight).form is None
    x = random(5, 48, seed=1)
    np.testing.assert_array_equal(native.linear(x, weight), native.linear(x, copy))


@pytest.mark.parametrize("form", [None, *FORMS])
def test_rows_of_the_head_are_the_table(native: NativeKernels, form: ShortForm | None) -> None:
    table = random(101, 30) if form is None else short(form, 101, 30)
    head = native.prepare_linear([table], [None])
    assert native.shares_table and native.prepare_table(table, head) is head
    ids = np.array([0, 100, 31, 32, 33, 31, 64], np.int32)
    for kept in (head, native.prepare_table(table, None)):
        np.testing.assert_array_equal(native.embed(kept, ids), from_stored(table)[ids])
    assert native.embed(head, ids[:0]).shape == (0, 30)


@pytest.mark.parametrize("bad", [-1, 101, 2**31 - 1])
def test_an_id_beyond_the_table_is_refused(native: NativeKernels, bad: int) -> None:
    table = native.prepare_table(short("bfloat16", 101, 30), None)
    with pytest.raises(ValueError, match=f"row {bad} is not in the matrix"):
        native.embed(table, np.array([0, bad], np.int32))


@pytest.mark.parametrize("shape", [(1, 1), (32, 48), (33, 40), (200, 65)])
def test_planned_bytes_are_those_that_are_held(
    native: NativeKernels, shape: tuple[int, int]
) -> None:
    matrices: dict[ShortForm | None, StoredFloats] = {form: short(form, *shape) for form in FORMS}
    matrices[None] = random(*shape)
    for form, matrix in matrices.items():
        held = native.prepare_linear([matrix], [None]).num_bytes
        # What is read in place costs nothing more.
        for in_layer in (True, False):
            planned = native.matrix_bytes(*shape, form, in_layer=in_layer)
            assert planned == native.preparing_bytes(*shape, form, in_layer=in_layer) == held


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weight_type": -1}, "must be float32, float16 or bfloat16"),
        ({"weight_type": 3}, "must be float32, float16 or bfloat16"),
        ({"weight_type": 0, "offset": 2}, "a pointer is not aligned"),
        ({"weight_type": 2, "offset": 1}, "a pointer is not aligned"),
        ({"out_features": 0}, "a size is below 1"),
        ({"in_features": -1}, "a size is below 1"),
        ({"out_features": 2**40, "in_features": 2**40}, "a size is out of range"),
        ({"count": -1}, "out of range"),
        ({"count": 2**60}, "out of range"),
    ],
)
def test_what_is_no_matrix_is_refused(
    library: NativeLibrary, changed: dict[str, int], message: str
) -> None:
    functions, pool = library.functions, library.create_pool(1)
    case = {"weight_type": 1, "offset": 0, "out_features": 32, "in_features": 4, "count": 1}
    case |= changed
    matrix, other = np.zeros((2, 64, 4), np.float32)
    weight = (matrix.ctypes.data + case["offset"], case["weight_type"])
    place, shape, count = (
        other.ctypes.data,
        (case["out_features"], case["in_features"]),
        case["count"],
    )
    calls = {
        "pack": lambda: functions.chairlift_linear_f32_pack(pool, *weight, *shape, place),
        "rows": lambda: functions.chairlift_rows_f32(pool, *weight, *shape, place, count, place),
        "linear": lambda: functions.chairlift_linear_f32(
            pool, place, count, *weight, None, *shape, place
        ),
    }
    if "count" in changed:
        del calls["pack"]
    for name, call in calls.items():
        with pytest.raises(ValueError, match=f"^{name}: .*{message}"):
            library.check(call())
    if shape != (32, 4):
        assert functions.chairlift_linear_f32_size(*shape) == 0
