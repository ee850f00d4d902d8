"""A quantised matrix in one form, whatever its file calls it.

w[n, k] = scales[n, k // group_size] * codes[n, k] + mins[n, k // group_size]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]

_SLICE_ELEMENTS = 1 << 20
_HUGE = np.float16(np.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupForm:
    """What a quantised matrix takes in memory, known before it is read."""

    bits: int
    """4 or 8."""
    group_size: int
    """16 or 32."""
    has_minimum: bool
    """False: all minima of a row are the same multiple of its scales, a zero point."""
    half_scales: bool
    """Scales and minima are numbers of half precision."""


QUANTISED_FLOATS = GroupForm(bits=8, group_size=32, has_minimum=False, half_scales=True)
"""What `quantise_matrix` gives."""


def stacked_form(forms: Sequence[GroupForm | None]) -> GroupForm | None:
    """What `stack_weights` makes of parts of these forms; None stands for floats."""
    if all(form is None for form in forms):
        return None
    parts = [form or QUANTISED_FLOATS for form in forms]
    return GroupForm(
        bits=max(part.bits for part in parts),
        group_size=min(part.group_size for part in parts),
        has_minimum=any(part.has_minimum for part in parts),
        half_scales=all(part.half_scales for part in parts),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedWeights:
    """A matrix [N, K] in groups along K."""

    codes: NDArray[np.uint8]
    """[N, K], below 2 ** bits."""
    scales: FloatArray
    """[N, ceil(K / group_size)]"""
    mins: FloatArray
    """The same shape."""
    bits: int
    """4 or 8."""
    group_size: int
    """16 or 32."""

    @property
    def out_features(self) -> int:
        return int(self.codes.shape[0])

    @property
    def in_features(self) -> int:
        return int(self.codes.shape[1])

    def dequantize(self) -> FloatArray:
        """The matrix as float32 [N, K]."""
        size = self.group_size
        scales = self.scales.repeat(size, axis=1)[:, : self.in_features]
        return (
            scales * self.codes.astype(np.float32)
            + self.mins.repeat(size, axis=1)[:, : self.in_features]
        )


def quantise_matrix(matrix: FloatArray) -> GroupedWeights:
    """A float matrix [N, K] as signed bytes in groups of 32, their zero point 128.

    Scales are numbers of half precision, rounded up so that no code is cut off, as far as these
    reach.
    """
    size = QUANTISED_FLOATS.group_size
    num_rows, width = matrix.shape
    num_groups = -(-width // size)
    codes = np.full((num_rows, num_groups * size), 128, np.uint8)
    scales = np.zeros((num_rows, num_groups), np.float32)
    step = max(1, _SLICE_ELEMENTS // max(1, width))
    for start in range(0, num_rows, step):
        part = slice(start, start + step)
        groups = np.zeros((len(matrix[part]), num_groups, size), np.float32)
        groups.reshape(len(groups), -1)[:, :width] = matrix[part]
        _quantise_groups(groups, codes[part].reshape(groups.shape), scales[part])
    return GroupedWeights(
        codes=np.ascontiguousarray(codes[:, :width]),
        scales=scales,
        mins=scales * np.float32(-128),
        bits=8,
        group_size=size,
    )


def _quantise_groups(groups: FloatArray, codes: NDArray[np.uint8], scales: FloatArray) -> None:
    """Codes of [n, G, size] and scales of [n, G], written in place."""
    # A damaged file may hold infinities: their groups become not-a-number, without a warning.
    with np.errstate(all="ignore"):
        largest = np.abs(groups).max(axis=2)
        half = (largest / np.float32(127)).astype(np.float16)
        half = np.where(half.astype(np.float32) * 127 < largest, np.nextafter(half, _HUGE), half)
        scale = half.astype(np.float32)
        scale = np.where(np.isfinite(scale), scale, largest / np.float32(127))
        is_finite = np.isfinite(scale)
        inverse = np.where(is_finite & (scale > 0), np.float32(1) / scale, np.float32(0))
        rounded = np.rint(np.where(is_finite[:, :, None], groups, 0) * inverse[:, :, None])
        scales[...] = np.where(is_finite, scale, np.float32(np.nan))
    codes[...] = (rounded + np.float32(128)).astype(np.uint8)


def stack_weights(parts: Sequence[GroupedWeights]) -> GroupedWeights:
    """Matrices of one width below each other; types may differ.

    Groups become those of the finest part and codes those of the widest; weights do not change.

    Raises:
        ValueError: there is no part, or widths differ.
    """
    if not parts:
        raise ValueError("there is nothing to stack")
    if len({part.in_features for part in parts}) > 1:
        raise ValueError("stacked matrices must have the same number of columns")
    group_size = min(part.group_size for part in parts)
    num_groups = -(-parts[0].in_features // group_size)

    def refined(values: FloatArray, size: int) -> FloatArray:
        return values.repeat(size // group_size, axis=1)[:, :num_groups]

    return GroupedWeights(
        codes=np.concatenate([part.codes for part in parts]),
        scales=np.concatenate([refined(part.scales, part.group_size) for part in parts]),
        mins=np.concatenate([refined(part.mins, part.group_size) for part in parts]),
        bits=max(part.bits for part in parts),
        group_size=group_size,
    )
