"""The coarse ops, composed from the fine ones the way the papers write them.

A backend that subclasses `ComposedKernels` supplies the fine ops and inherits these; it overrides
a coarse op only where it can fuse.  Knows no array library beyond slicing and adding.
"""

from __future__ import annotations

from chairlift.kernels.interface import (
    AttentionSpec,
    AttentionWeights,
    BatchLayout,
    FloatArray,
    IntArray,
    Kernels,
    Linear,
    MlpWeights,
    RopeTable,
)


class ComposedKernels(Kernels):
    """`embed`, `attention_block`, `mlp_block` and `logits` in terms of the fine ops."""

    def embed(self, table: FloatArray, token_ids: IntArray) -> FloatArray:
        """Rows of `table` [vocab, H]; [T, H]."""
        return table[token_ids]

    def attention_block(
        self,
        x: FloatArray,
        weights: AttentionWeights,
        spec: AttentionSpec,
        rope: RopeTable,
        kv_cache: FloatArray,
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


def split_heads(qkv: FloatArray, spec: AttentionSpec) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Views of [T, (N + 2K) D] as queries [T, N, D], keys [T, K, D] and values [T, K, D]."""
    heads = qkv.reshape(len(qkv), -1, spec.head_dim)
    keys_start = spec.num_heads
    values_start = keys_start + spec.num_kv_heads
    return heads[:, :keys_start], heads[:, keys_start:values_start], heads[:, values_start:]
