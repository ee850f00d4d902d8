"""Unpacks GGUF block types into float32 with numpy.

One function per block type fills `out` [num_blocks, block_size] from `blocks` [num_blocks,
block_bytes]; each draws its block first.  All work is done in slices that fit a core's cache, so
temporary memory stays below a few MiB whatever the tensor's size.  The order of the float
operations is that of the format's definition, so the bits agree with other readers.

Legend: d, m = float16 scale and minimum; q = packed integers, low bits first; K types hold 256
elements in sub-blocks that have small integer scales of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from chairlift.errors import ModelFileError
from chairlift.weights.ggml_type import GGMLType

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

_SLICE_ELEMENTS = 1 << 16
_LEVELS_IQ4 = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)


def dequantize(raw: U8, type: GGMLType, shape: tuple[int, ...]) -> F32:
    """The tensor whose bytes are `raw` [num_bytes], as a new float32 array of `shape`.

    Raises ModelFileError when the number of bytes does not belong to `shape`.
    """
    num_blocks, rest = divmod(math.prod(shape), type.block_size)
    if rest or raw.size != num_blocks * type.block_bytes:
        raise ModelFileError(f"{raw.size} bytes are not a {type.name} tensor of shape {shape}")
    blocks = np.ascontiguousarray(raw).reshape(num_blocks, type.block_bytes)
    out = np.empty((num_blocks, type.block_size), np.float32)
    unpack = _UNPACK[type]
    step = _SLICE_ELEMENTS // type.block_size
    # A scale may be infinite or NaN in a damaged file; that is no reason for a warning.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, num_blocks, step):
            unpack(blocks[start : start + step], out[start : start + step])
    return out.reshape(shape)


def _half(blocks: U8, start: int) -> F32:
    """The float16 at byte `start` of every block, as float32 [num_blocks, 1]."""
    return blocks[:, start : start + 2].view("<f2").astype(np.float32)


def _fields(packed: U8, bits: int, run: int) -> U8:
    """Split bytes into `bits`-wide fields: [n, k * run] -> [n, k, 8 / bits, run].

    A run of `run` bytes holds 8 / bits times `run` elements: first everybody's lowest field, then
    everybody's next one.
    """
    num_fields = 8 // bits
    packed = packed.reshape(len(packed), -1, run)
    out = np.empty((*packed.shape[:2], num_fields, run), np.uint8)
    for index in range(num_fields):
        np.right_shift(packed, np.uint8(index * bits), out=out[:, :, index])
    out &= np.uint8((1 << bits) - 1)
    return out


def _f32(blocks: U8, out: F32) -> None:
    """One little-endian float32 per block."""
    out[...] = blocks.view("<f4")


def _f16(blocks: U8, out: F32) -> None:
    """One little-endian float16 per block."""
    out[...] = blocks.view("<f2")


def _bf16(blocks: U8, out: F32) -> None:
    """The upper half of one little-endian float32 per block."""
    np.left_shift(blocks.view("<u2"), np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)


def _q4_0(blocks: U8, out: F32) -> None:
    """w = d (q - 8)

    byte  0    2                18
          | d  | q: 16 x 4+4 bits |     low nibbles = elements 0-15, high = 16-31
    """
    out[...] = _fields(blocks[:, 2:], 4, 16).reshape(out.shape)
    out -= np.float32(8)
    np.multiply(_half(blocks, 0), out, out=out)


def _q4_1(blocks: U8, out: F32) -> None:
    """w = d q + m

    byte  0    2    4                20
          | d  | m  | q: 16 x 4+4 bits |     low nibbles = elements 0-15, high = 16-31
    """
    out[...] = _fields(blocks[:, 4:], 4, 16).reshape(out.shape)
    np.multiply(_half(blocks, 0), out, out=out)
    out += _half(blocks, 2)


def _with_fifth_bits(nibbles: U8, fifth: U8) -> U8:
    """q [n, 32] from 4-bit fields [n, 16] bytes and a 32-bit mask of fifth bits [n, 4] bytes."""
    q = _fields(nibbles, 4, 16).reshape(-1, 32)
    q |= np.unpackbits(fifth, axis=1, bitorder="little") << np.uint8(4)
    return q


def _q5_0(blocks: U8, out: F32) -> None:
    """w = d (q - 16)

    byte  0    2             6                22
          | d  | 32 high bits | q: 16 x 4+4 bits |     bit i of the mask is bit 4 of element i
    """
    out[...] = _with_fifth_bits(blocks[:, 6:], blocks[:, 2:6])
    out -= np.float32(16)
    np.multiply(_half(blocks, 0), out, out=out)


def _q5_1(blocks: U8, out: F32) -> None:
    """w = d q + m

    byte  0    2    4             8                24
          | d  | m  | 32 high bits | q: 16 x 4+4 bits |
    """
    out[...] = _with_fifth_bits(blocks[:, 8:], blocks[:, 4:8])
    np.multiply(_half(blocks, 0), out, out=out)
    out += _half(blocks, 2)


def _q8_0(blocks: U8, out: F32) -> None:
    """w = d q

    byte  0    2            34
          | d  | q: 32 x int8 |
    """
    out[...] = blocks[:, 2:].view(np.int8)
    out *= _half(blocks, 0)


def _q2_k(blocks: U8, out: F32) -> None:
    """w = (d s) q - (dmin t), with s and t per 16 elements

    byte  0                  16               80   82     84
          | 16 x (s lo, t hi) | q: 64 x 2 bits | d  | dmin |
    q: two runs of 32 bytes, each 4 fields x 32 elements.
    """
    scales = blocks[:, :16]
    scale = _half(blocks, 80) * (scales & np.uint8(15)).astype(np.float32)
    minimum = _half(blocks, 82) * (scales >> np.uint8(4)).astype(np.float32)
    w = out.reshape(-1, 16, 16)
    w[...] = _fields(blocks[:, 16:80], 2, 32).reshape(w.shape)
    np.multiply(scale[:, :, None], w, out=w)
    w -= minimum[:, :, None]


def _q3_k(blocks: U8, out: F32) -> None:
    """w = d (s - 32) (q - 4 if the high bit is clear, else q), with s per 16 elements

    byte  0            32                96               108  110
          | h: 32 x 8b  | q: 64 x 2 bits  | s: 16 x 6 bits | d  |
    h: field k of byte i is the high bit of element 32 k + i.
    s: bytes 0-7 hold the low 4 bits (low nibbles first), bytes 8-11 the high 2 (4 fields x 4).
    """
    low = _fields(blocks[:, 96:104], 4, 8).reshape(-1, 16)
    high = _fields(blocks[:, 104:108], 2, 4).reshape(-1, 16)
    scales = (low | high << np.uint8(4)).astype(np.float32) - np.float32(32)
    w = out.reshape(-1, 16, 16)
    q = _fields(blocks[:, 32:96], 2, 32).reshape(w.shape)
    q |= _fields(blocks[:, :32], 1, 32).reshape(w.shape) << np.uint8(2)
    w[...] = q
    w -= np.float32(4)
    np.multiply((_half(blocks, 108) * scales)[:, :, None], w, out=w)


def _scales_and_minima(packed: U8) -> tuple[F32, F32]:
    """The 8 scales and 8 minima (6 bits each) of a Q4_K or Q5_K block, from its 12 bytes.

    bytes 0-3   s0-s3 in bits 0-5, bits 4-5 of s4-s7 in bits 6-7
    bytes 4-7   t0-t3 in bits 0-5, bits 4-5 of t4-t7 in bits 6-7
    bytes 8-11  bits 0-3 of s4-s7 in the low nibbles, of t4-t7 in the high ones
    """
    first, second, nibbles = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    scales = np.empty((len(packed), 8), np.float32)
    minima = np.empty((len(packed), 8), np.float32)
    scales[:, :4] = first & np.uint8(0x3F)
    minima[:, :4] = second & np.uint8(0x3F)
    scales[:, 4:] = (nibbles & np.uint8(0x0F)) | ((first >> np.uint8(2)) & np.uint8(0x30))
    minima[:, 4:] = (nibbles >> np.uint8(4)) | ((second >> np.uint8(2)) & np.uint8(0x30))
    return scales, minima


def _q4_k(blocks: U8, out: F32) -> None:
    """w = (d s) q - (dmin t), with s and t per 32 elements

    byte  0    2      4               16                144
          | d  | dmin | s, t: 12 bytes | q: 128 x 4+4 bits |
    q: four runs of 32 bytes, each 2 fields x 32 elements.
    """
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    w = out.reshape(-1, 8, 32)
    w[...] = _fields(blocks[:, 16:], 4, 32).reshape(w.shape)
    np.multiply((_half(blocks, 0) * scales)[:, :, None], w, out=w)
    w -= (_half(blocks, 2) * minima)[:, :, None]


def _q5_k(blocks: U8, out: F32) -> None:
    """w = (d s) q - (dmin t), with s and t per 32 elements

    byte  0    2      4               16           48                176
          | d  | dmin | s, t: 12 bytes | h: 32 x 8b | q: 128 x 4+4 bits |
    h: field k of byte i is bit 4 of element 32 k + i.
    """
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    w = out.reshape(-1, 8, 32)
    q = _fields(blocks[:, 48:], 4, 32).reshape(w.shape)
    q |= _fields(blocks[:, 16:48], 1, 32).reshape(w.shape) << np.uint8(4)
    w[...] = q
    np.multiply((_half(blocks, 0) * scales)[:, :, None], w, out=w)
    w -= (_half(blocks, 2) * minima)[:, :, None]


def _q6_k(blocks: U8, out: F32) -> None:
    """w = (d s) (q - 32), with s per 16 elements

    byte  0                  128              192            208  210
          | q: 128 x 4+4 bits | h: 64 x 2 bits | s: 16 x int8 | d  |
    q: two runs of 64 bytes, each 2 fields x 64 elements; h: two runs of 32, each 4 fields x 32.
    """
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    w = out.reshape(-1, 16, 16)
    q = _fields(blocks[:, :128], 4, 64).reshape(w.shape)
    q |= _fields(blocks[:, 128:192], 2, 32).reshape(w.shape) << np.uint8(4)
    w[...] = q
    w -= np.float32(32)
    np.multiply(scales[:, :, None], w, out=w)


def _iq4_nl(blocks: U8, out: F32) -> None:
    """w = d level[q], with 16 uneven levels; the block is laid out like Q4_0."""
    q = _fields(blocks[:, 2:], 4, 16).reshape(out.shape)
    np.take(_LEVELS_IQ4, q, out=out, mode="clip")
    np.multiply(_half(blocks, 0), out, out=out)


def _iq4_xs(blocks: U8, out: F32) -> None:
    """w = d (s - 32) level[q], with s per 32 elements

    byte  0    2               4              8                136
          | d  | s: high 2 bits | s: low 4 bits | q: 128 x 4+4 bits |
    q: eight runs of 16 bytes, each 2 fields x 16 elements.
    """
    low = _fields(blocks[:, 4:8], 4, 1).reshape(-1, 8)
    high = _fields(blocks[:, 2:4], 2, 1).reshape(-1, 8)
    scales = (low | high << np.uint8(4)).astype(np.float32) - np.float32(32)
    w = out.reshape(-1, 8, 32)
    np.take(_LEVELS_IQ4, _fields(blocks[:, 8:], 4, 16).reshape(w.shape), out=w, mode="clip")
    np.multiply((_half(blocks, 0) * scales)[:, :, None], w, out=w)


_UNPACK: dict[GGMLType, Callable[[U8, F32], None]] = {
    GGMLType.F32: _f32,
    GGMLType.F16: _f16,
    GGMLType.BF16: _bf16,
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q2_K: _q2_k,
    GGMLType.Q3_K: _q3_k,
    GGMLType.Q4_K: _q4_k,
    GGMLType.Q5_K: _q5_k,
    GGMLType.Q6_K: _q6_k,
    GGMLType.IQ4_NL: _iq4_nl,
    GGMLType.IQ4_XS: _iq4_xs,
}
