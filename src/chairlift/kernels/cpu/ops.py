"""The native backend: linear layers and paged attention in C++, the rest inherited from numpy.

Everything that reaches the library is checked here or there before memory is touched: a bad
argument is an exception, never a crash.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.aligned import aligned_empty
from chairlift.kernels.candidates import CandidateQuery, Candidates
from chairlift.kernels.cpu.array_checks import check_array
from chairlift.kernels.cpu.candidates import call_with_query
from chairlift.kernels.cpu.float_pages import block_size_of, float_page_block
from chairlift.kernels.cpu.kv_tasks import KV_TYPES, AttentionTask, KvToCacheTask
from chairlift.kernels.cpu.library import load_library
from chairlift.kernels.interface import (
    AttentionSpec,
    BatchLayout,
    FloatArray,
    IntArray,
    KvArray,
    KvBlockFormat,
    Linear,
    Matrix,
)
from chairlift.kernels.kv_dtype import KvDtype, kv_dtype_of
from chairlift.kernels.reference import ReferenceKernels, stack_linear
from chairlift.kernels.weight_memory import WeightMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLinear:
    """A matrix packed by the library in panels [ceil(out / 32)][in][32]."""

    packed: FloatArray
    bias: FloatArray | None
    in_features: int
    out_features: int

    @property
    def num_bytes(self) -> int:
        return self.packed.nbytes


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

    def prepare_linear(
        self, weights: Sequence[Matrix], biases: Sequence[FloatArray | None]
    ) -> Linear:
        """Stack matrices [out_i, in] and pack the result.  Missing biases are zero."""
        matrix, bias = stack_linear(weights, biases)
        matrix = np.ascontiguousarray(matrix)
        size = self._functions.chairlift_linear_f32_size(*matrix.shape)
        if size == 0:
            raise ValueError(self.library.last_error)
        packed = self._memory.take(4 * size).view(np.float32)
        self.library.check(
            self._functions.chairlift_linear_f32_pack(
                self._pool, matrix.ctypes.data, *matrix.shape, packed.ctypes.data
            )
        )
        out_features, in_features = matrix.shape
        return NativeLinear(
            packed=packed, bias=bias, in_features=in_features, out_features=out_features
        )

    def linear(self, x: FloatArray, weight: Linear) -> FloatArray:
        """x W^T + b of [T, in]; [T, out]."""
        if not isinstance(weight, NativeLinear):
            raise TypeError(f"this matrix was prepared by another backend: {type(weight).__name__}")
        check_array("x", x, np.float32, (None, weight.in_features))
        result = aligned_empty(len(x), weight.out_features)
        self.library.check(
            self._functions.chairlift_linear_f32(
                self._pool,
                x.ctypes.data,
                len(x),
                weight.packed.ctypes.data,
                None if weight.bias is None else weight.bias.ctypes.data,
                weight.out_features,
                weight.in_features,
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
        if not isinstance(head, NativeLinear):
            raise TypeError(f"this matrix was prepared by another backend: {type(head).__name__}")
        normed = self.rms_norm(x[rows], norm, eps)
        check_array("x", normed, np.float32, (len(query), head.in_features))
        return call_with_query(
            self.library,
            query,
            partial(
                self._functions.chairlift_candidates_f32,
                self._pool,
                normed.ctypes.data,
                len(normed),
                head.packed.ctypes.data,
                None if head.bias is None else head.bias.ctypes.data,
                head.out_features,
                head.in_features,
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
