"""The backend on bytes: quantised weights and activations, half a layer per call.

Matrices that a file holds quantised are packed as they are; others become signed bytes in groups of
32.  In `fast` compute those of the layers become bytes with one scale per output.  Activations
become bytes in front of every matrix.  Keys and values become bytes when they are
stored, or stay floats of 16 or 32 bits, over which attention is computed in float32.  What is added
up between the halves of a layer stays float32.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chairlift.errors import ConfigError
from chairlift.kernels.aligned import aligned_empty
from chairlift.kernels.cpu.attention_int8 import KvInt8Ops
from chairlift.kernels.cpu.float_pages import block_size_of, float_page_block
from chairlift.kernels.cpu.kv_tasks import (
    KV_TYPES,
    AttentionBlockTask,
    AttentionTask,
    QkvToCacheTask,
)
from chairlift.kernels.cpu.library import load_library
from chairlift.kernels.cpu.linear_q8 import Q8Ops, QuantizedLinear, check_floats, pointer
from chairlift.kernels.cpu.ops import check_array
from chairlift.kernels.grouped_weights import (
    QUANTISED_FLOATS,
    GroupedWeights,
    GroupForm,
    quantise_matrix,
    stack_weights,
)
from chairlift.kernels.interface import (
    AttentionSpec,
    AttentionWeights,
    BatchLayout,
    FloatArray,
    IntArray,
    Kernels,
    KvArray,
    KvBlockFormat,
    Linear,
    Matrix,
    MlpWeights,
    QuantCompute,
    RopeTable,
    Table,
)
from chairlift.kernels.kv_dtype import KvDtype, kv_dtype_of
from chairlift.kernels.reference import make_rope_table

PAGE_TOKENS = 16
HEAD_UNIT = 16
INTERLEAVE = 16
FAST_GROUP = 64
"""Activations that share a scale in `fast` compute, where that divides a row."""
COLUMNS = 16
"""Packed matrices are padded to a multiple of so many outputs, and to whole groups of 32."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What the layers of one step have in common, filled in once.  Holds what it points to."""

    batch: BatchLayout
    rope: RopeTable
    kv_cache: KvArray
    spec: AttentionSpec
    task: AttentionBlockTask


