"""Memory used to its last byte, and numbers that are none.

All arrays end where a page without access begins, caches hold no block more than is used, tables no
column more, and the last token is the last of the cache: a kernel that reads or writes one element
too far ends the process.  What is not finite spoils what depends on it and nothing else.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from chairlift.kernels.cpu.int8 import Int8Kernels
from chairlift.kernels.cpu.kv_tasks import KV_TYPES, AttentionTask
from chairlift.kernels.cpu.linear_q8 import GROUP_TAIL_BYTES, Q8Ops
from chairlift.kernels.cpu.ops import NativeKernels
from chairlift.kernels.grouped_weights import GroupedWeights
from chairlift.kernels.interface import BatchLayout, FloatArray, RopeTable
from chairlift.kernels.kv_dtype import (
    FLOAT_STORAGE,
    KvDtype,
    from_stored,
    kv_dtype_of,
    to_stored,
)
from chairlift.kernels.reference_int8 import linear_q8, requantise_per_channel
from tight_memory import replace_memory, tight, tight_empty
from unit.kernels.candidate_cases import Head, all_rows, hidden_states, make_query
from unit.kernels.kernel_cases import PagedCase, exact_attention, make_spec, relative_error
from unit.kernels.test_attention_int8 import ORACLE_TOLERANCE, Int8Case, make_ops
from unit.kernels.test_linear_q8 import FORMS, random, random_weights

FLOATS: tuple[KvDtype, ...] = ("float16", "bfloat16", "float32")
TOLERANCE = 5e-6
NOT_FINITE = (np.nan, np.inf, -np.inf)

Case = TypeVar("Case", PagedCase, Int8Case)

has_guarded_pages = pytest.mark.skipif(
    sys.platform == "win32", reason="pages are closed with a call of Unix systems"
)


@pytest.fixture
def tight_native(isa: str, monkeypatch: pytest.MonkeyPatch) -> NativeKernels:
    """The native backend, allocating memory that ends at closed pages."""
    replace_memory(monkeypatch.setattr)
    return NativeKernels(2)


@has_guarded_pages
def test_the_byte_after_the_last_one_is_out_of_reach() -> None:
    """A system call refuses it; the process would end."""
    write = ctypes.CDLL(None, use_errno=True).write
    write.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
    for count in (1, 3 * mmap.PAGESIZE // 4, mmap.PAGESIZE):
        array = tight(np.arange(count, dtype=np.float32))
        assert array[-1] == count - 1 and array.flags.c_contiguous
        with open("/dev/zero", "wb") as sink, open("/dev/urandom", "rb") as source:
            assert write(sink.fileno(), array.ctypes.data, array.nbytes) == array.nbytes
            libc = ctypes.CDLL(None, use_errno=True)
            end = ctypes.c_void_p(array.ctypes.data + array.nbytes)
            assert libc.read(source.fileno(), end, ctypes.c_size_t(1)) == -1


# -- linear layers -------------------------------------------------------------------------------


@has_guarded_pages
@pytest.mark.parametrize("num_rows", [1, 3, 17])
@pytest.mark.parametrize("shape", [(1, 1), (32, 17), (33, 8), (95, 40)], ids=str)
@pytest.mark.parametrize("form", FLOATS)
def test_linear_floats_stay_inside(
    tight_native: NativeKernels, form: KvDtype, shape: tuple[int, int], num_rows: int
) -> None:
    """Weights of each form, and rows of them read back."""
    matrix = to_stored(random(*shape), FLOAT_STORAGE[form])
    bias, x = random(shape[0], seed=1), random(num_rows, shape[1], seed=2)
    linear = tight_native.prepare_linear([tight(matrix)], [tight(bias)])
    result = tight_native.linear(tight(x), linear)
    exact = x.astype(np.float64) @ from_stored(matrix).T + bias
    assert relative_error(result, exact) < TOLERANCE
    ids = tight(np.array([shape[0] - 1, 0], np.int32))
    np.testing.assert_array_equal(tight_native.embed(linear, ids), from_stored(matrix)[ids])


def tight_weights(weights: GroupedWeights) -> GroupedWeights:
    return replace(
        weights, codes=tight(weights.codes), scales=tight(weights.scales), mins=tight(weights.mins)
    )


@has_guarded_pages
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(("bits", "group_size", "has_zero_point"), FORMS)
def test_linear_bytes_stay_inside(
    tight_native: NativeKernels,
    bits: int,
    group_size: int,
    has_zero_point: bool,
    per_channel: bool,
) -> None:
    ops = Q8Ops(tight_native.library, tight_native.pool)
    for shape in ((1, 1), (50, 64), (193, 33)):
        weights = tight_weights(random_weights(shape, bits, group_size, has_zero_point))
        bias = random(shape[0], seed=1)
        linear = ops.pack(weights, tight(bias), per_channel=per_channel)
        ids = np.arange(shape[0], dtype=np.int32)[::-1]
        known = requantise_per_channel(weights) if per_channel else weights
        size = 64 if per_channel and shape[1] % 64 == 0 else 32
        for num_rows in (1, 17):
            x, residual = random(num_rows, shape[1], seed=2), random(num_rows, shape[0], seed=3)
            result = ops.linear(tight(x), linear, tight(residual))
            expected = linear_q8(x, known, bias, residual, size)
            assert relative_error(result, expected) < TOLERANCE
        rows = Int8Kernels(2).embed(linear, tight(ids))
        np.testing.assert_allclose(rows[::-1], known.dequantize(), rtol=1e-5, atol=1e-6)


@has_guarded_pages
@pytest.mark.parametrize("group_size", [32, 64])
def test_quantised_rows_stay_inside(tight_native: NativeKernels, group_size: int) -> None:
    ops = Q8Ops(tight_native.library, tight_native.pool)
    for width in (1, 31, 64, 97):
        x = tight(random(5, width))
        record_bytes = -(-width // group_size) * (group_size + GROUP_TAIL_BYTES)
        records = tight_empty((5, record_bytes), np.uint8)
        tight_native.library.check(
            tight_native.library.functions.chairlift_quantize_rows(
                tight_native.pool, x.ctypes.data, 5, width, group_size, records.ctypes.data
            )
        )
        expected = ops.quantise_rows(x, group_size).codes
        codes = records.reshape(5, -1, group_size + GROUP_TAIL_BYTES)[:, :, :group_size]
        np.testing.assert_array_equal(
            np.ascontiguousarray(codes).view(np.int8).reshape(5, -1), expected
        )


@has_guarded_pages
@pytest.mark.parametrize("num_rows", [1, 20])
@pytest.mark.parametrize("interleave", [16, 32])
def test_an_mlp_stays_inside(tight_native: NativeKernels, interleave: int, num_rows: int) -> None:
    ops = Q8Ops(tight_native.library, tight_native.pool)
    for inner in (32, 96, 320):
        gate_up = tight_weights(random_weights((2 * inner, 50), 4, 32, False))
        down = tight_weights(random_weights((50, inner), 8, 32, False))
        packed = [ops.pack(gate_up, interleave=interleave), ops.pack(down)]
        x = random(num_rows, 50)
        gates, ups = np.split(linear_q8(x, gate_up), 2, axis=1)
        gated = (gates / (1 + np.exp(-gates)) * ups).astype(np.float32)
        result = ops.mlp(tight(x), *packed, tight(x))
        assert relative_error(result, linear_q8(gated, down) + x) < 2e-2


@has_guarded_pages
@pytest.mark.parametrize("vocab_size", [1, 31, 193])
@pytest.mark.parametrize("backend", ["native", "int8"])
def test_candidates_stay_inside(tight_native: NativeKernels, backend: str, vocab_size: int) -> None:
    head = Head(tight_native if backend == "native" else Int8Kernels(2), vocab_size)
    head.norm = tight(head.norm)
    x = tight(hidden_states(3))
    query = make_query([0.0, 0.7, 1.3], list_size=min(4, vocab_size), weights=True)
    query = replace(query, rows=tight(query.rows))
    found = head.candidates(x, all_rows(x), query)
    logits = head.logits(x, all_rows(x))
    np.testing.assert_array_equal(found.rows["best_id"], logits.argmax(axis=1))


# -- attention -----------------------------------------------------------------------------------


def to_the_last_block(case: Case) -> Case:
    """The sequence's blocks are all there are, the last one at the end of the memory, and the
    layer is the last one."""
    (table,) = case.tables
    case.tables = [list(range(len(table)))]
    case.cache = tight(case.cache[: len(table)])
    assert case.cache.shape[1] - 1 == case.LAYER
    return case


def tight_layout(layout: BatchLayout) -> BatchLayout:
    """Without the poison beside the tables."""
    return BatchLayout(
        query_start=tight(layout.query_start),
        context_lens=tight(layout.context_lens),
        block_tables=tight(layout.block_tables[:, :-2]),
        positions=tight(layout.positions),
        slot_mapping=tight(layout.slot_mapping),
    )


def attend(
    kernels: NativeKernels,
    query: NDArray[Any],
    scales: FloatArray | None,
    case: PagedCase | Int8Case,
    layout: BatchLayout,
    block_size: int,
) -> FloatArray:
    """Results in tight memory, which the bindings do not allocate."""
    spec, cache = case.spec, case.cache
    result = tight_empty(query.shape, np.float32)
    task = AttentionTask(
        struct_size=ctypes.sizeof(AttentionTask),
        query=query.ctypes.data,
        query_scales=None if scales is None else scales.ctypes.data,
        out=result.ctypes.data,
        kv_cache=cache.ctypes.data + case.LAYER * cache.strides[1],
        query_start=layout.query_start.ctypes.data,
        context_lens=layout.context_lens.ctypes.data,
        block_tables=layout.block_tables.ctypes.data,
        block_stride=cache.strides[0],
        num_blocks=len(cache),
        num_tokens=len(query),
        num_sequences=len(layout.context_lens),
        max_blocks=layout.block_tables.shape[1],
        block_size=block_size,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        sliding_window=spec.sliding_window or 0,
        scale=spec.scale,
        kv_type=KV_TYPES["int8" if scales is not None else kv_dtype_of(cache)],
    )
    functions = kernels.library.functions
    kernels.library.check(functions.chairlift_paged_attention(kernels.pool, ctypes.byref(task)))
    return result


@has_guarded_pages
@pytest.mark.parametrize("new_tokens", [1, 48])
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("shape", [(3, 3, 5), (4, 1, 17), (2, 2, 16), (40, 1, 33)], ids=str)
@pytest.mark.parametrize("kv_dtype", FLOATS)
def test_floats_in_a_full_cache(
    tight_native: NativeKernels,
    kv_dtype: KvDtype,
    shape: tuple[int, int, int],
    block_size: int,
    new_tokens: int,
) -> None:
    spec = make_spec(*shape)
    case = to_the_last_block(PagedCase(NativeKernels(2, kv_dtype), spec, [48], block_size))
    case.keys, case.values = [tight(case.keys[0])], [tight(case.values[0])]
    case.store()
    queries, layout = case.step([(0, 48 - new_tokens, 48)])
    result = attend(tight_native, tight(queries), None, case, tight_layout(layout), block_size)
    exact = exact_attention(spec, case.queries[0], case.keys[0], case.values[0])
    assert relative_error(result, exact[-new_tokens:]) < TOLERANCE


def tight_rope(rope: RopeTable, num_positions: int) -> RopeTable:
    return RopeTable(cos=tight(rope.cos[:num_positions]), sin=tight(rope.sin[:num_positions]))


@has_guarded_pages
@pytest.mark.parametrize("new_tokens", [1, 3, 96])
@pytest.mark.parametrize("block_size", [16, 48])
@pytest.mark.parametrize("shape", [(3, 3, 16), (4, 1, 80), (50, 2, 32), (1, 1, 512)], ids=str)
def test_bytes_in_a_full_cache(
    tight_native: NativeKernels, shape: tuple[int, int, int], block_size: int, new_tokens: int
) -> None:
    case = to_the_last_block(Int8Case(make_ops(tight_native, block_size), make_spec(*shape), [96]))
    case.rope = tight_rope(case.rope, 96)
    own = case.cache.copy()
    chunks = [(0, 0, 96 - new_tokens)] if new_tokens < 96 else []
    for chunk in (*chunks, (0, 96 - new_tokens, 96)):
        qkv, layout = case.step([chunk])
        layout = tight_layout(layout)
        queries = case.ops.store_qkv(
            tight(qkv), case.rope, case.cache, case.LAYER, layout, case.spec
        )
        codes, scales = tight(queries.codes), tight(queries.scales)
        result = attend(tight_native, codes, scales, case, layout, block_size)
        expected, _ = case.run_oracle([chunk], own)
    np.testing.assert_array_equal(case.cache, own)
    assert relative_error(result, expected) < ORACLE_TOLERANCE


# -- numbers that are none -----------------------------------------------------------------------


@pytest.mark.parametrize("poison", NOT_FINITE)
@pytest.mark.parametrize("part", ["query", "key", "value"])
def test_what_is_not_finite_stays_in_its_sequence(
    native: NativeKernels, part: str, poison: float
) -> None:
    """In a cache of bytes: from the token on that has it, and in no other sequence."""
    case = Int8Case(make_ops(native), make_spec(4, 2, 32), [130, 90])
    clean = case.run(case.whole())
    head = {"query": 1, "key": 4, "value": 7}[part]
    case.qkv[0][77, head * 32 + 5] = poison
    result = case.run(case.whole())
    np.testing.assert_array_equal(result[:77], clean[:77])
    np.testing.assert_array_equal(result[130:], clean[130:])
    assert not np.isfinite(result[77]).all()


@pytest.mark.parametrize("size", [1e-45, 1e-39, 1e38, 3.4e38])
def test_numbers_at_the_ends_of_their_range_in_bytes(native: NativeKernels, size: float) -> None:
    """Keys, values and queries from the smallest denormal to the largest number, and zeros."""
    case = Int8Case(make_ops(native), make_spec(4, 2, 32), [100])
    rng = np.random.default_rng(3)
    case.qkv[0] = (rng.uniform(-1, 1, case.qkv[0].shape) * size).astype(np.float32)
    case.qkv[0][rng.random(case.qkv[0].shape) < 0.3] = 0
    case.rope.sin[:], case.rope.cos[:] = 0, 1  # a rotation would leave the range
    own = case.cache.copy()
    result = case.run(case.whole())
    with np.errstate(all="ignore"):
        expected, _ = case.run_oracle(case.whole(), own)
    np.testing.assert_array_equal(case.cache, own)
    if size < 1e38:
        np.testing.assert_allclose(result, expected, rtol=0, atol=ORACLE_TOLERANCE * size)


@pytest.mark.parametrize("poison", NOT_FINITE)
def test_a_weight_that_is_not_finite_spoils_its_own_output(
    native: NativeKernels, poison: float
) -> None:
    ops = Q8Ops(native.library, native.pool)
    x = random(5, 96)
    for per_channel in (False, True):
        weights = random_weights((50, 96), 4, 32, False)
        clean = ops.linear(x, ops.pack(weights, per_channel=per_channel))
        weights.mins[7, 1] = poison
        result = ops.linear(x, ops.pack(weights, per_channel=per_channel))
        np.testing.assert_array_equal(np.delete(result, 7, axis=1), np.delete(clean, 7, axis=1))
        if per_channel:
            expected = linear_q8(x, requantise_per_channel(weights))
            np.testing.assert_array_equal(result[:, 7], expected[:, 7])
        else:
            assert not np.isfinite(result[:, 7]).any()


def test_codes_of_more_bits_than_they_say(native: NativeKernels) -> None:
    """A larger code would spill into its neighbour."""
    ops = Q8Ops(native.library, native.pool)
    weights = random_weights((16, 32), 8, 32, False)
    weights.codes[3, 5] = 16
    lying = replace(weights, bits=4)
    with pytest.raises(ValueError, match="below 2"):
        ops.pack(lying)
