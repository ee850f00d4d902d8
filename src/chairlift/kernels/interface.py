"""What a kernel backend must compute, and the plain data that passes through it.

A backend gets arrays, integers and the specification of a layer; it knows nothing of requests,
scheduling or text.  Model code calls the *coarse* ops of `Kernels` (one call per half of a layer),
so that a backend may fuse inside each; one that has only the *fine* ops of `FloatKernels` gets the
coarse ones from `kernels/composition.py`.

Shape legend: T tokens of the step, S sequences of the step, R rows to sample, H hidden size,
N query heads, K key/value heads, D head size, C context length.  All floats are float32.

**Batch invariance**: what an op computes for a token may depend on that token's own row, its
position and the keys and values of its own sequence, never on which or how many other rows are in
the step.  Equal inputs must give equal bits alone, in a batch, or as part of a chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.candidates import CandidateQuery, Candidates
from chairlift.kernels.grouped_weights import GroupedWeights, GroupForm
from chairlift.kernels.kv_dtype import KvDtype
from chairlift.kernels.stored_floats import ShortForm, StoredFloats

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]
KvArray = NDArray[Any]
"""The pool of the KV cache [num_blocks, *KvBlockFormat.shape]: floats or bytes."""
Matrix = StoredFloats | GroupedWeights
"""A matrix [out, in] as it comes from a file."""
MatrixForm = GroupForm | ShortForm | None
"""What a matrix takes in a file, known before it is read; None: it holds float32."""


QuantCompute = Literal["exact", "fast"]
"""Whether quantised matrices are multiplied as their file has them, or as bytes with a scale per
output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLayout:
    """How the T flattened tokens of a step belong to S sequences, and where their KV lives.

    Prefill, decode and mixed steps differ only in these integers.

    ```
    tokens     | a a a a | b | c c |          S = 3, T = 7
    query_start  0         4   5     7        row s of the step is query_start[s] .. [s + 1] - 1
    context_lens 4         91  40             tokens of the sequence once this step has been stored
    ```
    """

    query_start: IntArray
    """[S + 1] first token of each sequence, and T at the end."""
    context_lens: IntArray
    """[S] length of each sequence, this step's tokens included."""
    block_tables: IntArray
    """[S, max_blocks] block ids; entries past a sequence's own blocks are never read."""
    positions: IntArray
    """[T] position of each token in its sequence, from 0."""
    slot_mapping: NDArray[np.int64]
    """[T] block_id * block_size + offset: where the token's key and value are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """The attention of one layer, as numbers."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    scale: float
    """Factor on query-key products, usually head_dim ** -0.5."""
    rope_dim: int
    """How many leading dimensions of a head are rotated (even, <= head_dim)."""
    rope_interleaved: bool
    """True: dimensions (2i, 2i + 1) make a pair; False: (i, i + rope_dim / 2)."""
    sliding_window: int | None = None
    """A token sees itself and the `sliding_window - 1` tokens before it; None: all of them."""


class Linear(Protocol):
    """A weight matrix in whatever form its backend likes best.  y = x W^T + b."""

    @property
    def in_features(self) -> int: ...

    @property
    def out_features(self) -> int: ...

    @property
    def num_bytes(self) -> int:
        """Memory that the packed form holds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """The attention half of a layer.  `qkv` is q, k and v stacked along the output."""

    norm: FloatArray
    qkv: Linear
    output: Linear
    q_norm: FloatArray | None = None
    k_norm: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpWeights:
    """The feed-forward half of a layer.  `gate_up` is gate and up stacked along the output."""

    norm: FloatArray
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeTable:
    """cos and sin of every position, each [max_position, rope_dim / 2]."""

    cos: FloatArray
    sin: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBlockFormat:
    """How a backend stores one block of the KV cache: what lies in it is its own business."""

    block_size: int
    """Tokens."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """Of the array: bytes and the bits of bfloat16 are unsigned integers."""
    kv_dtype: KvDtype
    """What keys and values are stored as."""

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def token_bytes(self) -> int:
        """Of one token, all layers, scales included."""
        return self.num_bytes // self.block_size


Table = FloatArray | Linear
"""An embedding table [vocab, H] as its backend looks rows up."""


class Repeat(Protocol):
    """Asks for all blocks of the owner's last call once more."""

    def __call__(
        self, x: FloatArray, rope: RopeTable, kv_cache: KvArray, batch: BatchLayout
    ) -> FloatArray | None:
        """What the last block gives, there at the end; None: they must be asked for one by one."""
        ...


