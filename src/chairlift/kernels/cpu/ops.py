"""The native backend: linear layers and paged attention in C++, the rest inherited from numpy.

Everything that reaches the library is checked here or there before memory is touched: a bad
argument is an exception, never a crash.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from chairlift.kernels.aligned import aligned_empty
from chairlift.kernels.cpu.library import AttentionTask, load_library
from chairlift.kernels.interface import AttentionSpec, BatchLayout, FloatArray, Linear, Matrix
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

    def __init__(self, num_threads: int) -> None:
        self.library = load_library()
        super().__init__(num_threads)
        self.name = "native"
        self._functions = self.library.functions
        self._pool = self.library.create_pool(num_threads)
        self._memory = WeightMemory()

    @property
    def pool(self) -> ctypes.c_void_p:
        """The threads, for other ops of the same library: they live as long as this handle."""
        return self._pool

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

    def paged_attention(
        self,
        query: FloatArray,
        kv_cache: FloatArray,
        layer: int,
        batch: BatchLayout,
        spec: AttentionSpec,
    ) -> FloatArray:
        """Causal attention of [T, N, D] queries over the stored context; [T, N, D]."""
        check_array("query", query, np.float32, (None, spec.num_heads, spec.head_dim))
        check_cache(kv_cache, layer, spec)
        check_layout(batch, len(query))
        result = np.empty_like(query)
        block_stride, _, value_offset, token_stride, _, _ = (
            stride // 4 for stride in kv_cache.strides
        )
        task = AttentionTask(
            struct_size=ctypes.sizeof(AttentionTask),
            query=query.ctypes.data,
            out=result.ctypes.data,
            kv_cache=kv_cache.ctypes.data + layer * kv_cache.strides[1],
            block_stride=block_stride,
            value_offset=value_offset,
            token_stride=token_stride,
            num_blocks=kv_cache.shape[0],
            query_start=batch.query_start.ctypes.data,
            context_lens=batch.context_lens.ctypes.data,
            block_tables=batch.block_tables.ctypes.data,
            positions=batch.positions.ctypes.data,
            num_tokens=len(query),
            num_sequences=len(batch.context_lens),
            max_blocks=batch.block_tables.shape[1],
            block_size=kv_cache.shape[3],
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            sliding_window=spec.sliding_window or 0,
            scale=spec.scale,
        )
        self.library.check(
            self._functions.chairlift_paged_attention_f32(self._pool, ctypes.byref(task))
        )
        return result


def check_array(
    name: str, array: NDArray[np.generic], dtype: DTypeLike, shape: tuple[int | None, ...]
) -> None:
    """Raise ValueError unless `array` is dense, of `dtype` and of `shape` (None: any length)."""
    if array.dtype != dtype:
        raise ValueError(f"{name} must be {np.dtype(dtype)}, not {array.dtype}")
    fits = array.ndim == len(shape) and all(
        wanted is None or wanted == actual
        for wanted, actual in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{name} must have shape {shape}, not {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous")


def check_cache(kv_cache: FloatArray, layer: int, spec: AttentionSpec) -> None:
    """Raise ValueError unless the cache fits the layer's attention and heads are dense."""
    if kv_cache.dtype != np.float32 or kv_cache.ndim != 6:
        raise ValueError(
            f"kv_cache must be float32 [.., 6 axes], not {kv_cache.dtype} {kv_cache.shape}"
        )
    _, num_layers, _, block_size, num_kv_heads, head_dim = kv_cache.shape
    if kv_cache.shape[2] != 2 or (num_kv_heads, head_dim) != (spec.num_kv_heads, spec.head_dim):
        raise ValueError(
            f"kv_cache {kv_cache.shape} does not fit {spec.num_kv_heads} heads of {spec.head_dim}"
        )
    if not 0 <= layer < num_layers:
        raise ValueError(f"layer {layer} is not one of the cache's {num_layers}")
    if kv_cache.strides[4:] != (4 * head_dim, 4) or any(s % 4 for s in kv_cache.strides):
        raise ValueError("kv_cache must have dense heads")


def check_layout(batch: BatchLayout, num_tokens: int) -> None:
    """Raise ValueError unless the layout's arrays fit together; the library checks the values."""
    num_sequences = len(batch.context_lens)
    check_array("query_start", batch.query_start, np.int32, (num_sequences + 1,))
    check_array("context_lens", batch.context_lens, np.int32, (num_sequences,))
    check_array("block_tables", batch.block_tables, np.int32, (num_sequences, None))
    check_array("positions", batch.positions, np.int32, (num_tokens,))
