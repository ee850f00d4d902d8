"""Batches, specifications and exact formulae that the kernel tests share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.interface import AttentionSpec, BatchLayout, FloatArray, FloatKernels
from chairlift.kernels.kv_dtype import from_stored, to_stored

DoubleArray = NDArray[np.float64]
AnyArray = NDArray[Any]
Chunk = tuple[int, int]
"""New tokens of a sequence, and its context length with them."""


def make_spec(
    num_heads: int, num_kv_heads: int, head_dim: int, sliding_window: int | None = None
) -> AttentionSpec:
    return AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        scale=head_dim**-0.5,
        rope_dim=head_dim,
        rope_interleaved=False,
        sliding_window=sliding_window,
    )


def make_layout(chunks: Sequence[Chunk], tables: Sequence[Sequence[int]], size: int) -> BatchLayout:
    """A step of these chunks; entries past a sequence's own blocks are poison."""
    block_tables = np.full((len(chunks), max(map(len, tables)) + 2), -99, np.int32)
    positions, slots = [], []
    for row, ((new, context), table) in enumerate(zip(chunks, tables, strict=True)):
        used = -(-context // size)
        block_tables[row, :used] = table[:used]
        at = np.arange(context - new, context)
        positions.append(at)
        slots.append(block_tables[row, at // size].astype(np.int64) * size + at % size)
    return BatchLayout(
        query_start=np.cumsum([0] + [new for new, _ in chunks]).astype(np.int32),
        context_lens=np.array([context for _, context in chunks], np.int32),
        block_tables=block_tables,
        positions=np.concatenate(positions).astype(np.int32),
        slot_mapping=np.concatenate(slots),
    )


class PagedCase:
    """Sequences with stored contexts in shuffled blocks of a poisoned cache, and their queries.

    Keys and values are numbers that the cache stores exactly.
    """

    LAYER = 1

    def __init__(
        self,
        kernels: FloatKernels,
        spec: AttentionSpec,
        context_lens: Sequence[int],
        block_size: int,
        seed: int = 0,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.kernels, self.spec = kernels, spec
        self.context_lens, self.block_size = context_lens, block_size
        counts = [-(-length // block_size) for length in context_lens]
        num_blocks = sum(counts) + 3
        order = iter(rng.permutation(num_blocks).tolist())
        self.tables = [[next(order) for _ in range(count)] for count in counts]
        heads, dim = spec.num_kv_heads, spec.head_dim
        block = kernels.kv_block(2, heads, dim, block_size)
        poison = to_stored(np.full(1, np.nan, np.float32), block.dtype)[0]
        self.cache = np.full((num_blocks, *block.shape), poison, block.dtype)

        def numbers(count: int) -> FloatArray:
            x = rng.standard_normal((count, heads, dim), np.float32)
            return from_stored(to_stored(x, block.dtype))

        self.keys = [numbers(count) for count in context_lens]
        self.values = [numbers(count) for count in context_lens]
        self.queries = [
            rng.standard_normal((n, spec.num_heads, dim), np.float32) for n in context_lens
        ]
        self.store()

    def store(self) -> None:
        """Write keys and values, those of each sequence at once."""
        for table, keys, values in zip(self.tables, self.keys, self.values, strict=True):
            at = np.arange(len(keys))
            blocks = np.array(table, np.int64)[at // self.block_size]
            slots = blocks * self.block_size + at % self.block_size
            self.kernels.store_kv(keys, values, self.cache, self.LAYER, slots)

    def step(self, chunks: Sequence[tuple[int, int, int]]) -> tuple[FloatArray, BatchLayout]:
        """Queries and layout of a step with chunks (sequence, first position, end position)."""
        layout = make_layout(
            [(end - first, end) for _, first, end in chunks],
            [self.tables[sequence] for sequence, _, _ in chunks],
            self.block_size,
        )
        return np.concatenate([self.queries[s][first:end] for s, first, end in chunks]), layout

    def whole_step(self) -> tuple[FloatArray, BatchLayout]:
        """Every sequence as one prompt."""
        return self.step([(s, 0, n) for s, n in enumerate(self.context_lens)])


def exact_attention(
    spec: AttentionSpec, queries: AnyArray, keys: AnyArray, values: AnyArray
) -> DoubleArray:
    """softmax(Q K^T scale + mask) V in float64 for a whole sequence, [C, N, D]."""
    group = spec.num_heads // spec.num_kv_heads
    q = queries.astype(np.float64)
    k = keys.astype(np.float64).repeat(group, axis=1)
    v = values.astype(np.float64).repeat(group, axis=1)
    scores = np.einsum("qnd,knd->nqk", q, k) * spec.scale
    at = np.arange(len(queries))
    hidden = at[None, :] > at[:, None]
    if spec.sliding_window is not None:
        hidden |= at[None, :] <= at[:, None] - spec.sliding_window
    scores[:, hidden] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    attended: DoubleArray = np.einsum("nqk,knd->qnd", weights, v)
    return attended


def relative_error(actual: FloatArray, exact: AnyArray) -> float:
    """Largest difference over the largest magnitude."""
    return float(np.max(np.abs(actual - exact)) / np.max(np.abs(exact)))
