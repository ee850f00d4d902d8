"""The native backend: linear layers and paged attention in C++, the rest inherited from numpy.

Arithmetic is float32.  Weights of 16 bits stay so in memory and are read as the floats that they
stand for: results have the bits that a float32 copy would give.

Everything that reaches the library is checked here or there before memory is touched: a bad
argument is an exception, never a crash.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.aligned import aligned_empty
from chairlift.kernels.candidates import CandidateQuery, Candidates
from chairlift.kernels.cpu.array_checks import check_array
from chairlift.kernels.cpu.candidates import call_with_query
from chairlift.kernels.cpu.float_pages import block_size_of, float_page_block
from chairlift.kernels.cpu.kv_tasks import KV_TYPES, AttentionTask, KvToCacheTask
from chairlift.kernels.cpu.library import load_library
from chairlift.kernels.grouped_weights import GroupForm
from chairlift.kernels.interface import (
    AttentionSpec,
    BatchLayout,
    FloatArray,
    IntArray,
    KvArray,
    KvBlockFormat,
    Linear,
    Matrix,
    MatrixForm,
    Table,
)
from chairlift.kernels.kv_dtype import KvDtype, kv_dtype_of
from chairlift.kernels.reference import ReferenceKernels, stack_linear
from chairlift.kernels.stored_floats import ShortForm, short_form
from chairlift.kernels.weight_memory import WeightMemory

PANEL_WIDTH = 32
WEIGHT_TYPES: dict[ShortForm | None, int] = {None: 0, "float16": 1, "bfloat16": 2}
"""As the library numbers them; None: float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLinear:
    """A matrix packed by the library in panels of 32 outputs."""

    packed: NDArray[Any]
    """Numbers of 32 bits or, if it has a form, of 16."""
    form: ShortForm | None
    bias: FloatArray | None
    in_features: int
    out_features: int

    @property
    def num_bytes(self) -> int:
        return self.packed.nbytes

    @property
    def matrix(self) -> tuple[int, int, int | None, int, int]:
        """As the library's functions want it: address, type, bias and shape."""
        bias = None if self.bias is None else self.bias.ctypes.data
        address, weight_type = self.packed.ctypes.data, WEIGHT_TYPES[self.form]
        return address, weight_type, bias, self.out_features, self.in_features


