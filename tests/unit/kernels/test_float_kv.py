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

MakeKernels = Callable[[int], ComposedKernels]


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


@pytest.mark.parametrize("kv_dtype", FLOATS)
@pytest.mark.parametrize("head_dim", [64, 5])
def test_storing_rounds_to_the_nearest(
    native: NativeKernels, kv_dtype: KvDtype, head_dim: int
) -> None:
    """Bit for bit what numpy does, at every instruction set."""
    dtype = FLOAT_STORAGE[kv_dtype]
    x = hard_to_round(kv_dtype if kv_dtype != "float32" else "float16")
    count = len(x) // head_dim
    rows = x[: count * head_dim].reshape(count, 1, head_dim).repeat(2, axis=1)
    rows[:, 1] *= -1
    cache = np.zeros((count, 2, 2, 4, 2, head_dim), dtype)
    slots = np.arange(count, dtype=np.int64)[::-1].copy() * 4 + 3
    native.store_kv(rows, rows[::-1], cache, 1, slots)
    found = cache[::-1, 1, :, 3].copy()
    for part, wanted in ((0, rows), (1, rows[::-1])):
        np.testing.assert_array_equal(
            found[:, part].view(np.uint8), np.ascontiguousarray(to_stored(wanted, dtype)).view("u1")
        )
    cache[:, 1, :, 3] = 0
    assert not cache.any(), "other slots were touched"


@pytest.mark.parametrize("kv_dtype", HALVES)
def test_reading_is_exact(native: NativeKernels, kv_dtype: KvDtype) -> None:
    """A context of one token gives back its values, all numbers there are."""
    values = all_numbers(kv_dtype)
    values = values[np.isfinite(values)]
    heads, dim = 16, 64
    count = len(values) // (heads * dim)
    rows = values[: count * heads * dim].reshape(count, heads, dim)
    keys = np.zeros_like(rows)
    cache = np.zeros((count, 1, 2, 16, heads, dim), FLOAT_STORAGE[kv_dtype])
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
        cache = np.zeros((1, 1, 2, 16, 1, dim), dtype)
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
    case = PagedCase(spec, [1, 16, 59], block_size, kv_dtype=kv_dtype)
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
    case = PagedCase(spec, [33, 7], 16, kv_dtype=kv_dtype)
    queries, layout = case.whole_step()
    results = [
        kernels.paged_attention(queries, case.cache, case.LAYER, layout, spec)
        for kernels in (native, ReferenceKernels(1))
    ]
    assert relative_error(results[0], results[1]) < TOLERANCE


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("kv_dtype", HALVES)
def test_decode_chunks_and_prefill_agree_over_halves(
    make_kernels: MakeKernels, kv_dtype: KvDtype, window: int | None
) -> None:
    spec = make_spec(6, 2, 40, window)
    case = PagedCase(spec, [75, 31], 16, kv_dtype=kv_dtype)

    def attend(num_threads: int, *chunks: tuple[int, int, int]) -> FloatArray:
        queries, layout = case.step(chunks)
        kernels = make_kernels(num_threads)
        return kernels.paged_attention(queries, case.cache, case.LAYER, layout, spec)

    whole = attend(2, (0, 0, 75))
    one_by_one = np.concatenate([attend(1, (0, at, at + 1)) for at in range(75)])
    np.testing.assert_array_equal(one_by_one, whole)
    mixed = attend(3, (1, 0, 31), (0, 30, 75))
    np.testing.assert_array_equal(mixed[31:], whole[30:])


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
    cache = np.zeros((5, 2, 2, block_size, kv_heads, dim), dtype)
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
    stored: list[NDArray[Any]] = [to_stored(x, dtype).reshape(5, 7, -1) for x in (key, value)]
    np.testing.assert_array_equal(cache[:, 1, :, :7].reshape(5, 2, 7, -1), np.stack(stored, axis=1))
    assert not cache[:, 0].any() and not cache[:, 1, :, 7:].any()


def test_storing_refuses_what_does_not_fit(native: NativeKernels) -> None:
    rows = np.zeros((3, 2, 8), np.float32)
    cache = np.zeros((2, 1, 2, 4, 2, 8), np.float16)
    slots = np.arange(3, dtype=np.int64)
    bad: list[tuple[Any, Any, Any, int, Any, str]] = [
        (rows.astype(np.float64), rows, cache, 0, slots, "key must be float32"),
        (rows, rows[:2], cache, 0, slots, "value must be float32"),
        (rows[:, :, ::-1], rows, cache, 0, slots, "key must have dense heads"),
        (rows, rows, cache[..., :4], 0, slots, "does not fit 2 heads of 8"),
        (rows, rows, cache[:, :, :, ::-1], 0, slots, "kv_cache must have dense pieces"),
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
    functions = native.library.functions
    found = functions.chairlift_kv_piece_bytes(KV_TYPES[kv_dtype], 5, 3, 40)
    assert found == 2 * 5 * 3 * 40 * size
