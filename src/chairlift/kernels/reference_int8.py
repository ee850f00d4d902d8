"""Linear layers on quantised rows in numpy: what the native library must compute.

Rows of activations are cut into groups, each of signed bytes with one scale.  Integers here equal
the library's bit for bit; the floats made of them agree up to the rounding of their sums.  Slow and
obvious: an oracle for tests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.grouped_weights import GroupedWeights
from chairlift.kernels.interface import FloatArray

SMALLEST_NORMAL = np.float32(1.17549435e-38)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedRows:
    """Rows x[t, k] = scales[t, k // group_size] * codes[t, k], padded to whole groups."""

    codes: NDArray[np.int8]
    """[T, G * group_size], from -127 to 127."""
    scales: FloatArray
    """[T, G]; not-a-number where the group held an infinity or not-a-number."""
    sums: NDArray[np.int32]
    """[T, G] sums of the codes of a group."""
    first_half_sums: NDArray[np.int32]
    """[T, G] sums of the first half of a group's codes."""

    @property
    def group_size(self) -> int:
        return int(self.codes.shape[1] // self.scales.shape[1])


def quantise_rows(x: FloatArray, group_size: int = 32) -> QuantizedRows:
    """Groups of `group_size` of each row [T, K] to bytes; the scale is the largest magnitude / 127.

    As in GGUF's Q8_0 the codes come from the unrounded scale, and what is kept has eleven
    significant bits; other than there, it keeps float32's range.
    """
    num_rows, width = x.shape
    num_groups = -(-width // group_size)
    groups = np.zeros((num_rows, num_groups * group_size), np.float32)
    groups[:, :width] = x
    groups = groups.reshape(num_rows, num_groups, group_size)
    with np.errstate(all="ignore"):
        step = np.abs(groups).max(axis=2) / np.float32(127)
        is_finite = np.isfinite(groups).all(axis=2)
        usable = is_finite & (step >= SMALLEST_NORMAL)
        inverse = np.where(usable, np.float32(1) / step, np.float32(0))
        scaled = np.where(usable[:, :, None], groups * inverse[:, :, None], np.float32(0))
    codes = np.rint(scaled).astype(np.int8)
    scales = np.where(usable, round_to_eleven_bits(np.where(usable, step, 0)), np.float32(0))
    scales[~is_finite] = np.nan
    halves = codes.reshape(num_rows, num_groups, 2, -1).sum(axis=3, dtype=np.int32)
    return QuantizedRows(
        codes=codes.reshape(num_rows, -1),
        scales=scales.astype(np.float32),
        sums=halves.sum(axis=2, dtype=np.int32),
        first_half_sums=halves[:, :, 0],
    )


def round_to_eleven_bits(x: FloatArray) -> FloatArray:
    """The nearest float32 with eleven significant bits, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x0FFF) + (bits >> np.uint32(13) & np.uint32(1))) & ~np.uint32(
        0x1FFF
    )
    return rounded.view(np.float32)


def integer_dots(
    rows: QuantizedRows, weights: GroupedWeights
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Per row, column and weight group: sum of code * activation [T, N, G]; sum of activations."""
    size = weights.group_size
    num_groups = weights.scales.shape[1]
    activations = np.zeros((len(rows.codes), num_groups * size), np.int64)
    width = min(activations.shape[1], rows.codes.shape[1])
    activations[:, :width] = rows.codes[:, :width]
    activations = activations.reshape(-1, num_groups, size)
    codes = np.zeros((weights.out_features, num_groups * size), np.int64)
    codes[:, : weights.in_features] = weights.codes
    codes = codes.reshape(-1, num_groups, size)
    dots: NDArray[np.int64] = np.einsum("tgk,ngk->tng", activations, codes)
    sums: NDArray[np.int64] = activations.sum(axis=2)
    return dots, sums


def linear_q8(
    x: FloatArray,
    weights: GroupedWeights,
    bias: FloatArray | None = None,
    residual: FloatArray | None = None,
    group_size: int = 32,
) -> NDArray[np.float64]:
    """q(x) W^T + bias + residual of x [T, K], floats summed in float64; [T, N].

    Group g of a row adds  scale_x (scale_w dot + min_w sum).
    """
    rows = quantise_rows(x, group_size)
    dots, sums = integer_dots(rows, weights)
    repeat = group_size // weights.group_size
    row_scales = rows.scales.astype(np.float64).repeat(repeat, axis=1)[:, : dots.shape[2]]
    result: NDArray[np.float64] = np.einsum(
        "tg,ng,tng->tn", row_scales, weights.scales.astype(np.float64), dots
    ) + np.einsum("tg,ng->tn", row_scales * sums, weights.mins.astype(np.float64))
    if bias is not None:
        result = result + bias
    if residual is not None:
        result = result + residual
    return result


def requantise_per_channel(weights: GroupedWeights) -> GroupedWeights:
    """Signed bytes with one scale per row, as unsigned codes with -128 * scale as minimum."""
    matrix = weights.dequantize()
    with np.errstate(all="ignore"):
        scale = np.abs(matrix).max(axis=1) / np.float32(127)
        usable = (scale >= SMALLEST_NORMAL) & np.isfinite(scale)
        inverse = np.where(usable, np.float32(1) / scale, np.float32(0))
        scaled = np.where(usable[:, None], matrix * inverse[:, None], np.float32(0))
    codes = (np.rint(scaled) + 128).astype(np.uint8)
    scales = np.where(usable, scale, np.float32(0))[:, None].repeat(weights.scales.shape[1], axis=1)
    return GroupedWeights(
        codes=codes,
        scales=np.ascontiguousarray(scales, np.float32),
        mins=np.ascontiguousarray(scales * np.float32(-128), np.float32),
        bits=8,
        group_size=weights.group_size,
    )