class Kernels(Protocol):
    """One backend.  `x` is always [T, H] and C-contiguous; results are new arrays."""

    name: str
    kv_dtype: KvDtype
    """What keys and values are stored as."""
    quant_compute: QuantCompute | None
    """None: matrices are multiplied in float32."""

    # -- preparation -------------------------------------------------------------------------
    @property
    def packs_quantised(self) -> bool:
        """Whether `prepare_*` take `GroupedWeights` beside floats."""
        ...

    @property
    def packs_stored(self) -> bool:
        """Whether `prepare_*` take floats of any kind, and keep nothing but the packed form."""
        ...

    @property
    def shares_table(self) -> bool:
        """Whether `prepare_table` gives back the head of the same matrix."""
        ...

    def kv_block(
        self, num_layers: int, num_kv_heads: int, head_dim: int, block_size: int
    ) -> KvBlockFormat:
        """One block of `block_size` tokens, all layers.

        Raises:
            ConfigError: the backend has no cache of that shape.
        """
        ...

    def matrix_bytes(
        self, out_features: int, in_features: int, form: MatrixForm, *, in_layer: bool
    ) -> int:
        """Memory that a prepared matrix will hold.

        in_layer: False for the embedding table and the output head.
        """
        ...

    def matrix_kind(self, form: MatrixForm, *, in_layer: bool) -> str:
        """What a prepared matrix is kept as, for a person: "float16", "4 bits in groups of 32"."""
        ...

    def preparing_bytes(
        self, out_features: int, in_features: int, form: MatrixForm, *, in_layer: bool
    ) -> int:
        """Memory while a matrix is prepared: what was read, copies, and the result."""
        ...

    def prepare_linear(
        self, weights: Sequence[Matrix], biases: Sequence[FloatArray | None]
    ) -> Linear:
        """Stack matrices [out_i, in] of a layer along the output and pack them.

        A missing bias is zero.
        """
        ...

    def prepare_head(self, weight: Matrix, bias: FloatArray | None) -> Linear:
        """The output head [vocab, H]."""
        ...

    def prepare_gate_up(
        self, weights: Sequence[Matrix], biases: Sequence[FloatArray | None]
    ) -> Linear:
        """A layer's gate and up projections stacked, in the order that `mlp_block` likes."""
        ...

    def prepare_table(self, table: Matrix, head: Linear | None) -> Table:
        """An embedding table; `head` is the same matrix prepared as output head, if it is one."""
        ...

    def rope_table(
        self, inv_freq: Sequence[float], *, max_position: int, scaling: float
    ) -> RopeTable:
        """Angles position * inv_freq, both functions multiplied by `scaling`."""
        ...

    # -- coarse ops: what model code calls ---------------------------------------------------
    def one_call(self, owner: object = None) -> AbstractContextManager[Repeat]:
        """Inside, a backend may put `attention_block` and `mlp_block` off and run all at the end.

        Each must go on with what the one before gave; nobody looks at a result before the end.
        With an `owner`, who always asks for the same blocks, asking once may do: what the context
        gives is called first, and only if that returns None are the blocks asked for.
        """
        ...

    def embed(self, table: Table, token_ids: IntArray) -> FloatArray:
        """Rows of `table` [vocab, H] for the T ids."""
        ...

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
        """x + W_o attention(rope(W_qkv norm(x))); stores this step's keys and values first.

        `kv_cache` is the whole pool, blocks of the form that `kv_block` gave.
        """
        ...

    def mlp_block(self, x: FloatArray, weights: MlpWeights, eps: float) -> FloatArray:
        """x + W_down (silu(W_gate norm(x)) * W_up norm(x))."""
        ...

    def rms_norm(self, x: FloatArray, weight: FloatArray, eps: float) -> FloatArray:
        """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang & Sennrich 2019)."""
        ...

    def logits(
        self, x: FloatArray, norm: FloatArray, eps: float, head: Linear, rows: IntArray
    ) -> FloatArray:
        """[R, vocab]: the output head applied to the normalised `rows` of x only."""
        ...

    def candidates(
        self,
        x: FloatArray,
        norm: FloatArray,
        eps: float,
        head: Linear,
        rows: IntArray,
        query: CandidateQuery,
    ) -> Candidates:
        """What `query` asks about the same logits; they need not all be there at any time."""
        ...


class FloatKernels(Kernels, Protocol):
    """A backend on float32 with fine ops, from which coarse ones can be composed.

    Its KV cache [num_blocks, num_layers, ...] holds float32, float16 or bfloat16 (as uint16);
    computing is in float32.
    """

    def linear(self, x: FloatArray, weight: Linear) -> FloatArray:
        """[T, out]."""
        ...

    def rope(
        self, x: FloatArray, rope: RopeTable, positions: IntArray, *, interleaved: bool
    ) -> FloatArray:
        """Rotate [T, heads, D] by position (Su et al. 2021); dimensions past rope_dim pass."""
        ...

    def store_kv(
        self,
        key: FloatArray,
        value: FloatArray,
        kv_cache: KvArray,
        layer: int,
        slot_mapping: NDArray[np.int64],
    ) -> None:
        """Write [T, K, D] keys and values to their slots, rounded to what the cache stores."""
        ...

    def paged_attention(
        self,
        query: FloatArray,
        kv_cache: KvArray,
        layer: int,
        batch: BatchLayout,
        spec: AttentionSpec,
    ) -> FloatArray:
        """Causal attention of [T, N, D] queries over the stored context; [T, N, D].

        Query head n reads key/value head n // (N / K) (GQA, Ainslie et al. 2023).
        """
        ...

    def silu_mul(self, gate_up: FloatArray) -> FloatArray:
        """silu(gate) * up of [T, 2F]; [T, F]."""
        ...
