"""Keys and values stored as floats of 16 and 32 bits: rounding, reading, attention, company."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.kernels import reference_kv_int8 as oracle
from chairlift.kernels.composition import ComposedKernels, split_heads
from chairlift.kernels.cpu.kv_tasks import KV_TYPES, QkvToCacheTask
from chairlift.kernels.cpu.ops import NativeKernels
from chairlift.kernels.interface import BatchLayout, FloatArray
from chairlift.kernels.kv_dtype import FLOAT_STORAGE, KvDtype, from_stored, to_stored
from chairlift.kernels.reference import ReferenceKernels
from unit.kernels.kernel_cases import PagedCase, exact_attention, make_spec, relative_error

FLOATS: tuple[KvDtype, ...] = ("float16", "bfloat16", "float32")
HALVES: tuple[KvDtype, ...] = ("float16", "bfloat16")
TOLERANCE = 5e-6

MakeKernels = Callable[[int, KvDtype], ComposedKernels]


def all_numbers(kv_dtype: KvDtype) -> FloatArray:
    """Every number of 16 bits that is one, as float32."""
    bits = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    numbers = from_stored(bits.view(FLOAT_STORAGE[kv_dtype]))
    return numbers[~np.isnan(numbers)]


def hard_to_round(kv_dtype: KvDtype) -> FloatArray:
    """All numbers, the middles between neighbours, what lies next to these, and extremes."""
    numbers = np.sort(all_numbers(kv_dtype)[np.isfinite(all_numbers(kv_dtype))])
    middles = ((numbers[1:].astype(np.float64) + numbers[:-1]) / 2).astype(np.float32)
    top = np.float32(65519.996 if kv_dtype == "float16" else 3.3961775e38)
    extremes = [0.0, -0.0, 1e-45, -1e-45, 1e-30, 3.4e38, -3.4e38, np.inf, -np.inf, 65520.0, top]
    below, above = np.float32(-np.inf), np.float32(np.inf)
    return np.concatenate(
        [
            numbers,
            middles,
            np.nextafter(middles, below),
            np.nextafter(middles, above),
            np.array(extremes, np.float32),
        ]
    )


def empty_layout(num_sequences: int, new_tokens: int = 1, block_size: int = 16) -> BatchLayout:
    """Sequences without a past, each in a block of its own."""
    at = np.tile(np.arange(new_tokens, dtype=np.int32), num_sequences)
    blocks = np.arange(num_sequences, dtype=np.int32)
    return BatchLayout(
        query_start=(np.arange(num_sequences + 1) * new_tokens).astype(np.int32),
        context_lens=np.full(num_sequences, new_tokens, np.int32),
        block_tables=blocks[:, None].copy(),
        positions=at,
        slot_mapping=blocks.repeat(new_tokens).astype(np.int64) * block_size + at,
    )


def stored(native: NativeKernels, kv_dtype: KvDtype) -> NativeKernels:
    """The same kernels with a cache of another type."""
    return NativeKernels(native.num_threads, kv_dtype)


def test_bfloat16_of_a_float_by_the_book() -> None:
    """Ties to even, by arithmetic in float64."""
    x = hard_to_round("bfloat16")
    x = x[np.isfinite(x) & (np.abs(x) < 3.38e38)]
    stored = from_stored(to_stored(x, np.dtype(np.uint16))).astype(np.float64)
    _, exponent = np.frexp(x.astype(np.float64))
    unit = np.ldexp(1.0, np.maximum(exponent - 8, -133))
    np.testing.assert_array_equal(stored, np.rint(x / unit) * unit)


def test_not_a_number_stays_so() -> None:
    for bits in (0x7F800001, 0x7FC00000, 0xFFFFFFFF):
        x = np.array([bits], np.uint32).view(np.float32)
        assert np.isnan(from_stored(to_stored(x, np.dtype(np.uint16)))).all()


def read_pages(
    cache: NDArray[Any], block_size: int, num_kv_heads: int, head_dim: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Keys and values [blocks, layers, block_size, K, D] of a native cache of floats.

    Pages have as many tokens as the largest power of two up to 16 that divides the block size:
    heads side by side, each of keys [D][tokens] and values [tokens][D padded to 16].
    """
    tokens = min(block_size & -block_size, 16)
    padded = -(-head_dim // 16) * 16
    pages = cache.reshape(*cache.shape[:2], -1, num_kv_heads, tokens * (head_dim + padded))
    split = tokens * head_dim
    keys = pages[..., :split].reshape(*pages.shape[:-1], head_dim, tokens)
    values = pages[..., split:].reshape(*pages.shape[:-1], tokens, padded)[..., :head_dim]
    shape = (*cache.shape[:2], block_size, num_kv_heads, head_dim)
    return (
        keys.transpose(0, 1, 2, 5, 3, 4).reshape(shape),
        values.transpose(0, 1, 2, 4, 3, 5).reshape(shape),
    )


@pytest.mark.parametrize("block_size", [4, 16, 24, 48])
@pytest.mark.parametrize("kv_dtype", FLOATS)
@pytest.mark.parametrize("head_dim", [64, 5])
def test_storing_rounds_to_the_nearest(
    native: NativeKernels, kv_dtype: KvDtype, head_dim: int, block_size: int
) -> None:
    """Bit for bit what numpy does, at every instruction set."""
    dtype = FLOAT_STORAGE[kv_dtype]
    x = hard_to_round(kv_dtype if kv_dtype != "float32" else "float16")
    count = len(x) // head_dim
    rows = x[: count * head_dim].reshape(count, 1, head_dim).repeat(2, axis=1)
    rows[:, 1] *= -1
    num_blocks = -(-count // block_size)
    block = stored(native, kv_dtype).kv_block(2, 2, head_dim, block_size)
    cache = np.zeros((num_blocks, *block.shape), dtype)
    slots = np.random.default_rng(0).permutation(num_blocks * block_size)[:count]
    native.store_kv(rows, rows[::-1], cache, 1, slots)
    for found, wanted in zip(
        read_pages(cache, block_size, 2, head_dim), (rows, rows[::-1]), strict=True
    ):
        assert not found[:, 0].any(), "another layer was touched"
        own = found[:, 1].reshape(-1, 2, head_dim)
        np.testing.assert_array_equal(
            np.ascontiguousarray(own[slots]).view("u1"), to_stored(wanted, dtype).copy().view("u1")
        )
        others = np.setdiff1d(np.arange(len(own)), slots)
        assert not own[others].any(), "other slots were touched"


@pytest.mark.parametrize("kv_dtype", HALVES)
def test_reading_is_exact(native: NativeKernels, kv_dtype: KvDtype) -> None:
    """A context of one token gives back its values, all numbers there are."""
    values = all_numbers(kv_dtype)
    values = values[np.isfinite(values)]
    heads, dim = 16, 64
    count = len(values) // (heads * dim)
    rows = values[: count * heads * dim].reshape(count, heads, dim)
    keys = np.zeros_like(rows)
    block = stored(native, kv_dtype).kv_block(1, heads, dim, 16)
    cache = np.zeros((count, *block.shape), block.dtype)
    layout = empty_layout(count)
    native.store_kv(keys, rows, cache, 0, layout.slot_mapping)
    result = native.paged_attention(keys, cache, 0, layout, make_spec(heads, heads, dim))
    np.testing.assert_array_equal(result, rows)


@pytest.mark.parametrize("kv_dtype", HALVES)
def test_keys_are_read_exactly(native: NativeKernels, kv_dtype: KvDtype) -> None:
    """Two keys of opposite sign: the score's sigmoid shows every bit of a key."""
    rng = np.random.default_rng(0)
    dtype = FLOAT_STORAGE[kv_dtype]
    for dim in (64, 20):
        key = from_stored(to_stored(rng.standard_normal(dim).astype(np.float32), dtype))
        rows = np.stack([key, -key, key])[:, None]
        values = np.array([1.0, 0.0, 0.0], np.float32).repeat(dim).reshape(3, 1, dim)
        cache = np.zeros((1, *stored(native, kv_dtype).kv_block(1, 1, dim, 16).shape), dtype)
        layout = empty_layout(1, 3)
        native.store_kv(rows, values, cache, 0, layout.slot_mapping)
        spec = make_spec(1, 1, dim)
        for i in range(dim):
            query = np.zeros((3, 1, dim), np.float32)
            query[:, :, i] = 1.0 / (spec.scale * key[i])  # a score of one, minus one, one
            result = native.paged_attention(query, cache, 0, layout, spec)
            e = np.exp([1.0, -1.0, 1.0])
            np.testing.assert_allclose(result[2, 0], e[0] / e.sum(), rtol=1e-6)


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("block_size", [4, 16, 24])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [(9, 3, 64), (4, 1, 40), (7, 1, 128), (2, 1, 256), (3, 3, 5)],
)
@pytest.mark.parametrize("kv_dtype", HALVES)
def test_attention_over_halves(
    native: NativeKernels,
    kv_dtype: KvDtype,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    window: int | None,
) -> None:
    """Right, and the same bits as over float32 that holds the same numbers."""
    spec = make_spec(num_heads, num_kv_heads, head_dim, window)
    case = PagedCase(stored(native, kv_dtype), spec, [1, 16, 59, 130], block_size)
    queries, layout = case.whole_step()
    result = native.paged_attention(queries, case.cache, case.LAYER, layout, spec)
    arrays = zip(case.queries, case.keys, case.values, strict=True)
    exact = np.concatenate([exact_attention(spec, *each) for each in arrays])
    assert relative_error(result, exact) < TOLERANCE
    wide = from_stored(case.cache)
    np.testing.assert_array_equal(
        native.paged_attention(queries, wide, case.LAYER, layout, spec), result
    )


@pytest.mark.parametrize("kv_dtype", HALVES)
def test_reference_and_native_agree(native: NativeKernels, kv_dtype: KvDtype) -> None:
    spec = make_spec(6, 2, 24)
    results = []
    for kernels in (stored(native, kv_dtype), ReferenceKernels(1, kv_dtype)):
        case = PagedCase(kernels, spec, [33, 70], 16)
        queries, layout = case.whole_step()
        results.append(kernels.paged_attention(queries, case.cache, case.LAYER, layout, spec))
    assert relative_error(results[0], results[1]) < TOLERANCE


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("block_size", [8, 16])
@pytest.mark.parametrize("kv_dtype", HALVES)
def test_decode_chunks_and_prefill_agree_over_halves(
    make_kernels: MakeKernels, kv_dtype: KvDtype, block_size: int, window: int | None
) -> None:
    spec = make_spec(6, 2, 40, window)
    kernels = {threads: make_kernels(threads, kv_dtype) for threads in (1, 2, 3)}
    case = PagedCase(kernels[1], spec, [150, 31], block_size)

    def attend(num_threads: int, *chunks: tuple[int, int, int]) -> FloatArray:
        queries, layout = case.step(chunks)
        return kernels[num_threads].paged_attention(queries, case.cache, case.LAYER, layout, spec)

    whole = attend(2, (0, 0, 150))
    one_by_one = np.concatenate([attend(1, (0, at, at + 1)) for at in range(150)])
    np.testing.assert_array_equal(one_by_one, whole)
    mixed = attend(3, (1, 0, 31), (0, 60, 150))
    np.testing.assert_array_equal(mixed[31:], whole[60:])


@pytest.mark.parametrize("num_threads", [2, 5])
@pytest.mark.parametrize("kv_dtype", FLOATS)
def test_a_long_context_is_split_and_merged_to_the_same_bits(
    native: NativeKernels, kv_dtype: KvDtype, num_threads: int
) -> None:
    """One sequence on several threads, with its last group not full; one thread splits nothing."""
    for window, block_size in ((None, 16), (700, 16), (None, 12)):
        spec = make_spec(6, 2, 48, window)
        case = PagedCase(NativeKernels(1, kv_dtype), spec, [1300], block_size)
        queries, layout = case.step([(0, 1297, 1300)])
        alone = case.kernels.paged_attention(queries, case.cache, case.LAYER, layout, spec)
        several = NativeKernels(num_threads, kv_dtype)
        shared = several.paged_attention(queries, case.cache, case.LAYER, layout, spec)
        np.testing.assert_array_equal(shared, alone)


@pytest.mark.parametrize("kv_dtype", HALVES)
def test_what_is_no_number_stays_out_of_rows_that_do_not_see_it(
    native: NativeKernels, kv_dtype: KvDtype
) -> None:
    """An overflow in a later token of the same page, or in another sequence's."""
    spec = make_spec(6, 2, 32)
    case = PagedCase(stored(native, kv_dtype), spec, [40, 90], 16)
    queries, layout = case.whole_step()
    clean = native.paged_attention(queries, case.cache, case.LAYER, layout, spec)
    case.values[0][20] = case.keys[0][20] = np.inf
    case.values[1][70] = np.nan
    case.store()
    result = native.paged_attention(queries, case.cache, case.LAYER, layout, spec)
    np.testing.assert_array_equal(result[:20], clean[:20])
    np.testing.assert_array_equal(result[40:110], clean[40:110])
    assert not np.isfinite(result[20:40]).all() and not np.isfinite(result[110:]).any()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("with_norms", [False, True])
@pytest.mark.parametrize("kv_dtype", FLOATS)
def test_projections_to_queries_and_cache(
    native: NativeKernels, kv_dtype: KvDtype, with_norms: bool, interleaved: bool
) -> None:
    """Norm, rotation and rounding bit for bit; dimensions past the rotated ones pass."""
    rng = np.random.default_rng(0)
    dtype = FLOAT_STORAGE[kv_dtype]
    heads, kv_heads, dim, rope_dim, block_size = 6, 2, 48, 40, 24
    layout = empty_layout(5, 7, block_size)
    spec = make_spec(heads, kv_heads, dim)
    qkv = rng.standard_normal((35, (heads + 2 * kv_heads) * dim), np.float32)
    norms = [rng.standard_normal(dim, np.float32) for _ in range(2)]
    inv_freq = [0.5**i for i in range(rope_dim // 2)]
    rope = native.rope_table(inv_freq, max_position=16, scaling=1.0)
    block = stored(native, kv_dtype).kv_block(2, kv_heads, dim, block_size)
    cache = np.zeros((5, *block.shape), dtype)
    queries = np.empty((35, heads, dim), np.float32)
    task = QkvToCacheTask(
        struct_size=ctypes.sizeof(QkvToCacheTask),
        qkv=qkv.ctypes.data,
        q_norm=norms[0].ctypes.data if with_norms else None,
        k_norm=norms[1].ctypes.data if with_norms else None,
        cos=rope.cos.ctypes.data,
        sin=rope.sin.ctypes.data,
        positions=layout.positions.ctypes.data,
        slots=layout.slot_mapping.ctypes.data,
        kv_cache=cache[:, 1].ctypes.data,
        query=queries.ctypes.data,
        block_stride=cache.strides[0],
        num_blocks=5,
        num_tokens=35,
        max_position=16,
        block_size=block_size,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        rope_dim=rope_dim,
        rope_interleaved=interleaved,
        norm_eps=spec.rms_norm_eps,
        kv_type=KV_TYPES[kv_dtype],
    )
    functions = native.library.functions
    native.library.check(functions.chairlift_store_qkv(native.pool, ctypes.byref(task)))
    query, key, value = split_heads(qkv, spec)
    if with_norms:
        query = oracle.normalise_heads(query, norms[0], spec.rms_norm_eps)
        key = oracle.normalise_heads(key, norms[1], spec.rms_norm_eps)
    query = oracle.rotate_heads(query, rope, layout, interleaved)
    key = oracle.rotate_heads(key, rope, layout, interleaved)
    np.testing.assert_array_equal(queries, query)
    for found, wanted in zip(
        read_pages(cache, block_size, kv_heads, dim), (key, value), strict=True
    ):
        own = found[:, 1, :7].reshape(35, kv_heads, dim)
        np.testing.assert_array_equal(own, to_stored(wanted, dtype))
        assert not found[:, 0].any() and not found[:, 1, 7:].any()


def test_storing_refuses_what_does_not_fit(native: NativeKernels) -> None:
    rows = np.zeros((3, 2, 8), np.float32)
    cache = np.zeros((2, *NativeKernels(1, "float16").kv_block(1, 2, 8, 4).shape), np.float16)
    slots = np.arange(3, dtype=np.int64)
    bad: list[tuple[Any, Any, Any, int, Any, str]] = [
        (rows.astype(np.float64), rows, cache, 0, slots, "key must be float32"),
        (rows, rows[:2], cache, 0, slots, "value must be float32"),
        (rows[:, :, ::-1], rows, cache, 0, slots, "key must have dense heads"),
        (rows, rows, cache[..., :-4], 0, slots, "does not fit 2 heads of 8"),
        (rows, rows, cache[:, :, ::-1], 0, slots, "kv_cache must have dense pieces"),
        (rows, rows, cache.astype(np.int8), 0, slots, "float32, float16 or bfloat16, not int8"),
        (rows, rows, cache, 1, slots, "layer 1 is not one of the cache's 1"),
        (rows, rows, cache, 0, slots[:2], "slot_mapping must have shape"),
        (rows, rows, cache, 0, slots + 6, "slot 8 is not in the cache"),
        (rows, rows, cache, 0, slots - 1, "slot -1 is not in the cache"),
    ]
    for key, value, where, layer, at, message in bad:
        with pytest.raises(ValueError, match=message):
            native.store_kv(key, value, where, layer, at)


def test_an_unknown_type_of_cache(native: NativeKernels) -> None:
    functions = native.library.functions
    for kind in (0, 5, -1):
        assert functions.chairlift_kv_piece_bytes(kind, 16, 2, 64) == 0
        assert "unknown type of cache" in native.library.last_error


@pytest.mark.parametrize(("kv_dtype", "size"), [("float16", 2), ("bfloat16", 2), ("float32", 4)])
def test_pieces_are_as_large_as_their_numbers(
    native: NativeKernels, kv_dtype: KvDtype, size: int
) -> None:
    """And as little more as padding values to whole vectors takes."""
    kernels = stored(native, kv_dtype)
    assert kernels.kv_block(7, 3, 64, 16).token_bytes == 7 * 2 * 3 * 64 * size
    assert kernels.kv_block(7, 3, 40, 5).num_bytes == 5 * 7 * 3 * (40 + 48) * size
