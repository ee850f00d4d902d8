"""Plain numpy float32: the oracle of every other backend, and the fallback without a compiler.

Written to be read against the formulae.  Batch invariance is bought by giving BLAS the same
problem for a row whatever its company: a matrix-matrix product rounds differently for different
numbers of rows, so every linear layer is one matrix-vector product per row, and attention
multiplies shapes that depend on the row's own context only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from chairlift.kernels.aligned import aligned_empty, aligned_rows
from chairlift.kernels.composition import ComposedKernels
from chairlift.kernels.grouped_weights import GroupedWeights
from chairlift.kernels.interface import (
    AttentionSpec,
    BatchLayout,
    FloatArray,
    IntArray,
    KvArray,
    Linear,
    Matrix,
    RopeTable,
)
from chairlift.kernels.kv_dtype import KvDtype, from_stored, to_stored
from chairlift.kernels.stored_floats import StoredFloats, stack_floats

PANEL_BYTES = 256 * 1024
"""Weights of one panel: small enough to stay in L2 while all rows of a step sweep it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceLinear:
    """A matrix cut along its output into panels [n, in] that stay in cache."""

    panels: tuple[FloatArray, ...]
    bias: FloatArray | None
    in_features: int
    out_features: int

    @property
    def num_bytes(self) -> int:
        return sum(panel.nbytes for panel in self.panels)


