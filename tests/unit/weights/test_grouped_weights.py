"""Grouped weights against the plain floats of the same bytes, for every quantised type."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from chairlift.errors import ModelFileError
from chairlift.kernels.grouped_weights import GroupedWeights, stack_weights, stacked_form
from chairlift.weights.dequantize import dequantize
from chairlift.weights.ggml_type import GGMLType
from chairlift.weights.grouped_weights import group_form, group_weights

PLAIN = {GGMLType.F32, GGMLType.F16, GGMLType.BF16}
QUANTISED = pytest.mark.parametrize(
    "type", [type for type in GGMLType if type not in PLAIN], ids=lambda type: type.name
)
HALF_FIELDS = {
    GGMLType.Q4_1: (0, 2),
    GGMLType.Q5_1: (0, 2),
    GGMLType.Q2_K: (80, 82),
    GGMLType.Q3_K: (108,),
    GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2),
    GGMLType.Q6_K: (208,),
}
"""Where a block keeps float16 numbers; elsewhere at byte 0 alone."""


def random_tensor(type: GGMLType, shape: tuple[int, int], seed: int = 0) -> npt.NDArray[np.uint8]:
    """Random bytes with sane scales."""
    rng = np.random.default_rng(seed)
    num_blocks = shape[0] * shape[1] // type.block_size
    blocks = rng.integers(0, 256, (num_blocks, type.block_bytes), np.uint8)
    for start in HALF_FIELDS.get(type, (0,)):
        halves = rng.uniform(-0.1, 0.1, (num_blocks, 1)).astype("<f2")
        blocks[:, start : start + 2] = halves.view(np.uint8)
    return blocks.reshape(-1)


@QUANTISED
def test_weights_are_those_of_the_type(type: GGMLType) -> None:
    shape = (6, 512)
    raw = random_tensor(type, shape)
    grouped = group_weights(raw, type, shape)
    exact = dequantize(raw, type, shape)
    # The product of scale and code and the minimum are exact or nearly; the sum rounds once more.
    terms = np.abs(grouped.mins.repeat(grouped.group_size, axis=1)) + np.abs(exact)
    assert np.all(np.abs(grouped.dequantize() - exact) <= terms * 2.0**-22)
    assert grouped.codes.max() < 1 << grouped.bits
    assert grouped.codes.dtype == np.uint8
    assert grouped.scales.shape == grouped.mins.shape == (6, 512 // grouped.group_size)


@QUANTISED
def test_the_form_is_known_before_the_weights(type: GGMLType) -> None:
    shape = (6, 512)
    grouped, form = group_weights(random_tensor(type, shape), type, shape), group_form(type)
    assert form is not None
    assert (form.bits, form.group_size) == (grouped.bits, grouped.group_size)
    used = grouped.scales != 0
    ratios = grouped.mins[used] / grouped.scales[used]
    assert form.has_minimum == bool(np.abs(ratios - ratios[0]).max() > 1e-3)
    halves = grouped.scales.astype(np.float16).astype(np.float32)
    assert form.half_scales == np.array_equal(halves, grouped.scales)


@pytest.mark.parametrize("type", sorted(PLAIN), ids=lambda type: type.name)
def test_plain_types_have_no_form(type: GGMLType) -> None:
    assert group_form(type) is None


def test_a_matrix_larger_than_a_slice() -> None:
    shape = (300, 1024)
    raw = random_tensor(GGMLType.Q4_1, shape)
    expected = dequantize(raw, GGMLType.Q4_1, shape)
    np.testing.assert_allclose(
        group_weights(raw, GGMLType.Q4_1, shape).dequantize(), expected, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("type", sorted(PLAIN), ids=lambda type: type.name)
def test_plain_types_have_no_groups(type: GGMLType) -> None:
    with pytest.raises(ModelFileError, match=type.name):
        group_weights(np.zeros(64 * type.block_bytes, np.uint8), type, (2, 32))


@pytest.mark.parametrize("shape", [(2, 64), (1, 32), (4, 16)])
def test_bytes_that_do_not_fit_the_shape(shape: tuple[int, int]) -> None:
    raw = random_tensor(GGMLType.Q8_0, (2, 32))
    with pytest.raises(ModelFileError, match="68 bytes are not a Q8_0 matrix"):
        group_weights(raw, GGMLType.Q8_0, shape)


def test_stacking_keeps_every_weight() -> None:
    types = (GGMLType.Q4_1, GGMLType.Q6_K, GGMLType.Q8_0)
    parts = [group_weights(random_tensor(type, (3, 256)), type, (3, 256)) for type in types]
    stacked = stack_weights(parts)
    assert (stacked.bits, stacked.group_size, stacked.out_features) == (8, 16, 9)
    form = stacked_form([group_form(type) for type in types])
    assert form is not None and (form.bits, form.group_size) == (8, 16)
    assert form.has_minimum and not form.half_scales
    assert stacked_form([None, None]) is None
    np.testing.assert_array_equal(
        stacked.dequantize(), np.concatenate([part.dequantize() for part in parts])
    )


def test_matrices_that_do_not_stack() -> None:
    def zeros(width: int) -> GroupedWeights:
        groups = np.zeros((1, width // 32), np.float32)
        return GroupedWeights(
            codes=np.zeros((1, width), np.uint8), scales=groups, mins=groups, bits=4, group_size=32
        )

    with pytest.raises(ValueError, match="nothing to stack"):
        stack_weights([])
    with pytest.raises(ValueError, match="same number of columns"):
        stack_weights([zeros(32), zeros(64)])
