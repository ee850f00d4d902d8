"""GGUF's quantised blocks as grouped weights: a code per weight, a scale and a minimum per group.

Nothing is lost: the numbers are those of `dequantize` up to the rounding of the sum above.  Types
with a zero point get the minimum -z * scale; the uneven levels of IQ4 become codes of 8 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from chairlift.errors import ModelFileError
from chairlift.kernels.grouped_weights import GroupedWeights, GroupForm
from chairlift.weights import dequantize as blocks_of
from chairlift.weights.dequantize import F32, U8
from chairlift.weights.ggml_type import GGMLType

_SLICE_ELEMENTS = 1 << 18
_LEVELS = (blocks_of._LEVELS_IQ4 + np.float32(128)).astype(np.uint8)


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


def group_form(type: GGMLType) -> GroupForm | None:
    """What a matrix of this type will be as grouped weights; None if it has no groups."""
    if type not in _UNPACK:
        return None
    bits, group_size, _ = _UNPACK[type]
    return GroupForm(
        bits=bits,
        group_size=group_size,
        has_minimum=type in _WITH_MINIMUM,
        # Types of 256 weights have a scale of scales.
        half_scales=type.block_size == 32,
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

_WITH_MINIMUM = (GGMLType.Q4_1, GGMLType.Q5_1, GGMLType.Q2_K, GGMLType.Q4_K, GGMLType.Q5_K)