class NativeKernels(ReferenceKernels):
    """The backend on the native library; `num_threads` includes the calling thread.

    Raises:
        LibraryUnavailableError: the library is absent or does not load.
    """

    def __init__(self, num_threads: int, kv_dtype: KvDtype = "float32") -> None:
        self.library = load_library()
        super().__init__(num_threads, kv_dtype)
        self.name = "native"
        self._functions = self.library.functions
        self._pool = self.library.create_pool(num_threads)
        self._memory = WeightMemory()

    @property
    def pool(self) -> ctypes.c_void_p:
        """The threads, for other ops of the same library: they live as long as this handle."""
        return self._pool

    def kv_block(
        self, num_layers: int, num_kv_heads: int, head_dim: int, block_size: int
    ) -> KvBlockFormat:
        """[num_layers, numbers of a piece], in pages that only the library can read."""
        return float_page_block(
            self.library, num_layers, num_kv_heads, head_dim, block_size, self.kv_dtype
        )

    @property
    def packs_stored(self) -> bool:
        return True

    @property
    def shares_table(self) -> bool:
        return True

    def matrix_bytes(
        self, out_features: int, in_features: int, form: MatrixForm, *, in_layer: bool
    ) -> int:
        """Whole panels, of float32 unless the file has floats of 16 bits."""
        columns = -(-out_features // PANEL_WIDTH) * PANEL_WIDTH
        return columns * in_features * (4 if _kept_form(form) is None else 2)

    def matrix_kind(self, form: MatrixForm, *, in_layer: bool) -> str:
        """The floats that they are."""
        return _kept_form(form) or "float32"

    def preparing_bytes(
        self, out_features: int, in_features: int, form: MatrixForm, *, in_layer: bool
    ) -> int:
        """The packed form, beside floats if the file is quantised; others are read in place."""
        floats = 4 * out_features * in_features if isinstance(form, GroupForm) else 0
        return floats + self.matrix_bytes(out_features, in_features, form, in_layer=in_layer)

    def prepare_linear(
        self, weights: Sequence[Matrix], biases: Sequence[FloatArray | None]
    ) -> Linear:
        """Stack matrices [out_i, in] and pack the result.  Missing biases are zero."""
        stacked, bias = stack_linear(weights, biases)
        matrix: NDArray[Any] = np.ascontiguousarray(stacked)
        form = short_form(matrix)
        size = self._functions.chairlift_linear_f32_size(*matrix.shape)
        if size == 0:
            raise ValueError(self.library.last_error)
        packed = self._memory.take(matrix.itemsize * size).view(matrix.dtype)
        self.library.check(
            self._functions.chairlift_linear_f32_pack(
                self._pool,
                matrix.ctypes.data,
                WEIGHT_TYPES[form],
                *matrix.shape,
                packed.ctypes.data,
            )
        )
        out_features, in_features = matrix.shape
        return NativeLinear(
            packed=packed, form=form, bias=bias, in_features=in_features, out_features=out_features
        )

    def prepare_table(self, table: Matrix, head: Linear | None) -> Table:
        """The packed head itself if it is the same matrix."""
        return self.prepare_linear([table], [None]) if head is None else head

    def embed(self, table: Table, token_ids: IntArray) -> FloatArray:
        """Rows of the packed `table`; [T, H]."""
        packed = as_native(table)
        check_array("token_ids", token_ids, np.int32, (None,))
        result = aligned_empty(len(token_ids), packed.in_features)
        self.library.check(
            self._functions.chairlift_rows_f32(
                self._pool,
                packed.packed.ctypes.data,
                WEIGHT_TYPES[packed.form],
                packed.out_features,
                packed.in_features,
                token_ids.ctypes.data,
                len(token_ids),
                result.ctypes.data,
            )
        )
        return result

    def linear(self, x: FloatArray, weight: Linear) -> FloatArray:
        """x W^T + b of [T, in]; [T, out]."""
        packed = as_native(weight)
        check_array("x", x, np.float32, (None, packed.in_features))
        result = aligned_empty(len(x), packed.out_features)
        self.library.check(
            self._functions.chairlift_linear_f32(
                self._pool, x.ctypes.data, len(x), *packed.matrix, result.ctypes.data
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
        packed = as_native(head)
        normed = self.rms_norm(x[rows], norm, eps)
        check_array("x", normed, np.float32, (len(query), packed.in_features))
        return call_with_query(
            self.library,
            query,
            partial(
                self._functions.chairlift_candidates_f32,
                self._pool,
                normed.ctypes.data,
                len(normed),
                *packed.matrix,
            ),
        )

    def store_kv(
        self,
        key: FloatArray,
        value: FloatArray,
        kv_cache: KvArray,
        layer: int,
        slot_mapping: NDArray[np.int64],
    ) -> None:
        """Write [T, K, D] keys and values, whose heads are dense, to their slots."""
        block_size = block_size_of(kv_cache, layer, *key.shape[1:])
        for name, rows in (("key", key), ("value", value)):
            check_rows(name, rows, key.shape)
        check_array("slot_mapping", slot_mapping, np.int64, (len(key),))
        task = KvToCacheTask(
            struct_size=ctypes.sizeof(KvToCacheTask),
            key=key.ctypes.data,
            value=value.ctypes.data,
            slots=slot_mapping.ctypes.data,
            kv_cache=kv_cache.ctypes.data + layer * kv_cache.strides[1],
            key_stride=key.strides[0] // 4,
            value_stride=value.strides[0] // 4,
            block_stride=kv_cache.strides[0],
            num_blocks=len(kv_cache),
            num_tokens=len(key),
            block_size=block_size,
            num_kv_heads=key.shape[1],
            head_dim=key.shape[2],
            kv_type=KV_TYPES[kv_dtype_of(kv_cache)],
        )
        self.library.check(self._functions.chairlift_store_kv(self._pool, ctypes.byref(task)))

    def paged_attention(
        self,
        query: FloatArray,
        kv_cache: KvArray,
        layer: int,
        batch: BatchLayout,
        spec: AttentionSpec,
    ) -> FloatArray:
        """Causal attention of [T, N, D] queries over the stored context; [T, N, D]."""
        check_array("query", query, np.float32, (None, spec.num_heads, spec.head_dim))
        block_size = block_size_of(kv_cache, layer, spec.num_kv_heads, spec.head_dim)
        check_layout(batch, len(query))
        result = np.empty_like(query)
        task = AttentionTask(
            struct_size=ctypes.sizeof(AttentionTask),
            query=query.ctypes.data,
            out=result.ctypes.data,
            kv_cache=kv_cache.ctypes.data + layer * kv_cache.strides[1],
            block_stride=kv_cache.strides[0],
            num_blocks=len(kv_cache),
            query_start=batch.query_start.ctypes.data,
            context_lens=batch.context_lens.ctypes.data,
            block_tables=batch.block_tables.ctypes.data,
            num_tokens=len(query),
            num_sequences=len(batch.context_lens),
            max_blocks=batch.block_tables.shape[1],
            block_size=block_size,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            sliding_window=spec.sliding_window or 0,
            scale=spec.scale,
            kv_type=KV_TYPES[kv_dtype_of(kv_cache)],
        )
        self.library.check(
            self._functions.chairlift_paged_attention(self._pool, ctypes.byref(task))
        )
        return result


def as_native(linear: Table) -> NativeLinear:
    """Raises TypeError if another backend prepared it."""
    if not isinstance(linear, NativeLinear):
        raise TypeError(f"this matrix was prepared by another backend: {type(linear).__name__}")
    return linear


def _kept_form(form: MatrixForm) -> ShortForm | None:
    """What a matrix of a file stays; quantised ones become float32."""
    return None if isinstance(form, GroupForm) else form


def check_rows(name: str, rows: FloatArray, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless `rows` [T, K, D] are float32 of `shape` with dense heads."""
    if rows.dtype != np.float32 or rows.shape != shape:
        raise ValueError(f"{name} must be float32 {shape}, not {rows.dtype} {rows.shape}")
    if not rows[:1].flags.c_contiguous or rows.strides[0] % 4:
        raise ValueError(f"{name} must have dense heads")


def check_layout(batch: BatchLayout, num_tokens: int) -> None:
    """Raise ValueError unless the layout's arrays fit together; the library checks the values."""
    num_sequences = len(batch.context_lens)
    check_array("query_start", batch.query_start, np.int32, (num_sequences + 1,))
    check_array("context_lens", batch.context_lens, np.int32, (num_sequences,))
    check_array("block_tables", batch.block_tables, np.int32, (num_sequences, None))
    check_array("positions", batch.positions, np.int32, (num_tokens,))
