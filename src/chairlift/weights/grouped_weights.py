"""GGUF's quantised blocks as one form: an unsigned code per weight, a scale and a minimum per group.

    w[n, k] = scales[n, k // group_size] * codes[n, k] + mins[n, k // group_size]

Nothing is lost: the numbers are those of `dequantize` up to the rounding of the sum above.  Types
with a zero point get the minimum -z * scale; the uneven levels of IQ4 become codes of 8 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from chairlift.errors import ModelFileError
from chairlift.weights import dequantize as blocks_of
from chairlift.weights.dequantize import F32, U8
from chairlift.weights.ggml_type import GGMLType

_SLICE_ELEMENTS = 1 << 18
_LEVELS = (blocks_of._LEVELS_IQ4 + np.float32(128)).astype(np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedWeights:
    """A matrix [N, K] in groups along K."""

    codes: U8
    """[N, K], below 2 ** bits."""
    scales: F32
    """[N, ceil(K / group_size)]"""
    mins: F32
    """The same shape."""
    bits: int
    """4 or 8."""
    group_size: int
    """16 or 32."""

    @property
    def out_features(self) -> int:
        return self.codes.shape[0]

    @property
    def in_features(self) -> int:
        return self.codes.shape[1]

    def dequantise(self) -> F32:
        """The matrix as float32 [N, K]."""
        size = self.group_size
        scales = self.scales.repeat(size, axis=1)[:, : self.in_features]
        return scales * self.codes.astype(np.float32) + self.mins.repeat(size, axis=1)[
            :, : self.in_features
        ]


def group_weights(raw: U8, type: GGMLType, shape: tuple[int, int]) -> GroupedWeights:
    """The matrix of `shape` whose bytes are `raw` [num_bytes].

    Raises:
        ModelFileError: the type has no groups, or the number of bytes does not fit the shape.
    """
    if type not in _UNPACK:
        raise ModelFileError(f"{type.name} tensors are not quantised in groups")
    out_features, in_features = shape
    num_blocks, rest = divmod(math.prod(shape), type.block_size)
    if rest or in_features % type.block_size or raw.size != num_blocks * type.block_bytes:
        raise ModelFileError(f"{raw.size} bytes are not a {type.name} matrix of shape {shape}")
    bits, group_size, unpack = _UNPACK[type]
    blocks = np.ascontiguousarray(raw).reshape(num_blocks, type.block_bytes)
    codes = np.empty((num_blocks, type.block_size), np.uint8)
    scales = np.empty((num_blocks, type.block_size // group_size), np.float32)
    mins = np.empty_like(scales)
    step = _SLICE_ELEMENTS // type.block_size
    # A scale may be infinite or NaN in a damaged file; that is no reason for a warning.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, num_blocks, step):
            part = slice(start, start + step)
            unpack(blocks[part], codes[part], scales[part], mins[part])
    return GroupedWeights(
        codes=codes.reshape(shape),
        scales=scales.reshape(out_features, -1),
        mins=mins.reshape(out_features, -1),
        bits=bits,
        group_size=group_size,
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

    def refined(values: F32, size: int) -> F32:
        return values.repeat(size // group_size, axis=1)[:, :num_groups]

    return GroupedWeights(
        codes=np.concatenate([part.codes for part in parts]),
        scales=np.concatenate([refined(part.scales, part.group_size) for part in parts]),
        mins=np.concatenate([refined(part.mins, part.group_size) for part in parts]),
        bits=max(part.bits for part in parts),
        group_size=group_size,
    )


def _q4_0(blocks: U8, codes: U8, scales: F32, mins: F32) -> None:
    codes[...] = blocks_of._fields(blocks[:, 2:], 4, 16).reshape(codes.shape)
    scales[...] = blocks_of._half(blocks, 0)
    np.multiply(scales, np.float32(-8), out=mins)


def _q4_1(blocks: U8, codes: U8, scales: F32, mins: F32) -> None:
    codes[...] = blocks_of._fields(blocks[:, 4:], 4, 16).reshape(codes.shape)
    scales[...] = blocks_of._half(blocks, 0)
    mins[...] = blocks_of._half(blocks, 2)


def _q5_0(blocks: U8, codes: U8, scales: F32, mins: F32) -> None:
    codes[...] = blocks_of._with_fifth_bits(blocks[:, 6:], blocks[:, 2:6])
    scales[...] = blocks_of._half(blocks, 0)
    np.multiply(scales, np.float32(-16), out=mins)


def _q5_1(blocks: U8, codes: U8, scales: F32, mins: F32) -> None:
    codes[...] = blocks_of._with_fifth_bits(blocks[:, 8:], blocks[:, 4:8])
    scales[...] = blocks_of._half(blocks, 0)
    mins[...] = blocks_of._half(blocks, 2)


def _q8_0(blocks: U8, codes: U8, scales: F32, mins: F32) -> None:
    np.bitwise_xor(blocks[:, 2:], np.uint8(0x80), out=codes)
    scales[...] = blocks_of._half(blocks, 0)
    np.multiply(scales, np.float32(-128), out=mins)


def _q2_k(blocks: U8, codes: U8, scales: F32, mins: F32) -> None:
    factors = blocks[:, :16]
    codes[...] = blocks_of._fields(blocks[:, 16:80], 2, 32).reshape(codes.shape)
    scales[...] = blocks_of._half(blocks, 80) * (factors & np.uint8(15)).astype(np.float32)
    mins[...] = blocks_of._half(blocks, 82) * (factors >> np.uint8(4)).astype(np.float32)
    np.negative(mins, out=mins)


def _q3_k(blocks: U8, codes: U8, scales: F32, mins: F32) -> None:
    low = blocks_of._fields(blocks[:, 96:104], 4, 8).reshape(-1, 16)
    high = blocks_of._fields(blocks[:, 104:108], 2, 4).reshape(-1, 16)
    factors = (low | high << np.uint8(4)).astype(np.float32) - np.float32(32)
    codes[...] = blocks_of._fields(blocks[:, 32:96], 2, 32).reshape(codes.shape)
    third_bits = blocks_of._fields(blocks[:, :32], 1, 32).reshape(codes.shape)
    codes |= third_bits << np.uint8(2)
    scales[...] = blocks_of._half(blocks, 108) * factors
    np.multiply(scales, np.float32(-4), out=mins)


def _factors_and_minima(blocks: U8, scales: F32, mins: F32) -> None:
    factors, minima = blocks_of._scales_and_minima(blocks[:, 4:16])
    scales[...] = blocks_of._half(blocks, 0) * factors
    mins[...] = blocks_of._half(blocks, 2) * minima
    np.negative(mins, out=mins)


def _q4_k(blocks: U8, codes: U8, scales: F32, mins: F32) -> None:
    codes[...] = blocks_of._fields(blocks[:, 16:], 4, 32).reshape(codes.shape)
    _factors_and_minima(blocks, scales, mins)


def _q5_k(blocks: U8, codes: U8, scales: F32, mins: F32) -> None:
    codes[...] = blocks_of._fields(blocks[:, 48:], 4, 32).reshape(codes.shape)
    fifth_bits = blocks_of._fields(blocks[:, 16:48], 1, 32).reshape(codes.shape)
    codes |= fifth_bits << np.uint8(4)
    _factors_and_minima(blocks, scales, mins)


def _q6_k(blocks: U8, codes: U8, scales: F32, mins: F32) -> None:
    codes[...] = blocks_of._fields(blocks[:, :128], 4, 64).reshape(codes.shape)
    high_bits = blocks_of._fields(blocks[:, 128:192], 2, 32).reshape(codes.shape)
    codes |= high_bits << np.uint8(4)
    factors = blocks[:, 192:208].view(np.int8).astype(np.float32)
    scales[...] = blocks_of._half(blocks, 208) * factors
    np.multiply(scales, np.float32(-32), out=mins)


def _iq4_nl(blocks: U8, codes: U8, scales: F32, mins: F32) -> None:
    codes[...] = _LEVELS[blocks_of._fields(blocks[:, 2:], 4, 16).reshape(codes.shape)]
    scales[...] = blocks_of._half(blocks, 0)
    np.multiply(scales, np.float32(-128), out=mins)


def _iq4_xs(blocks: U8, codes: U8, scales: F32, mins: F32) -> None:
    low = blocks_of._fields(blocks[:, 4:8], 4, 1).reshape(-1, 8)
    high = blocks_of._fields(blocks[:, 2:4], 2, 1).reshape(-1, 8)
    factors = (low | high << np.uint8(4)).astype(np.float32) - np.float32(32)
    codes[...] = _LEVELS[blocks_of._fields(blocks[:, 8:], 4, 16).reshape(codes.shape)]
    scales[...] = blocks_of._half(blocks, 0) * factors
    np.multiply(scales, np.float32(-128), out=mins)


_Unpack = Callable[[U8, U8, F32, F32], None]

_UNPACK: dict[GGMLType, tuple[int, int, _Unpack]] = {
    GGMLType.Q4_0: (4, 32, _q4_0),
    GGMLType.Q4_1: (4, 32, _q4_1),
    GGMLType.Q5_0: (8, 32, _q5_0),
    GGMLType.Q5_1: (8, 32, _q5_1),
    GGMLType.Q8_0: (8, 32, _q8_0),
    GGMLType.Q2_K: (4, 16, _q2_k),
    GGMLType.Q3_K: (4, 16, _q3_k),
    GGMLType.Q4_K: (4, 32, _q4_k),
    GGMLType.Q5_K: (8, 32, _q5_k),
    GGMLType.Q6_K: (8, 16, _q6_k),
    GGMLType.IQ4_NL: (8, 32, _iq4_nl),
    GGMLType.IQ4_XS: (8, 32, _iq4_xs),
}
