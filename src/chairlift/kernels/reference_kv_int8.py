"""The quantised cache in numpy, integer for integer: the oracle of the native kernels.

    head of a page of 16 tokens | key codes u8 [D/4][16][4] | key scales f32 [16]
                                | value codes s8 [4][D][4]  | value scales f32 [16]

Codes, scales and the dots of bytes are equal to the bit on every instruction set; exponentials, and
so the last bit of a 16-bit weight, may differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.interface import AttentionSpec, BatchLayout, FloatArray, RopeTable

PAGE_TOKENS = 16
GROUP_TOKENS = 64
LARGEST_WEIGHT = np.float32(65535)
SMALLEST_MAGNITUDE = np.float32(1e-30)
LOG2_E = np.float32(1.44269504)

ByteArray = NDArray[np.uint8]
CodeArray = NDArray[np.int8]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredContext:
    """One sequence's keys and values, read back from a cache."""

    key_codes: CodeArray
    """[K, C, D]."""
    key_scales: FloatArray
    """[K, C]."""
    value_codes: CodeArray
    value_scales: FloatArray

    @property
    def keys(self) -> FloatArray:
        return self.key_codes * self.key_scales[:, :, None]

    @property
    def values(self) -> FloatArray:
        return self.value_codes * self.value_scales[:, :, None]


def kv_piece_bytes(block_size: int, num_kv_heads: int, head_dim: int) -> int:
    """Bytes of one block and layer."""
    return block_size // PAGE_TOKENS * num_kv_heads * (32 * head_dim + 128)


def quantise_heads(x: FloatArray) -> tuple[CodeArray, FloatArray]:
    """Codes from -127 to 127 of [..., D] and one scale for each head [...]."""
    largest = np.abs(x).max(axis=-1)
    is_zero = largest < SMALLEST_MAGNITUDE
    inverse = np.float32(127) / np.where(is_zero, np.float32(1), largest)
    codes = np.rint(x * inverse[..., None])
    codes[is_zero] = 0
    scales = np.where(is_zero, np.float32(0), largest / np.float32(127))
    return codes.astype(np.int8), scales


def normalise_heads(x: FloatArray, weight: FloatArray, eps: float) -> FloatArray:
    """RMS norm of [..., D], summed in sixteen lanes and then by halves, as the kernels do."""
    squares = (x * x).reshape(*x.shape[:-1], -1, 16)
    lanes: FloatArray = np.zeros_like(squares[..., 0, :])
    for step in range(squares.shape[-2]):
        lanes = lanes + squares[..., step, :]
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    mean = lanes / np.float32(x.shape[-1])
    normed: FloatArray = x / np.sqrt(mean + np.float32(eps)) * weight
    return normed


def rotate_heads(
    x: FloatArray, rope: RopeTable, batch: BatchLayout, interleaved: bool
) -> FloatArray:
    """(a, b) -> (a cos - b sin, b cos + a sin) of [T, heads, D]."""
    cos, sin = rope.cos[batch.positions][:, None], rope.sin[batch.positions][:, None]
    half = cos.shape[-1]
    if interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    a, b = x[..., first], x[..., second]
    rotated = x.copy()
    rotated[..., first] = a * cos - b * sin
    rotated[..., second] = b * cos + a * sin
    return rotated