class ReferenceKernels(ComposedKernels):
    """Every op in numpy.  NOTE: limits BLAS to one thread in the whole process.

    BLAS would split a product by its own thread count; here panels are what is spread over
    `num_threads`, so results do not depend on it.
    """

    def __init__(self, num_threads: int, kv_dtype: KvDtype = "float32") -> None:
        if num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, not {num_threads}")
        self.name = "reference"
        self.num_threads = num_threads
        self.kv_dtype = kv_dtype
        self._blas_limits = threadpool_limits(limits=1, user_api="blas")
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="chairlift-linear")

    # -- preparation -------------------------------------------------------------------------
    def prepare_linear(
        self, weights: Sequence[Matrix], biases: Sequence[FloatArray | None]
    ) -> Linear:
        """Stack matrices [out_i, in] and cut the result into panels.  Missing biases are zero."""
        stacked, bias = stack_linear(weights, biases)
        matrix = from_stored(stacked)
        out_features, in_features = matrix.shape
        height = max(1, PANEL_BYTES // (4 * in_features))
        panels = []
        for start in range(0, out_features, height):
            rows = matrix[start : start + height]
            panel = aligned_empty(*rows.shape)
            panel[:] = rows
            panels.append(panel)
        return ReferenceLinear(
            panels=tuple(panels), bias=bias, in_features=in_features, out_features=out_features
        )

    def rope_table(
        self, inv_freq: Sequence[float], *, max_position: int, scaling: float
    ) -> RopeTable:
        return make_rope_table(inv_freq, max_position=max_position, scaling=scaling)

    # -- fine ops ----------------------------------------------------------------------------
    def linear(self, x: FloatArray, weight: Linear) -> FloatArray:
        """x W^T + b as one matrix-vector product per row and panel; [T, out]."""
        assert isinstance(weight, ReferenceLinear)
        columns = aligned_rows(x)[:, :, None]
        result = np.empty((len(x), weight.out_features), np.float32)

        def sweep(panels: Iterator[tuple[FloatArray, int]]) -> None:
            for panel, start in panels:
                # A stack of T columns [in, 1]: numpy runs one matrix-vector product for each.
                np.matmul(panel, columns, out=result[:, start : start + len(panel), None])

        starts = np.cumsum([0] + [len(panel) for panel in weight.panels[:-1]])
        # All threads, this one too, take panels from one iterator: a slow thread delays nobody.
        panels = iter(list(zip(weight.panels, starts.tolist(), strict=True)))
        num_helpers = min(self.num_threads, len(weight.panels)) - 1
        helpers = [self._executor.submit(sweep, panels) for _ in range(num_helpers)]
        sweep(panels)
        for helper in helpers:
            helper.result()
        if weight.bias is not None:
            result += weight.bias
        return result

    def rms_norm(self, x: FloatArray, weight: FloatArray, eps: float) -> FloatArray:
        return rms_norm_rows(x, weight, eps)

    def rope(
        self, x: FloatArray, rope: RopeTable, positions: IntArray, *, interleaved: bool
    ) -> FloatArray:
        """(a, b) -> (a cos - b sin, b cos + a sin) for every pair of [T, heads, D]."""
        cos = rope.cos[positions][:, None, :]
        sin = rope.sin[positions][:, None, :]
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

    def store_kv(
        self,
        key: FloatArray,
        value: FloatArray,
        kv_cache: KvArray,
        layer: int,
        slot_mapping: NDArray[np.int64],
    ) -> None:
        """Scatter [T, K, D] keys and values to their slots."""
        block_ids, offsets = np.divmod(slot_mapping, kv_cache.shape[3])
        kv_cache[block_ids, layer, 0, offsets] = to_stored(key, kv_cache.dtype)
        kv_cache[block_ids, layer, 1, offsets] = to_stored(value, kv_cache.dtype)

    def paged_attention(
        self,
        query: FloatArray,
        kv_cache: KvArray,
        layer: int,
        batch: BatchLayout,
        spec: AttentionSpec,
    ) -> FloatArray:
        """Gather each sequence's context once, then attend row by row; [T, N, D]."""
        result = np.empty_like(query)
        for sequence, context_len in enumerate(batch.context_lens.tolist()):
            keys, values = gather_context(kv_cache, layer, batch, sequence, context_len)
            first, last = batch.query_start[sequence : sequence + 2].tolist()
            for row in range(first, last):
                end = int(batch.positions[row]) + 1
                start = 0 if spec.sliding_window is None else max(0, end - spec.sliding_window)
                result[row] = attend(
                    query[row], keys[:, start:end], values[:, start:end], spec.scale
                )
        return result

    def silu_mul(self, gate_up: FloatArray) -> FloatArray:
        """gate / (1 + exp(-gate)) * up of [T, 2F]; [T, F]."""
        half = gate_up.shape[-1] // 2
        gate, up = gate_up[..., :half], gate_up[..., half:]
        result: FloatArray = np.negative(gate)  # the one new array: these are a layer's widest
        with np.errstate(over="ignore"):  # exp(-gate) = inf gives the right limit, 0
            np.exp(result, out=result)
            result += 1
            np.divide(gate, result, out=result)
            result *= up
        return result


def rms_norm_rows(x: FloatArray, weight: FloatArray, eps: float) -> FloatArray:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
    normed: FloatArray = x / np.sqrt(mean_square + np.float32(eps)) * weight
    return normed


def make_rope_table(inv_freq: Sequence[float], *, max_position: int, scaling: float) -> RopeTable:
    """Float32 angles, as the models were trained with; cos and sin correctly rounded."""
    frequencies = np.asarray(inv_freq, np.float32)
    angles = np.arange(max_position, dtype=np.float32)[:, None] * frequencies
    exact = angles.astype(np.float64)
    factor = np.float32(scaling)
    return RopeTable(
        cos=np.cos(exact).astype(np.float32) * factor,
        sin=np.sin(exact).astype(np.float32) * factor,
    )


def stack_linear(
    weights: Sequence[Matrix], biases: Sequence[FloatArray | None]
) -> tuple[StoredFloats, FloatArray | None]:
    """The matrices stacked along the output [out, in], and their biases [out] if there are any.

    They stay in 16 bits if all are.  A single matrix comes back as it is, not copied.

    Raises:
        ValueError: no matrices, unequal widths, or a bias that does not fit its matrix.
    """
    if not weights or len(weights) != len(biases):
        raise ValueError(f"{len(weights)} matrices with {len(biases)} biases: give one for each")
    matrices = [weight for weight in weights if not isinstance(weight, GroupedWeights)]
    if len(matrices) < len(weights):
        raise ValueError("these kernels take no quantised matrices")
    for weight, bias in zip(matrices, biases, strict=True):
        if weight.ndim != 2 or weight.shape[1] != matrices[0].shape[1]:
            raise ValueError(f"cannot stack {weight.shape} with {matrices[0].shape}")
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ValueError(f"a bias of shape {bias.shape} does not fit a matrix {weight.shape}")
    matrix = stack_floats(matrices)
    if all(bias is None for bias in biases):
        return matrix, None
    pairs = zip(matrices, biases, strict=True)
    stacked = [np.zeros(len(weight)) if bias is None else bias for weight, bias in pairs]
    return matrix, np.concatenate(stacked).astype(np.float32)


def gather_context(
    kv_cache: KvArray, layer: int, batch: BatchLayout, sequence: int, context_len: int
) -> tuple[FloatArray, FloatArray]:
    """The keys and values of one sequence out of its blocks, each [K, C, D] and contiguous."""
    _, _, _, block_size, num_kv_heads, head_dim = kv_cache.shape
    blocks = batch.block_tables[sequence, : -(-context_len // block_size)]
    pieces = from_stored(kv_cache[blocks, layer])  # [blocks, 2, block_size, K, D]
    by_head = np.ascontiguousarray(pieces.transpose(1, 3, 0, 2, 4))
    keys, values = by_head.reshape(2, num_kv_heads, -1, head_dim)[:, :, :context_len]
    return keys, values


def attend(query: FloatArray, keys: FloatArray, values: FloatArray, scale: float) -> FloatArray:
    """softmax(q K^T scale) V for one row: [N, D] over [K, C, D]; [N, D]."""
    num_kv_heads, _, head_dim = keys.shape
    grouped = np.ascontiguousarray(query).reshape(num_kv_heads, -1, head_dim)
    scores = grouped @ keys.swapaxes(1, 2) * np.float32(scale)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    attended: FloatArray = weights @ values
    return attended.reshape(query.shape)