class Int8Kernels(Kernels):
    """The backend on bytes of the native library; `num_threads` includes the calling thread.

    Raises:
        LibraryUnavailableError: the library is absent or does not load.
    """

    def __init__(
        self,
        num_threads: int,
        kv_dtype: KvDtype = "int8",
        quant_compute: QuantCompute = "exact",
    ) -> None:
        self.library = load_library()
        self.name = "int8"
        self.num_threads = num_threads
        self.kv_dtype: KvDtype = kv_dtype
        self.quant_compute: QuantCompute = quant_compute
        self._functions = self.library.functions
        self._pool = self.library.create_pool(num_threads)
        self._linears = Q8Ops(self.library, self._pool)
        self._pages = KvInt8Ops(self.library, self._pool, PAGE_TOKENS)
        self._step: _Step | None = None

    # -- preparation -------------------------------------------------------------------------
    @property
    def packs_quantised(self) -> bool:
        return True

    def kv_block(
        self, num_layers: int, num_kv_heads: int, head_dim: int, block_size: int
    ) -> KvBlockFormat:
        """Bytes that only the library can read, [num_layers, piece_bytes], or floats.

        Raises:
            ConfigError: head_dim is no multiple of 16, or cannot be stored as bytes; or these need
                a block_size that is a multiple of 16.
        """
        if head_dim % HEAD_UNIT:
            raise ConfigError(
                f"the int8 kernels need a head size that is a multiple of {HEAD_UNIT}, not"
                f" {head_dim}: set kernels to native",
                field="kernels",
            )
        if self.kv_dtype != "int8":
            return float_page_block(
                self.library, num_layers, num_kv_heads, head_dim, block_size, self.kv_dtype
            )
        page = self._page_bytes(num_kv_heads, head_dim)
        if block_size % PAGE_TOKENS:
            raise ConfigError(
                f"keys and values in int8 need a block_size that is a multiple of {PAGE_TOKENS},"
                f" not {block_size}",
                field="block_size",
            )
        return KvBlockFormat(
            block_size=block_size,
            shape=(num_layers, block_size // PAGE_TOKENS * page),
            dtype=np.dtype(np.uint8),
            kv_dtype="int8",
        )

    def matrix_bytes(
        self, out_features: int, in_features: int, form: GroupForm | None, *, in_layer: bool
    ) -> int:
        """Codes and scales of the packed form; floats are quantised."""
        if self._is_fast(in_layer):
            group = FAST_GROUP if in_features % FAST_GROUP == 0 else 32
            columns = -(-out_features // COLUMNS) * COLUMNS
            return columns * (-(-in_features // group) * group + 4)
        form = form or QUANTISED_FLOATS
        groups = -(-in_features // 32) * (32 // form.group_size)
        is_half = form.half_scales and form.group_size == 32
        per_group = (2 if is_half else 4) * (2 if form.has_minimum else 1)
        columns = -(-out_features // COLUMNS) * COLUMNS
        return columns * groups * (form.group_size * form.bits // 8 + per_group)

    def preparing_bytes(
        self, out_features: int, in_features: int, form: GroupForm | None, *, in_layer: bool
    ) -> int:
        """Floats if it was read as such, grouped weights of a byte each, and the packed form."""
        floats = 4 * out_features * in_features if form is None else 0
        group_size = (form or QUANTISED_FLOATS).group_size
        grouped = out_features * (in_features + 8 * -(-in_features // group_size))
        packed = self.matrix_bytes(out_features, in_features, form, in_layer=in_layer)
        return floats + grouped + packed

    def prepare_linear(
        self, weights: Sequence[Matrix], biases: Sequence[FloatArray | None]
    ) -> QuantizedLinear:
        """Stack matrices [out_i, in] and pack the result.  Missing biases are zero."""
        matrix, bias = stack_grouped(weights, biases)
        return self._linears.pack(matrix, bias, per_channel=self._is_fast(True))

    def prepare_head(self, weight: Matrix, bias: FloatArray | None) -> QuantizedLinear:
        """As the file has it in any compute: a tied table is the same matrix."""
        return self._linears.pack(*stack_grouped([weight], [bias]))

    def prepare_gate_up(
        self, weights: Sequence[Matrix], biases: Sequence[FloatArray | None]
    ) -> QuantizedLinear:
        """Gates and ups in turn, 16 of each.

        Raises:
            ConfigError: there is no whole number of such pairs.
        """
        matrix, bias = stack_grouped(weights, biases)
        inner = matrix.out_features // 2
        if inner % INTERLEAVE:
            raise ConfigError(
                f"the int8 kernels need an inner size that is a multiple of {INTERLEAVE}, not"
                f" {inner}: set kernels to native",
                field="kernels",
            )
        if bias is not None:
            pairs = bias.reshape(2, -1, INTERLEAVE).swapaxes(0, 1)
            bias = np.ascontiguousarray(pairs).reshape(-1)
        return self._linears.pack(
            matrix, bias, interleave=INTERLEAVE, per_channel=self._is_fast(True)
        )

    def prepare_table(self, table: Matrix, head: Linear | None) -> Table:
        """The packed head itself if it is the same matrix."""
        return self.prepare_head(table, None) if head is None else head

    def rope_table(
        self, inv_freq: Sequence[float], *, max_position: int, scaling: float
    ) -> RopeTable:
        """Float32 angles, as the models were trained with; cos and sin correctly rounded."""
        return make_rope_table(inv_freq, max_position=max_position, scaling=scaling)

    # -- coarse ops --------------------------------------------------------------------------
    def embed(self, table: Table, token_ids: IntArray) -> FloatArray:
        """Rows of the packed `table`, dequantised; [T, H]."""
        packed = as_quantised(table)
        check_array("token_ids", token_ids, np.int32, (None,))
        result = aligned_empty(len(token_ids), packed.in_features)
        self.library.check(
            self._functions.chairlift_rows_q8(
                self._pool,
                packed.packed.ctypes.data,
                token_ids.ctypes.data,
                len(token_ids),
                result.ctypes.data,
            )
        )
        return result

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
        qkv, output = as_quantised(weights.qkv), as_quantised(weights.output)
        check_floats("x", x, (len(batch.positions), qkv.in_features))
        check_floats("norm", weights.norm, (qkv.in_features,))
        for norm in (weights.q_norm, weights.k_norm):
            if norm is not None:
                check_floats("head norm", norm, (spec.head_dim,))
        if not 0 <= layer < kv_cache.shape[1]:
            raise ValueError(f"layer {layer} is not one of the cache's {kv_cache.shape[1]}")
        result = aligned_empty(*x.shape)
        task = self._task(spec, rope, kv_cache, batch)
        task.x, task.out = x.ctypes.data, result.ctypes.data
        task.norm = weights.norm.ctypes.data
        task.qkv, task.qkv_bias = qkv.packed.ctypes.data, pointer(qkv.bias)
        task.output, task.output_bias = output.packed.ctypes.data, pointer(output.bias)
        task.store.q_norm, task.store.k_norm = pointer(weights.q_norm), pointer(weights.k_norm)
        piece = kv_cache.ctypes.data + layer * kv_cache.strides[1]
        task.store.kv_cache = task.attention.kv_cache = piece
        self.library.check(
            self._functions.chairlift_attention_block_q8(self._pool, ctypes.byref(task))
        )
        return result

    def mlp_block(self, x: FloatArray, weights: MlpWeights, eps: float) -> FloatArray:
        """x + W_down (silu(W_gate norm(x)) * W_up norm(x))."""
        gate_up, down = as_quantised(weights.gate_up), as_quantised(weights.down)
        check_floats("x", x, (len(x), gate_up.in_features))
        check_floats("norm", weights.norm, (gate_up.in_features,))
        if down.out_features != gate_up.in_features:
            raise ValueError("the matrices of the MLP do not fit each other")
        result = aligned_empty(*x.shape)
        self.library.check(
            self._functions.chairlift_norm_mlp_q8(
                self._pool,
                x.ctypes.data,
                len(x),
                weights.norm.ctypes.data,
                eps,
                gate_up.packed.ctypes.data,
                pointer(gate_up.bias),
                down.packed.ctypes.data,
                pointer(down.bias),
                x.ctypes.data,
                result.ctypes.data,
            )
        )
        return result

    def logits(
        self, x: FloatArray, norm: FloatArray, eps: float, head: Linear, rows: IntArray
    ) -> FloatArray:
        """[R, vocab]: the output head applied to the normalised `rows` of x only."""
        packed = as_quantised(head)
        chosen = x[rows]
        check_floats("x", chosen, (len(rows), packed.in_features))
        check_floats("norm", norm, (packed.in_features,))
        result = aligned_empty(len(rows), packed.out_features)
        self.library.check(
            self._functions.chairlift_norm_linear_q8(
                self._pool,
                chosen.ctypes.data,
                len(rows),
                norm.ctypes.data,
                eps,
                packed.packed.ctypes.data,
                pointer(packed.bias),
                None,
                result.ctypes.data,
            )
        )
        return result

    def _is_fast(self, in_layer: bool) -> bool:
        """The head and the table stay as they are."""
        return in_layer and self.quant_compute == "fast"

    def _page_bytes(self, num_kv_heads: int, head_dim: int) -> int:
        return self._pages.piece_bytes(num_kv_heads, head_dim)

    def _task(
        self, spec: AttentionSpec, rope: RopeTable, kv_cache: KvArray, batch: BatchLayout
    ) -> AttentionBlockTask:
        """The step's task; layers after the first find it as the one before left it."""
        step = self._step
        if (
            step is None
            or step.batch is not batch
            or step.rope is not rope
            or step.kv_cache is not kv_cache
            or step.spec != spec
        ):
            task = self._new_task(spec, rope, kv_cache, batch)
            step = _Step(batch, rope, kv_cache, spec, task)
            self._step = step
        return step.task

    def _new_task(
        self, spec: AttentionSpec, rope: RopeTable, kv_cache: KvArray, batch: BatchLayout
    ) -> AttentionBlockTask:
        check_inputs(spec, rope, batch)
        kv_dtype: KvDtype = "int8" if kv_cache.dtype == np.uint8 else kv_dtype_of(kv_cache)
        if kv_dtype == "int8":
            page = self._page_bytes(spec.num_kv_heads, spec.head_dim)
            check_pages(kv_cache, page)
            block_size = kv_cache.shape[2] // page * PAGE_TOKENS
        else:
            block_size = block_size_of(kv_cache, 0, spec.num_kv_heads, spec.head_dim)
        # Both structures have fields of these names.
        shared = {
            "block_stride": kv_cache.strides[0],
            "num_blocks": len(kv_cache),
            "num_tokens": len(batch.positions),
            "block_size": block_size,
            "num_heads": spec.num_heads,
            "num_kv_heads": spec.num_kv_heads,
            "head_dim": spec.head_dim,
            "kv_type": KV_TYPES[kv_dtype],
        }
        store = QkvToCacheTask(
            struct_size=ctypes.sizeof(QkvToCacheTask),
            cos=rope.cos.ctypes.data,
            sin=rope.sin.ctypes.data,
            positions=batch.positions.ctypes.data,
            slots=batch.slot_mapping.ctypes.data,
            max_position=len(rope.cos),
            rope_dim=spec.rope_dim,
            rope_interleaved=spec.rope_interleaved,
            norm_eps=spec.rms_norm_eps,
            **shared,
        )
        attention = AttentionTask(
            struct_size=ctypes.sizeof(AttentionTask),
            query_start=batch.query_start.ctypes.data,
            context_lens=batch.context_lens.ctypes.data,
            block_tables=batch.block_tables.ctypes.data,
            num_sequences=len(batch.context_lens),
            max_blocks=batch.block_tables.shape[1],
            sliding_window=spec.sliding_window or 0,
            scale=spec.scale,
            **shared,
        )
        return AttentionBlockTask(
            struct_size=ctypes.sizeof(AttentionBlockTask), store=store, attention=attention
        )


def check_inputs(spec: AttentionSpec, rope: RopeTable, batch: BatchLayout) -> None:
    """Raise ValueError unless the step's arrays fit together; the library checks the values."""
    num_tokens, num_sequences = len(batch.positions), len(batch.context_lens)
    check_array("cos", rope.cos, np.float32, (None, spec.rope_dim // 2))
    check_array("sin", rope.sin, np.float32, rope.cos.shape)
    check_array("positions", batch.positions, np.int32, (None,))
    check_array("slot_mapping", batch.slot_mapping, np.int64, (num_tokens,))
    check_array("query_start", batch.query_start, np.int32, (num_sequences + 1,))
    check_array("context_lens", batch.context_lens, np.int32, (None,))
    check_array("block_tables", batch.block_tables, np.int32, (num_sequences, None))


def check_pages(kv_cache: KvArray, page: int) -> None:
    """Raise ValueError unless the cache has dense pieces of whole pages of so many bytes."""
    if kv_cache.dtype != np.uint8 or kv_cache.ndim != 3 or kv_cache.shape[2] % page:
        raise ValueError(
            f"kv_cache must be uint8 [.., .., pages of {page}], not {kv_cache.dtype}"
            f" {kv_cache.shape}"
        )
    if kv_cache.strides[2] != 1:
        raise ValueError("kv_cache must have dense pieces")


def as_quantised(linear: Table) -> QuantizedLinear:
    """Raises TypeError if another backend prepared it."""
    if not isinstance(linear, QuantizedLinear):
        raise TypeError(f"this matrix was prepared by another backend: {type(linear).__name__}")
    return linear


def stack_grouped(
    weights: Sequence[Matrix], biases: Sequence[FloatArray | None]
) -> tuple[GroupedWeights, FloatArray | None]:
    """Matrices below each other, floats among them quantised; their biases if there are any.

    Raises:
        ValueError: no matrices, unequal widths, or a bias that does not fit its matrix.
    """
    if len(weights) != len(biases):
        raise ValueError(f"{len(weights)} matrices with {len(biases)} biases: give one for each")
    parts = [
        weight if isinstance(weight, GroupedWeights) else quantise_matrix(weight)
        for weight in weights
    ]
    matrix = parts[0] if len(parts) == 1 else stack_weights(parts)
    if all(bias is None for bias in biases):
        return matrix, None
    pairs = zip(parts, biases, strict=True)
    stacked = [np.zeros(part.out_features) if bias is None else bias for part, bias in pairs]
    for part, bias in zip(parts, stacked, strict=True):
        if bias.shape != (part.out_features,):
            raise ValueError(f"a bias {bias.shape} does not fit {part.out_features} outputs")
    return matrix, np.concatenate(stacked).astype(np.float32)