def store_qkv(
    qkv: FloatArray,
    rope: RopeTable,
    kv_cache: ByteArray,
    layer: int,
    batch: BatchLayout,
    spec: AttentionSpec,
    block_size: int,
    q_norm: FloatArray | None = None,
    k_norm: FloatArray | None = None,
) -> tuple[CodeArray, FloatArray]:
    """Store keys and values of [T, (N + 2K) D]; the queries' codes [T, N, D] and scales [T, N]."""
    heads = qkv.reshape(len(qkv), -1, spec.head_dim)
    query, key, value = np.split(
        heads, [spec.num_heads, spec.num_heads + spec.num_kv_heads], axis=1
    )
    if q_norm is not None:
        query = normalise_heads(query, q_norm, spec.rms_norm_eps)
    if k_norm is not None:
        key = normalise_heads(key, k_norm, spec.rms_norm_eps)
    query = rotate_heads(query, rope, batch, spec.rope_interleaved)
    key = rotate_heads(key, rope, batch, spec.rope_interleaved)
    for stored, is_key in ((key, True), (value, False)):
        codes, scales = quantise_heads(stored)
        for row, slot in enumerate(batch.slot_mapping.tolist()):
            block, offset = divmod(slot, block_size)
            for head in range(spec.num_kv_heads):
                view = head_view(kv_cache[block, layer], offset // PAGE_TOKENS, head, spec)
                store_token(view, offset % PAGE_TOKENS, codes[row, head], scales[row, head], is_key)
    return quantise_heads(query)


def head_view(piece: ByteArray, page: int, head: int, spec: AttentionSpec) -> ByteArray:
    """The bytes of one key/value head of one page."""
    size = 32 * spec.head_dim + 128
    start = (page * spec.num_kv_heads + head) * size
    return piece[start : start + size]


def store_token(
    view: ByteArray, token: int, codes: CodeArray, scale: np.float32, is_key: bool
) -> None:
    """Write one token's codes and scale into its head of a page."""
    half = len(view) // 2
    dim = len(codes)
    if is_key:
        view[: 16 * dim].reshape(dim // 4, 16, 4)[:, token] = (
            (codes.astype(np.int16) + 128).astype(np.uint8).reshape(-1, 4)
        )
        view[16 * dim : half].view(np.float32)[token] = scale
    else:
        values = view[half : half + 16 * dim].view(np.int8).reshape(4, dim, 4)
        values[token // 4, :, token % 4] = codes
        view[half + 16 * dim :].view(np.float32)[token] = scale


def read_context(
    kv_cache: ByteArray,
    layer: int,
    block_table: NDArray[np.int32],
    context_len: int,
    block_size: int,
    spec: AttentionSpec,
) -> StoredContext:
    """One sequence's keys and values."""
    dim, heads = spec.head_dim, spec.num_kv_heads
    num_blocks = -(-context_len // block_size)
    pages = kv_cache[block_table[:num_blocks], layer].reshape(-1, heads, 32 * dim + 128)
    half = 16 * dim + 64
    keys = pages[:, :, : 16 * dim].reshape(-1, heads, dim // 4, 16, 4)
    values = pages[:, :, half : half + 16 * dim].reshape(-1, heads, 4, dim, 4)

    def scales(start: int) -> FloatArray:
        found = np.ascontiguousarray(pages[:, :, start : start + 64]).view(np.float32)
        return found.transpose(1, 0, 2).reshape(heads, -1)[:, :context_len]

    key_codes = keys.transpose(1, 0, 3, 2, 4).reshape(heads, -1, dim)[:, :context_len]
    value_codes = values.transpose(1, 0, 2, 4, 3).reshape(heads, -1, dim)[:, :context_len]
    return StoredContext(
        key_codes=(key_codes.astype(np.int16) - 128).astype(np.int8),
        key_scales=scales(16 * dim),
        value_codes=value_codes.view(np.int8),
        value_scales=scales(half + 16 * dim),
    )


def attend(
    codes: CodeArray,
    scales: FloatArray,
    context: StoredContext,
    begin: int,
    end: int,
    scale: float,
) -> FloatArray:
    """One row's [N, D] queries over positions [begin, end); [N, D].

    Groups of 64 positions, each with weights of 16 bits relative to its own largest, merged in
    order.
    """
    num_kv_heads, _, dim = context.key_codes.shape
    group = len(codes) // num_kv_heads
    query = codes.reshape(num_kv_heads, group, dim).astype(np.int64)
    factor = scales.reshape(num_kv_heads, group, 1) * (np.float32(scale) * LOG2_E)
    largest: FloatArray = np.full((num_kv_heads, group), -np.inf, np.float32)
    total: FloatArray = np.zeros((num_kv_heads, group), np.float32)
    sums: FloatArray = np.zeros((num_kv_heads, group, dim), np.float32)
    first_group = begin // GROUP_TOKENS * GROUP_TOKENS
    for start in range(first_group, end, GROUP_TOKENS):
        at = slice(max(begin, start), min(end, start + GROUP_TOKENS))
        dots = query @ context.key_codes[:, at].astype(np.int64).swapaxes(1, 2)
        scores = dots.astype(np.float32) * context.key_scales[:, None, at] * factor
        own_largest = scores.max(axis=-1)
        weights = np.exp2(scores - own_largest[..., None])
        own_total = weights.sum(axis=-1)
        weights = weights * context.value_scales[:, None, at]
        most = weights.max(axis=-1)
        inverse = LARGEST_WEIGHT / np.where(most > 0, most, np.float32(1))
        integers = np.rint(weights * inverse[..., None]).astype(np.int64)
        own_sums = (integers @ context.value_codes[:, at].astype(np.int64)).astype(np.float32)
        after = np.maximum(largest, own_largest)
        keep, add = np.exp2(largest - after), np.exp2(own_largest - after)
        total = total * keep + own_total * add
        unit = (add * (most / LARGEST_WEIGHT))[..., None]
        sums = sums * keep[..., None] + own_sums * unit
        largest = after
    result: FloatArray = (sums / total[..., None]).reshape(len(codes), dim)
    return result


def paged_attention(
    codes: CodeArray,
    scales: FloatArray,
    kv_cache: ByteArray,
    layer: int,
    batch: BatchLayout,
    spec: AttentionSpec,
    block_size: int,
) -> FloatArray:
    """Causal attention of quantised queries [T, N, D]; [T, N, D]."""
    result = np.empty(codes.shape, np.float32)
    for sequence, context_len in enumerate(batch.context_lens.tolist()):
        table = batch.block_tables[sequence]
        context = read_context(kv_cache, layer, table, context_len, block_size, spec)
        first, last = batch.query_start[sequence : sequence + 2].tolist()
        for row in range(first, last):
            end = context_len - (last - row) + 1
            begin = 0 if spec.sliding_window is None else max(0, end - spec.sliding_window)
            result[row] = attend(codes[row], scales[row], context, begin, end, spec.scale)
    return result
