"""The coarse ops, composed from the fine ones the way the papers write them.

A backend that subclasses `ComposedKernels` supplies the fine ops and inherits these; it overrides
a coarse op only where it can fuse.  Knows no array library beyond slicing and adding.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from chairlift.kernels.candidates import (
    ROWS_AT_ONCE,
    CandidateQuery,
    Candidates,
    empty_candidates,
    search_rows,
)
from chairlift.kernels.grouped_weights import GroupedWeights
from chairlift.kernels.interface import (
    AttentionSpec,
    AttentionWeights,
    BatchLayout,
    FloatArray,
    FloatKernels,
    IntArray,
    KvArray,
    KvBlockFormat,
    Linear,
    Matrix,
    MatrixForm,
    MlpWeights,
    QuantCompute,
    Repeat,
    RopeTable,
    Table,
)
from chairlift.kernels.kv_dtype import FLOAT_STORAGE, KvDtype, from_stored


class ComposedKernels(FloatKernels):
    """What all backends on float32 share, and the coarse ops in terms of the fine ones."""

    kv_dtype: KvDtype = "float32"
    """What keys and values are stored as: not "int8"."""
    quant_compute: QuantCompute | None = None

    @property
    def packs_quantised(self) -> bool:
        return False

    @property
    def packs_stored(self) -> bool:
        return False

    @property
    def shares_table(self) -> bool:
        return False

    def kv_block(
        self, num_layers: int, num_kv_heads: int, head_dim: int, block_size: int
    ) -> KvBlockFormat:
        """[num_layers, 2 = K, V, block_size, K, D] of floats."""
        return KvBlockFormat(
            block_size=block_size,
            shape=(num_layers, 2, block_size, num_kv_heads, head_dim),
            dtype=FLOAT_STORAGE[self.kv_dtype],
            kv_dtype=self.kv_dtype,
        )

    def matrix_bytes(
        self, out_features: int, in_features: int, form: MatrixForm, *, in_layer: bool
    ) -> int:
        """As float32."""
        return 4 * out_features * in_features

    def matrix_kind(self, form: MatrixForm, *, in_layer: bool) -> str:
        return "float32"

    def preparing_bytes(
        self, out_features: int, in_features: int, form: MatrixForm, *, in_layer: bool
    ) -> int:
        """Two of them, the one that was read and the packed one."""
        return 2 * self.matrix_bytes(out_features, in_features, form, in_layer=in_layer)

    def prepare_head(self, weight: Matrix, bias: FloatArray | None) -> Linear:
        """As any other matrix."""
        return self.prepare_linear([weight], [bias])

    def prepare_gate_up(
        self, weights: Sequence[Matrix], biases: Sequence[FloatArray | None]
    ) -> Linear:
        """All gates above all ups."""
        return self.prepare_linear(weights, biases)

    def prepare_table(self, table: Matrix, head: Linear | None) -> Table:
        """The table itself: rows of a packed head are nowhere in one piece."""
        assert not isinstance(table, GroupedWeights)
        return from_stored(table)

    def embed(self, table: Table, token_ids: IntArray) -> FloatArray:
        """Rows of `table` [vocab, H]; [T, H]."""
        assert isinstance(table, np.ndarray)
        rows: FloatArray = table[token_ids]
        return rows

    def one_call(self, owner: object = None) -> AbstractContextManager[Repeat]:
        """Nothing is put off, and nothing repeated."""
        return nullcontext(_ask_again)

    def attention_block(
        self,
        x: FloatArray,
        weights: AttentionWeights,
        spec: AttentionSpec,
        rope: RopeTable,
        kv_cache: KvArray,
        layer: int,
        batch: BatchLayout,
    ) -> FloatArray:
        """x + W_o attention(rope(W_qkv norm(x))); stores this step's keys and values first."""
        qkv = self.linear(self.rms_norm(x, weights.norm, spec.rms_norm_eps), weights.qkv)
        query, key, value = split_heads(qkv, spec)
        if weights.q_norm is not None:
            query = self.rms_norm(query, weights.q_norm, spec.rms_norm_eps)
        if weights.k_norm is not None:
            key = self.rms_norm(key, weights.k_norm, spec.rms_norm_eps)
        query = self.rope(query, rope, batch.positions, interleaved=spec.rope_interleaved)
        key = self.rope(key, rope, batch.positions, interleaved=spec.rope_interleaved)
        self.store_kv(key, value, kv_cache, layer, batch.slot_mapping)
        attended = self.paged_attention(query, kv_cache, layer, batch, spec)
        return x + self.linear(attended.reshape(len(x), -1), weights.output)

    def mlp_block(self, x: FloatArray, weights: MlpWeights, eps: float) -> FloatArray:
        """x + W_down (silu(W_gate norm(x)) * W_up norm(x)), SwiGLU (Shazeer 2020)."""
        gate_up = self.linear(self.rms_norm(x, weights.norm, eps), weights.gate_up)
        return x + self.linear(self.silu_mul(gate_up), weights.down)

    def logits(
        self, x: FloatArray, norm: FloatArray, eps: float, head: Linear, rows: IntArray
    ) -> FloatArray:
        """[R, vocab]: only the `rows` that will be sampled reach the output head."""
        return self.linear(self.rms_norm(x[rows], norm, eps), head)

    def candidates(
        self,
        x: FloatArray,
        norm: FloatArray,
        eps: float,
        head: Linear,
        rows: IntArray,
        query: CandidateQuery,
    ) -> Candidates:
        """What `query` asks about the logits of `rows`, of which some are there for a moment."""
        found = empty_candidates(len(rows), query.max_listed)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            part = rows[start : start + ROWS_AT_ONCE]
            search_rows(self.logits(x, norm, eps, head, part), query, found, start)
        return found


def _ask_again(
    x: FloatArray, rope: RopeTable, kv_cache: KvArray, batch: BatchLayout
) -> FloatArray | None:
    return None


def split_heads(qkv: FloatArray, spec: AttentionSpec) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Views of [T, (N + 2K) D] as queries [T, N, D], keys [T, K, D] and values [T, K, D]."""
    heads = qkv.reshape(len(qkv), -1, spec.head_dim)
    keys_start = spec.num_heads
    values_start = keys_start + spec.num_kv_heads
    return heads[:, :keys_start], heads[:, keys_start:values_start], heads[:, values_start:]
