"""Linear layers on bytes: integers equal numpy's, floats agree, bits do not depend on company."""

from __future__ import annotations

import numpy as np
import pytest

from chairlift.kernels.cpu.linear_q8 import Q8Ops, QuantizedLinear
from chairlift.kernels.cpu.ops import NativeKernels
from chairlift.kernels.grouped_weights import GroupedWeights
from chairlift.kernels.interface import FloatArray
from chairlift.kernels.reference_int8 import (
    linear_q8,
    quantise_rows,
    requantise_per_channel,
)
from unit.kernels.kernel_cases import relative_error

SHAPES = [(48, 64), (37, 40), (1, 1), (16, 33), (64, 576), (100, 1536), (193, 96)]
FORMS = [(bits, size, zero) for bits in (4, 8) for size in (16, 32) for zero in (False, True)]
TOLERANCE = 3e-6
"""Of float32 sums against float64, over the largest output."""


@pytest.fixture
def ops(native: NativeKernels) -> Q8Ops:
    return Q8Ops(native.library, native.pool)


def random(*shape: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def random_weights(
    shape: tuple[int, int], bits: int, group_size: int, has_zero_point: bool, seed: int = 0
) -> GroupedWeights:
    """Half-precision scales in groups of 32; in groups of 16 scales that need float32."""
    rng = np.random.default_rng(seed)
    groups = (shape[0], -(-shape[1] // group_size))
    scales = rng.uniform(-0.1, 0.1, groups).astype(np.float16).astype(np.float32)
    mins = rng.uniform(-0.5, 0.1, groups).astype(np.float16).astype(np.float32)
    if group_size == 16:
        scales *= np.float32(1.2345)
    return GroupedWeights(
        codes=rng.integers(0, 1 << bits, shape, np.uint8),
        scales=scales,
        mins=scales * np.float32(-(1 << bits - 1)) if has_zero_point else mins,
        bits=bits,
        group_size=group_size,
    )


def constant_weights(codes: np.ndarray, bits: int) -> GroupedWeights:
    """Weights that are their own codes."""
    groups = (codes.shape[0], -(-codes.shape[1] // 32))
    return GroupedWeights(
        codes=codes.astype(np.uint8),
        scales=np.ones(groups, np.float32),
        mins=np.zeros(groups, np.float32),
        bits=bits,
        group_size=32,
    )


# -- quantising rows -------------------------------------------------------------------------------


@pytest.mark.parametrize("group_size", [32, 64])
@pytest.mark.parametrize("width", [1, 31, 32, 64, 65, 576])
@pytest.mark.parametrize("num_rows", [9, 41, 64])
def test_quantised_rows_equal_numpys(
    ops: Q8Ops, num_rows: int, width: int, group_size: int
) -> None:
    rng = np.random.default_rng(width)
    x = random(num_rows, width, seed=width)
    x *= np.float32(10) ** rng.integers(-44, 38, (num_rows, 1)).astype(np.float32)
    x[3] = 0
    x[4, 0] = 1e4
    x[5] = rng.integers(-254, 255, width) / 2  # ties
    x[6] = -0.0
    x[7] = 1e-45
    ours, theirs = ops.quantise_rows(x, group_size), quantise_rows(x, group_size)
    np.testing.assert_array_equal(ours.codes, theirs.codes)
    np.testing.assert_array_equal(ours.scales.view(np.uint32), theirs.scales.view(np.uint32))
    np.testing.assert_array_equal(ours.sums, theirs.sums)
    np.testing.assert_array_equal(ours.first_half_sums, theirs.first_half_sums)


def test_scales_are_those_of_half_precision_where_it_reaches(ops: Q8Ops) -> None:
    x = random(50, 32)
    expected = (np.abs(x).max(axis=1) / np.float32(127)).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(ops.quantise_rows(x).scales[:, 0], expected)


@pytest.mark.parametrize("group_size", [32, 64])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_its_group_only(
    ops: Q8Ops, poison: float, group_size: int
) -> None:
    x = random(48, 192)
    clean = ops.quantise_rows(x, group_size)
    x[33, 70] = poison
    ours = ops.quantise_rows(x, group_size)
    spoilt = [33, 70 // group_size]
    assert np.argwhere(np.isnan(ours.scales)).tolist() == [spoilt]
    codes = [rows.codes.reshape(48, -1, group_size) for rows in (ours, clean)]
    assert not codes[0][tuple(spoilt)].any()
    codes[1][tuple(spoilt)] = 0
    np.testing.assert_array_equal(*codes)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_row(ops: Q8Ops, poison: float) -> None:
    weight = ops.pack(random_weights((40, 96), 4, 32, False))
    x = random(6, 96)
    clean = ops.linear(x, weight)
    x[2, 50] = poison
    rows = ops.quantise_rows(x)
    assert np.argwhere(np.isnan(rows.scales)).tolist() == [[2, 1]]
    out = ops.linear(x, weight)
    assert np.isnan(out[2]).all()
    np.testing.assert_array_equal(np.delete(out, 2, axis=0), np.delete(clean, 2, axis=0))


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "group_size", "has_zero_point"), FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear_agrees_with_numpy(
    ops: Q8Ops, shape: tuple[int, int], bits: int, group_size: int, has_zero_point: bool
) -> None:
    weights = random_weights(shape, bits, group_size, has_zero_point)
    x = random(9, shape[1], seed=1)
    bias, residual = random(shape[0], seed=2), random(9, shape[0], seed=3)
    packed = ops.pack(weights, bias)
    expected = linear_q8(x, weights, bias, residual)
    assert relative_error(ops.linear(x, packed, residual), expected) < TOLERANCE


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_per_channel_agrees_with_numpy(ops: Q8Ops, shape: tuple[int, int]) -> None:
    weights = random_weights(shape, 4, 32, False)
    x = random(9, shape[1], seed=1)
    group_size = 64 if shape[1] % 64 == 0 else 32
    expected = linear_q8(x, requantise_per_channel(weights), group_size=group_size)
    assert relative_error(ops.linear(x, ops.pack(weights, per_channel=True)), expected) < TOLERANCE


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_products_do_not_saturate(ops: Q8Ops, bits: int, sign: int) -> None:
    largest = (1 << bits) - 1
    weights = constant_weights(np.full((20, 128), largest), bits)
    x = np.full((5, 128), 127 * sign, np.float32)
    np.testing.assert_array_equal(ops.linear(x, ops.pack(weights)), 128 * 127 * sign * largest)


@pytest.mark.parametrize("num_rows", [1, 3, 5, 64])
@pytest.mark.parametrize("bits", [4, 8])
def test_integer_sums_are_exact(ops: Q8Ops, bits: int, num_rows: int) -> None:
    rng = np.random.default_rng(bits)
    weights = constant_weights(rng.integers(0, 1 << bits, (70, 256)), bits)
    x = rng.integers(-127, 128, (num_rows, 256)).astype(np.float32)
    x[:, ::32] = 127  # so that every scale is 1
    expected = x.astype(np.int64) @ weights.codes.astype(np.int64).T
    np.testing.assert_array_equal(ops.linear(x, ops.pack(weights)), expected)


def test_outliers_zeros_and_tiny_values(ops: Q8Ops) -> None:
    weights = random_weights((50, 128), 4, 32, False)
    x = random(4, 128)
    x[0] = 0
    x[1, 7] = 1e4
    x[2] = 1e-40
    x[3] *= 1e-9
    packed = ops.pack(weights)
    out, expected = ops.linear(x, packed), linear_q8(x, weights)
    for row in (1, 3):
        assert relative_error(out[row], expected[row]) < TOLERANCE
    assert not out[0].any()
    assert not out[2].any()


def test_zero_and_extreme_scales(ops: Q8Ops) -> None:
    weights = random_weights((48, 64), 8, 32, True)
    weights.scales[3], weights.mins[3] = 0, 0
    weights.scales[5], weights.mins[5] = 1e30, -128e30
    weights.scales[6], weights.mins[6] = 6e-8, -128 * np.float32(6e-8)
    x = random(3, 64)
    out, expected = ops.linear(x, ops.pack(weights)), linear_q8(x, weights)
    assert not out[:, 3].any()
    for column in (5, 6, 7):
        assert relative_error(out[:, column], expected[:, column]) < TOLERANCE


@pytest.mark.parametrize("zero_point", [0, 3, 15])
def test_other_zero_points(ops: Q8Ops, zero_point: int) -> None:
    weights = random_weights((33, 96), 4, 32, False)
    mins = weights.scales * np.float32(-zero_point)
    weights = GroupedWeights(
        codes=weights.codes, scales=weights.scales, mins=mins, bits=4, group_size=32
    )
    x = random(7, 96)
    assert relative_error(ops.linear(x, ops.pack(weights)), linear_q8(x, weights)) < TOLERANCE


# -- bits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(("bits", "group_size", "has_zero_point"), FORMS)
def test_bits_do_not_depend_on_the_number_of_rows(
    ops: Q8Ops, bits: int, group_size: int, has_zero_point: bool, per_channel: bool
) -> None:
    weight = ops.pack(
        random_weights((70, 96), bits, group_size, has_zero_point), per_channel=per_channel
    )
    x = random(130, 96)
    alone = np.concatenate([ops.linear(x[row : row + 1], weight) for row in range(130)])
    for num_rows in range(1, 131):
        np.testing.assert_array_equal(ops.linear(x[:num_rows], weight), alone[:num_rows])
    for num_rows in (2, 3, 17, 64, 129):
        np.testing.assert_array_equal(ops.linear(x[-num_rows:], weight), alone[-num_rows:])


@pytest.mark.parametrize("has_zero_point", [False, True])
@pytest.mark.parametrize("num_rows", [255, 256, 257, 600])
def test_bits_across_work_items_and_unpacking(
    ops: Q8Ops, num_rows: int, has_zero_point: bool
) -> None:
    weight = ops.pack(random_weights((112, 64), 4, 32, has_zero_point))
    x = random(num_rows, 64)
    whole = ops.linear(x, weight)
    for row in (0, 1, 127, 254, num_rows - 1):
        np.testing.assert_array_equal(ops.linear(x[row : row + 1], weight)[0], whole[row])


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("width", [5600, 5592])
def test_bits_of_an_output_larger_than_caches(ops: Q8Ops, width: int, per_channel: bool) -> None:
    weight = ops.pack(random_weights((width, 32), 8, 32, True), per_channel=per_channel)
    x = random(200, 32)  # 4.5 MB of outputs, on cache lines or not
    whole = ops.linear(x, weight)
    for rows in (slice(0, 1), slice(90, 130), slice(199, 200)):
        np.testing.assert_array_equal(ops.linear(x[rows], weight), whole[rows])


@pytest.mark.parametrize("num_threads", [1, 3, 11])
def test_bits_do_not_depend_on_threads(ops: Q8Ops, num_threads: int) -> None:
    weight = ops.pack(random_weights((960, 96), 4, 32, False))
    gate_up = ops.pack(random_weights((384, 96), 4, 32, False), interleave=32)
    down = ops.pack(random_weights((96, 192), 4, 32, False))
    x = random(600, 96)
    kernels = NativeKernels(num_threads)
    others = Q8Ops(kernels.library, kernels.pool)
    for num_rows in (1, 7, 63, 64, 65, 129, 300, 600):  # whole threads' rows, and others
        rows = x[:num_rows]
        np.testing.assert_array_equal(others.linear(rows, weight), ops.linear(rows, weight))
        np.testing.assert_array_equal(others.mlp(rows, gate_up, down), ops.mlp(rows, gate_up, down))


def test_residual_may_be_the_output(ops: Q8Ops) -> None:
    weight = ops.pack(random_weights((52, 64), 4, 32, False))
    x, residual = random(9, 64), random(9, 52, seed=1)
    expected = ops.linear(x, weight, residual)
    assert ops.linear(x, weight, residual, out=residual) is residual
    np.testing.assert_array_equal(residual, expected)


# -- gates -----------------------------------------------------------------------------------------


def interleaved_order(num_outputs: int, block: int) -> list[int]:
    """Rows of stacked gates and ups in the order of interleaved columns."""
    return [
        half * num_outputs + first + i
        for first in range(0, num_outputs, block)
        for half in (0, 1)
        for i in range(block)
    ]


@pytest.mark.parametrize("interleave", [16, 32])
def test_interleaving_only_moves_columns(ops: Q8Ops, interleave: int) -> None:
    weights = random_weights((192, 64), 4, 32, False)
    x = random(5, 64)
    plain = ops.linear(x, ops.pack(weights))
    moved = ops.linear(x, ops.pack(weights, interleave=interleave))
    np.testing.assert_array_equal(moved, plain[:, interleaved_order(96, interleave)])


def make_mlp(
    ops: Q8Ops, inner: int, interleave: int, per_channel: bool = False
) -> tuple[QuantizedLinear, QuantizedLinear, GroupedWeights]:
    gate_up = random_weights((2 * inner, 96), 4, 32, False)
    down = random_weights((40, inner), 4, 32, False, seed=1)
    return (
        ops.pack(gate_up, interleave=interleave, per_channel=per_channel),
        ops.pack(down, per_channel=per_channel),
        gate_up,
    )


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("interleave", [16, 32])
@pytest.mark.parametrize("inner", [32, 96, 192, 320])
def test_mlp_is_made_of_its_parts(
    ops: Q8Ops, inner: int, interleave: int, per_channel: bool
) -> None:
    gate_up, down, weights = make_mlp(ops, inner, interleave, per_channel)
    x, residual = random(37, 96), random(37, 40, seed=1)
    both = ops.linear(x, ops.pack(weights, per_channel=per_channel)).astype(np.float64)
    gate, up = both[:, :inner], both[:, inner:]
    hidden = (gate / (1 + np.exp(-gate)) * up).astype(np.float32)
    expected = ops.linear(hidden, down, residual)
    # A value on the border between two codes may fall on either side.
    assert relative_error(ops.mlp(x, gate_up, down, residual), expected) < 1e-3


@pytest.mark.parametrize("size", [1e-12, 1.0, 50.0, 1e4, 1e15])
def test_gates_of_any_size(ops: Q8Ops, size: float) -> None:
    gate_up, down, weights = make_mlp(ops, 96, 32)
    x = random(37, 96) * np.float32(size)
    both = ops.linear(x, ops.pack(weights)).astype(np.float64)
    gate, up = both[:, :96], both[:, 96:]
    hidden = (gate / (1 + np.exp(np.minimum(-gate, 700))) * up).astype(np.float32)
    assert relative_error(ops.mlp(x, gate_up, down), ops.linear(hidden, down)) < 1e-3


@pytest.mark.parametrize("interleave", [16, 32])
def test_mlp_bits_do_not_depend_on_the_number_of_rows(ops: Q8Ops, interleave: int) -> None:
    gate_up, down, _ = make_mlp(ops, 192, interleave)
    x = random(300, 96)
    alone = np.concatenate([ops.mlp(x[row : row + 1], gate_up, down) for row in range(60)])
    for num_rows in (1, 2, 3, 15, 16, 17, 33, 60, 255, 256, 300):
        np.testing.assert_array_equal(
            ops.mlp(x[:num_rows], gate_up, down)[:60], alone[: min(60, num_rows)]
        )


def test_mlp_refuses_what_does_not_fit(ops: Q8Ops) -> None:
    gate_up, down, _ = make_mlp(ops, 64, 16)
    with pytest.raises(ValueError, match="gate_up must be interleaved"):
        ops.mlp(random(2, 64), down, down)
    with pytest.raises(ValueError, match="twice as wide"):
        ops.mlp(random(2, 96), gate_up, ops.pack(random_weights((40, 32), 4, 32, False)))
    biased = ops.pack(random_weights((40, 64), 4, 32, False), random(40))
    with pytest.raises(ValueError, match="no biases"):
        ops.mlp(random(2, 96), gate_up, biased)


# -- packing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "has_zero_point", "per_channel", "bits_per_weight"),
    [(4, False, False, 5), (4, True, False, 4.5), (8, True, False, 8.5), (4, False, True, 8)],
)
def test_packed_size(
    ops: Q8Ops, bits: int, has_zero_point: bool, per_channel: bool, bits_per_weight: float
) -> None:
    weights = random_weights((960, 576), bits, 32, has_zero_point)
    packed = ops.pack(weights, per_channel=per_channel)
    assert packed.num_bytes / weights.codes.size * 8 == pytest.approx(bits_per_weight, rel=0.01)


def test_what_cannot_be_packed(ops: Q8Ops) -> None:
    weights = random_weights((40, 64), 4, 32, False)
    with pytest.raises(ValueError, match="interleave must be 0, 16 or 32"):
        ops.pack(weights, interleave=8)
    with pytest.raises(ValueError, match="blocks of the interleave"):
        ops.pack(weights, interleave=16)
    with pytest.raises(ValueError, match="does not fit 40 rows"):
        ops.pack(weights, random(39))
    wrong = GroupedWeights(
        codes=weights.codes + np.uint8(1),
        scales=weights.scales,
        mins=weights.mins,
        bits=4,
        group_size=32,
    )
    with pytest.raises(ValueError, match=r"below 2 \*\* 4"):
        ops.pack(wrong)
    short = GroupedWeights(
        codes=weights.codes,
        scales=weights.scales[:, :1],
        mins=weights.mins,
        bits=4,
        group_size=32,
    )
    with pytest.raises(ValueError, match="do not fit codes"):
        ops.pack(short)


def test_wrong_calls_are_refused(ops: Q8Ops) -> None:
    weight = ops.pack(random_weights((40, 64), 4, 32, False))
    with pytest.raises(ValueError, match="x must be dense float32"):
        ops.linear(random(2, 65), weight)
    with pytest.raises(ValueError, match="residual must be dense float32"):
        ops.linear(random(2, 64), weight, random(2, 41))
    weight.packed[:8] = 0
    with pytest.raises(ValueError, match="not packed by this library"):
        ops.linear(random(2, 64), weight)
    with pytest.raises(ValueError, match="group_size must be 32 or 64"):
        ops.quantise_rows(random(2, 64), 16)


def test_no_rows(ops: Q8Ops) -> None:
    weight = ops.pack(random_weights((40, 64), 4, 32, False))
    assert ops.linear(random(0, 64), weight).shape == (0, 40)


def test_the_measured_peak_is_positive(ops: Q8Ops) -> None:
    assert ops.measure_int8_dot() > 0
