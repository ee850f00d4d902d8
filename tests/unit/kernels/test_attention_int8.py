"""The quantised cache and attention over it: the oracle's integers, and the same bits always."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from chairlift.errors import ConfigError
from chairlift.kernels import reference_kv_int8 as oracle
from chairlift.kernels.cpu.attention_int8 import ByteArray, KvInt8Ops, QuantizedQueries
from chairlift.kernels.cpu.kv_tasks import AttentionTask, KvToCacheTask, QkvToCacheTask
from chairlift.kernels.cpu.library import NativeLibrary
from chairlift.kernels.cpu.ops import NativeKernels
from chairlift.kernels.interface import AttentionSpec, BatchLayout, FloatArray, RopeTable
from unit.kernels.kernel_cases import exact_attention, make_layout, make_spec, relative_error

MAX_POSITION = 2048
SHAPES = [(9, 3, 64), (2, 2, 80), (16, 4, 96), (7, 1, 128), (3, 1, 256), (32, 1, 16)]
# A weight that falls on the other side of one half moves by 1 / 65535 of the largest.
ORACLE_TOLERANCE = 3e-5


def make_ops(kernels: NativeKernels, block_size: int = 16) -> KvInt8Ops:
    return KvInt8Ops(kernels.library, kernels._pool, block_size)


def make_rope(rope_dim: int) -> RopeTable:
    inverse = 10000.0 ** (-np.arange(rope_dim // 2) / max(rope_dim // 2, 1))
    angles = np.arange(MAX_POSITION)[:, None] * inverse
    return RopeTable(cos=np.cos(angles).astype(np.float32), sin=np.sin(angles).astype(np.float32))


class Int8Case:
    """Sequences in shuffled blocks of a cache full of bytes that no scale should have (NaN)."""

    LAYER = 1

    def __init__(
        self,
        ops: KvInt8Ops,
        spec: AttentionSpec,
        context_lens: Sequence[int],
        factor: float = 1.0,
    ) -> None:
        rng = np.random.default_rng(0)
        self.ops, self.spec, self.context_lens = ops, spec, context_lens
        counts = [-(-length // ops.block_size) for length in context_lens]
        order = iter(rng.permutation(sum(counts) + 3).tolist())
        self.tables = [[next(order) for _ in range(count)] for count in counts]
        self.cache = ops.new_cache(sum(counts) + 3, 2, spec.num_kv_heads, spec.head_dim)
        self.cache[:] = 255
        width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        rng = np.random.default_rng(1)  # the same numbers for any number of blocks
        self.qkv = [
            (rng.standard_normal((n, width)) * factor).astype(np.float32) for n in context_lens
        ]
        self.rope = make_rope(spec.rope_dim)

    def step(self, chunks: Sequence[tuple[int, int, int]]) -> tuple[FloatArray, BatchLayout]:
        layout = make_layout(
            [(end - first, end) for _, first, end in chunks],
            [self.tables[sequence] for sequence, _, _ in chunks],
            self.ops.block_size,
        )
        return np.concatenate([self.qkv[s][first:end] for s, first, end in chunks]), layout

    def run(self, chunks: Sequence[tuple[int, int, int]]) -> FloatArray:
        """Store and attend."""
        qkv, layout = self.step(chunks)
        queries = self.ops.store_qkv(qkv, self.rope, self.cache, self.LAYER, layout, self.spec)
        return self.ops.paged_attention(queries, self.cache, self.LAYER, layout, self.spec)

    def whole(self) -> list[tuple[int, int, int]]:
        return [(s, 0, n) for s, n in enumerate(self.context_lens)]

    def run_oracle(
        self, chunks: Sequence[tuple[int, int, int]], cache: ByteArray
    ) -> tuple[FloatArray, QuantizedQueries]:
        qkv, layout = self.step(chunks)
        size = self.ops.block_size
        codes, scales = oracle.store_qkv(qkv, self.rope, cache, self.LAYER, layout, self.spec, size)
        attended = oracle.paged_attention(codes, scales, cache, self.LAYER, layout, self.spec, size)
        return attended, QuantizedQueries(codes=codes, scales=scales)

    def parts(self, sequence: int) -> list[FloatArray]:
        """Rotated queries and keys, and values, [C, heads, D], as they were before quantising."""
        _, layout = self.step([(sequence, 0, self.context_lens[sequence])])
        spec = self.spec
        heads = self.qkv[sequence].reshape(
            -1, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim
        )
        query, key, value = np.split(
            heads, [spec.num_heads, spec.num_heads + spec.num_kv_heads], axis=1
        )
        rotated = [
            oracle.rotate_heads(part, self.rope, layout, spec.rope_interleaved)
            for part in (query, key)
        ]
        return [*rotated, value]


# -- storing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize(("rope_dim", "head_dim"), [(64, 64), (20, 80), (0, 16), (256, 256)])
@pytest.mark.parametrize("block_size", [16, 48])
def test_the_same_bytes_as_the_oracle(
    native: NativeKernels,
    block_size: int,
    head_dim: int,
    rope_dim: int,
    with_norm: bool,
    interleaved: bool,
) -> None:
    spec = replace(make_spec(6, 2, head_dim), rope_dim=rope_dim, rope_interleaved=interleaved)
    case = Int8Case(make_ops(native, block_size), spec, [1, 70])
    rng = np.random.default_rng(1)
    norms = [rng.standard_normal(head_dim, np.float32) if with_norm else None for _ in range(2)]
    qkv, layout = case.step(case.whole())
    expected = case.cache.copy()
    codes, scales = oracle.store_qkv(
        qkv, case.rope, expected, case.LAYER, layout, spec, block_size, *norms
    )
    queries = case.ops.store_qkv(qkv, case.rope, case.cache, case.LAYER, layout, spec, *norms)
    np.testing.assert_array_equal(queries.codes, codes)
    np.testing.assert_array_equal(queries.scales, scales)
    np.testing.assert_array_equal(case.cache, expected)


@pytest.mark.parametrize("value", [0.0, 1e-31, 1e-29, 1e15])
def test_heads_of_extreme_magnitude(native: NativeKernels, value: float) -> None:
    spec = replace(make_spec(1, 1, 16), rope_dim=0)
    case = Int8Case(make_ops(native), spec, [2])
    case.qkv[0][:] = np.float32(value)
    case.qkv[0][1, ::5] *= -1
    expected = case.cache.copy()
    attended, expected_queries = case.run_oracle(case.whole(), expected)
    qkv, layout = case.step(case.whole())
    queries = case.ops.store_qkv(qkv, case.rope, case.cache, case.LAYER, layout, spec)
    np.testing.assert_array_equal(queries.codes, expected_queries.codes)
    np.testing.assert_array_equal(case.cache, expected)
    result = case.ops.paged_attention(queries, case.cache, case.LAYER, layout, spec)
    np.testing.assert_allclose(result, attended, rtol=1e-5)


def test_codes_are_exact_to_half_a_step(native: NativeKernels) -> None:
    case = Int8Case(make_ops(native), make_spec(4, 2, 64), [50])
    case.qkv[0][3, 5] = 300.0  # an outlier costs its own head only
    qkv, layout = case.step(case.whole())
    case.ops.store_qkv(qkv, case.rope, case.cache, case.LAYER, layout, case.spec)
    table = layout.block_tables[0]
    stored = oracle.read_context(case.cache, case.LAYER, table, 50, 16, case.spec)
    _, key, value = case.parts(0)
    for actual, exact, scales in (
        (stored.keys, key, stored.key_scales),
        (stored.values, value, stored.value_scales),
    ):
        error = np.abs(actual - exact.swapaxes(0, 1))
        assert np.all(error <= scales[:, :, None] * 0.5001)


def test_storing_touches_only_its_slots(native: NativeKernels) -> None:
    case = Int8Case(make_ops(native), make_spec(2, 2, 32), [40])
    case.run([(0, 0, 20)])
    before = case.cache.copy()
    case.run([(0, 20, 21)])
    changed = np.flatnonzero(np.any(case.cache != before, axis=2).any(axis=1))
    assert changed.tolist() == [case.tables[0][1]]
    assert np.array_equal(case.cache[:, 0], before[:, 0])
    # Codes of keys and values, and two scales, of each head.
    assert np.count_nonzero(case.cache != before) <= 2 * (2 * 32 + 8)


# -- attention -----------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 1, 33, 64, 100])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), SHAPES)
def test_attention_is_the_oracle_s(
    native: NativeKernels, num_heads: int, num_kv_heads: int, head_dim: int, window: int | None
) -> None:
    spec = make_spec(num_heads, num_kv_heads, head_dim, window)
    case = Int8Case(make_ops(native), spec, [1, 16, 17, 64, 65, 150])
    expected, _ = case.run_oracle(case.whole(), case.cache.copy())
    assert relative_error(case.run(case.whole()), expected) < ORACLE_TOLERANCE


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), SHAPES)
def test_attention_is_near_the_exact_one(
    native: NativeKernels, num_heads: int, num_kv_heads: int, head_dim: int
) -> None:
    spec = make_spec(num_heads, num_kv_heads, head_dim)
    case = Int8Case(make_ops(native), spec, [200])
    exact = exact_attention(spec, *case.parts(0))
    assert relative_error(case.run(case.whole()), exact) < 0.02


def test_attention_over_a_long_context(native: NativeKernels) -> None:
    case = Int8Case(make_ops(native), make_spec(6, 2, 64), [2000])
    case.run([(0, 0, 1999)])
    result = case.run([(0, 1999, 2000)])
    expected, _ = case.run_oracle([(0, 1999, 2000)], case.cache.copy())
    assert relative_error(result, expected) < ORACLE_TOLERANCE
    exact = exact_attention(case.spec, *case.parts(0))
    assert relative_error(result, exact[-1:]) < 0.02


@pytest.mark.parametrize("factor", [0.0, 1e-3, 30.0])
def test_flat_and_peaked_attention(native: NativeKernels, factor: float) -> None:
    """All weights equal, nearly equal, and one key that takes all."""
    case = Int8Case(make_ops(native), make_spec(4, 2, 32), [90], factor)
    expected, _ = case.run_oracle(case.whole(), case.cache.copy())
    result = case.run(case.whole())
    np.testing.assert_allclose(
        result, expected, rtol=0, atol=np.abs(expected).max() * ORACLE_TOLERANCE
    )


def test_small_weights_beside_a_large_one_are_not_lost(native: NativeKernels) -> None:
    """One position has half the weight, sixty share the rest: 8 bits would round them to zero."""
    spec = replace(make_spec(1, 1, 16), rope_dim=0, scale=1.0)
    case = Int8Case(make_ops(native), spec, [61])
    qkv = case.qkv[0].reshape(61, 3, 16)
    qkv[:, 0] = 1.0
    qkv[:, 1] = -np.log(60.0) / 16
    qkv[60, 1] = 0.0
    qkv[:, 2] = 1.0
    qkv[60, 2] = -1.0
    result = case.run(case.whole())
    np.testing.assert_allclose(result[60], 0.0, atol=2e-3)


def test_a_small_value_with_a_large_weight(native: NativeKernels) -> None:
    """The first position draws all attention, as a sink does; its value is next to nothing."""
    case = Int8Case(make_ops(native), make_spec(4, 2, 64), [64])
    parts = case.qkv[0].reshape(64, 8, 64)
    parts[0, 4:6] *= 4
    parts[0, 6:8] *= 1e-6
    exact = exact_attention(case.spec, *case.parts(0))
    assert relative_error(case.run(case.whole()), exact) < 0.02


# -- the same bits always ------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 100])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(9, 3, 64), (7, 1, 80)])
def test_chunks_and_decode_give_the_prompt_s_bits(
    native: NativeKernels,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    chunk: int,
    window: int | None,
) -> None:
    spec = make_spec(num_heads, num_kv_heads, head_dim, window)
    case = Int8Case(make_ops(native), spec, [150])
    whole = case.run(case.whole())
    case.cache[:] = 255
    parts = [case.run([(0, at, min(at + chunk, 150))]) for at in range(0, 150, chunk)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_company_changes_nothing(native: NativeKernels) -> None:
    lengths = [1, 100, 33, 64, 577, 16]
    case = Int8Case(make_ops(native), make_spec(9, 3, 64), lengths)
    together = case.run(case.whole())
    ends = np.cumsum([0, *lengths])
    for sequence, length in enumerate(lengths):
        alone = case.run([(sequence, 0, length)])
        np.testing.assert_array_equal(alone, together[ends[sequence] : ends[sequence + 1]])
    decode = case.run([(s, n - 1, n) for s, n in enumerate(lengths)])
    np.testing.assert_array_equal(decode, together[ends[1:] - 1])


@pytest.mark.parametrize("window", [None, 700])
@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
def test_a_split_context_gives_the_same_bits(
    isa: str, library: NativeLibrary, num_threads: int, window: int | None
) -> None:
    """One thread never splits; more split one long sequence among them, at other places each."""
    alone, team = NativeKernels(1), NativeKernels(num_threads)  # they own the threads
    case = Int8Case(make_ops(alone), make_spec(6, 2, 64, window), [1500])
    case.run([(0, 0, 1495)])
    expected = case.run([(0, 1495, 1500)])
    case.ops = make_ops(team)
    np.testing.assert_array_equal(case.run([(0, 1495, 1500)]), expected)
    np.testing.assert_array_equal(case.run([(0, 1499, 1500)]), expected[-1:])


def test_block_size_changes_nothing(native: NativeKernels) -> None:
    results = []
    for block_size in (16, 32, 80):
        case = Int8Case(make_ops(native, block_size), make_spec(4, 2, 32), [130])
        results.append(case.run(case.whole()))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_whole_blocks_may_move(native: NativeKernels) -> None:
    case = Int8Case(make_ops(native), make_spec(4, 2, 32), [50])
    expected = case.run(case.whole())
    old = case.tables[0][1]
    free = next(b for b in range(len(case.cache)) if b not in case.tables[0])
    case.cache[free] = case.cache[old]
    case.cache[old] = 255
    case.tables[0][1] = free
    np.testing.assert_array_equal(case.run([(0, 49, 50)]), expected[-1:])


# -- bad arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block_size", "head_dim", "message"),
    [
        (4, 64, "block size that is a multiple of 16, not 4"),
        (24, 64, "block size that is a multiple of 16, not 24"),
        (16, 40, "head size that is a multiple of 16 up to 512, not 40"),
        (16, 1024, "head size .* not 1024"),
    ],
)
def test_a_cache_that_cannot_be_bytes(
    native: NativeKernels, block_size: int, head_dim: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_ops(native, block_size).piece_bytes(2, head_dim)


@pytest.mark.parametrize(("num_kv_heads", "head_dim"), [(3, 64), (1, 256)])
def test_piece_bytes(native: NativeKernels, num_kv_heads: int, head_dim: int) -> None:
    expected = oracle.kv_piece_bytes(32, num_kv_heads, head_dim)
    assert make_ops(native, 32).piece_bytes(num_kv_heads, head_dim) == expected


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("positions", [0] * 11 + [MAX_POSITION], f"position {MAX_POSITION} is not in the table"),
        ("positions", [0] * 11 + [-1], "position -1 is not in the table"),
        ("slot_mapping", [0] * 11 + [4 * 16], "slot 64 is not in the cache"),
        ("slot_mapping", [-1] * 12, "slot -1 is not in the cache"),
        ("positions", [0] * 3, "positions must have shape"),
    ],
)
def test_storing_refuses_values_out_of_range(
    native: NativeKernels, name: str, value: list[int], message: str
) -> None:
    case = Int8Case(make_ops(native), make_spec(2, 1, 16), [12])
    qkv, layout = case.step(case.whole())
    layout = replace(layout, **{name: np.array(value, getattr(layout, name).dtype)})
    with pytest.raises(ValueError, match=message):
        case.ops.store_qkv(qkv, case.rope, case.cache, case.LAYER, layout, case.spec)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("block_tables", [[4, 0, 0]], "block id 4 is not in the cache"),
        ("block_tables", [[-1, 0, 0]], "block id -1 is not in the cache"),
        ("context_lens", [49], "block table is too short"),
        ("context_lens", [3], "more new tokens than its context"),
        ("query_start", [0, 99], "query_start is not a rising list"),
        ("query_start", [-1, 12], "query_start is not a rising list"),
    ],
)
def test_attention_refuses_values_out_of_range(
    native: NativeKernels, name: str, value: list[Any], message: str
) -> None:
    case = Int8Case(make_ops(native), make_spec(2, 1, 16), [12])
    qkv, layout = case.step(case.whole())
    queries = case.ops.store_qkv(qkv, case.rope, case.cache, case.LAYER, layout, case.spec)
    layout = replace(layout, **{name: np.array(value, np.int32)})
    with pytest.raises(ValueError, match=message):
        case.ops.paged_attention(queries, case.cache, case.LAYER, layout, case.spec)


def test_a_cache_of_another_shape_is_refused(native: NativeKernels) -> None:
    case = Int8Case(make_ops(native), make_spec(2, 1, 16), [12])
    qkv, layout = case.step(case.whole())
    for cache, layer, message in (
        (case.cache[:, :, :-64], 0, "kv_cache must be uint8"),
        (case.cache.view(np.int8), 0, "kv_cache must be uint8"),
        (case.cache, 2, "layer 2 is not one of the cache's 2"),
    ):
        with pytest.raises(ValueError, match=message):
            case.ops.store_qkv(qkv, case.rope, cache, layer, layout, case.spec)


def test_a_caller_of_another_version_is_refused(native: NativeKernels) -> None:
    functions = native.library.functions
    for function, task in (
        (functions.chairlift_store_kv, KvToCacheTask(struct_size=8)),
        (functions.chairlift_store_qkv, QkvToCacheTask(struct_size=8)),
        (functions.chairlift_paged_attention, AttentionTask(struct_size=8)),
    ):
        with pytest.raises(ValueError, match="built for another version"):
            native.library.check(function(native._pool, ctypes.byref(task)))
