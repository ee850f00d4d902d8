"""A quantised matrix in one form, whatever its file calls it.

w[n, k] = scales[n, k // group_size] * codes[n, k] + mins[n, k // group_size]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.interface import FloatArray


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
