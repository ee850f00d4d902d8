"""The backend on bytes: quantised weights and activations, half a layer per call.

Matrices that a file holds quantised are packed as they are; others become signed bytes in groups of
32.  In `fast` compute those of the layers become bytes with one scale per output.  Activations
become bytes in front of every matrix.  Keys and values become bytes when they are
stored, or stay floats of 16 or 32 bits, over which attention is computed in float32.  What is added
up between the halves of a layer stays float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

import numpy as np

from chairlift.errors import ConfigError
from chairlift.kernels.aligned import aligned_empty
from chairlift.kernels.candidates import CandidateQuery, Candidates
from chairlift.kernels.cpu.array_checks import check_array
from chairlift.kernels.cpu.attention_int8 import KvInt8Ops
from chairlift.kernels.cpu.candidates import call_with_query
from chairlift.kernels.cpu.float_pages import float_page_block
from chairlift.kernels.cpu.layer_blocks import LayerBlocks
from chairlift.kernels.cpu.library import load_library
from chairlift.kernels.cpu.linear_q8 import (
    Q8Ops,
    QuantizedLinear,
    as_quantised,
    check_floats,
    pointer,
)
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
    MatrixForm,
    MlpWeights,
    QuantCompute,
    Repeat,
    RopeTable,
    Table,
)
from chairlift.kernels.kv_dtype import KvDtype, from_stored
from chairlift.kernels.reference import make_rope_table, rms_norm_rows

PAGE_TOKENS = 16
HEAD_UNIT = 16
INTERLEAVE = 16
FAST_GROUP = 64
"""Activations that share a scale in `fast` compute, where that divides a row."""
COLUMNS = 16
"""Packed matrices are padded to a multiple of so many outputs, and to whole groups of 32."""


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
        self._blocks = LayerBlocks(self.library, self._pool, self._pages)

    # -- preparation -------------------------------------------------------------------------
    @property
    def packs_quantised(self) -> bool:
        return True

    @property
    def packs_stored(self) -> bool:
        return False  # floats are quantised, from float32

    @property
    def shares_table(self) -> bool:
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
        page = self._pages.piece_bytes(num_kv_heads, head_dim)
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
        self, out_features: int, in_features: int, form: MatrixForm, *, in_layer: bool
    ) -> int:
        """Codes and scales of the packed form; floats are quantised."""
        if self._is_fast(in_layer):
            group = FAST_GROUP if in_features % FAST_GROUP == 0 else 32
            columns = -(-out_features // COLUMNS) * COLUMNS
            return columns * (-(-in_features // group) * group + 4)
        form = form if isinstance(form, GroupForm) else QUANTISED_FLOATS
        groups = -(-in_features // 32) * (32 // form.group_size)
        is_half = form.half_scales and form.group_size == 32
        per_group = (2 if is_half else 4) * (2 if form.has_minimum else 1)
        columns = -(-out_features // COLUMNS) * COLUMNS
        return columns * groups * (form.group_size * form.bits // 8 + per_group)

    def matrix_kind(self, form: MatrixForm, *, in_layer: bool) -> str:
        """Codes of bytes or of half of one, and what shares a scale."""
        if self._is_fast(in_layer):
            return "8 bits with a scale per output"
        kept = form if isinstance(form, GroupForm) else QUANTISED_FLOATS
        return f"{kept.bits} bits in groups of {kept.group_size}"

    def preparing_bytes(
        self, out_features: int, in_features: int, form: MatrixForm, *, in_layer: bool
    ) -> int:
        """Floats if it was read as such, grouped weights of a byte each, and the packed form."""
        floats = 0 if isinstance(form, GroupForm) else 4 * out_features * in_features
        group_size = (form if isinstance(form, GroupForm) else QUANTISED_FLOATS).group_size
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
    def one_call(self, owner: object = None) -> AbstractContextManager[Repeat]:
        """Halves of layers asked for inside run at its end, without the interpreter's lock."""
        return self._blocks.one_call(owner)

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
        return self._blocks.attention(x, weights, spec, rope, kv_cache, layer, batch)

    def mlp_block(self, x: FloatArray, weights: MlpWeights, eps: float) -> FloatArray:
        """x + W_down (silu(W_gate norm(x)) * W_up norm(x))."""
        return self._blocks.mlp(x, weights, eps)

    def rms_norm(self, x: FloatArray, weight: FloatArray, eps: float) -> FloatArray:
        """x / sqrt(mean(x^2) + eps) * weight over the last axis, in float32."""
        return rms_norm_rows(x, weight, eps)

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

    def candidates(
        self,
        x: FloatArray,
        norm: FloatArray,
        eps: float,
        head: Linear,
        rows: IntArray,
        query: CandidateQuery,
    ) -> Candidates:
        """What `query` asks about the logits of `rows`, found while they are computed."""
        packed = as_quantised(head)
        chosen = x[rows]
        check_floats("x", chosen, (len(query), packed.in_features))
        check_floats("norm", norm, (packed.in_features,))
        return call_with_query(
            self.library,
            query,
            partial(
                self._functions.chairlift_candidates_q8,
                self._pool,
                chosen.ctypes.data,
                len(chosen),
                norm.ctypes.data,
                eps,
                packed.packed.ctypes.data,
                pointer(packed.bias),
            ),
        )

    def _is_fast(self, in_layer: bool) -> bool:
        """The head and the table stay as they are."""
        return in_layer and self.quant_compute == "fast"


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
        weight if isinstance(weight, GroupedWeights) else quantise_matrix(from_stored(weight))
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
