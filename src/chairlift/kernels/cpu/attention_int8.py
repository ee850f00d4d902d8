"""Attention over a cache of bytes in the native library: storing keys and values, and attending.

The cache is opaque: uint8 [num_blocks, num_layers, piece_bytes], whose pieces the library cuts as
it likes.  Whole blocks may be copied and swapped.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chairlift.errors import ConfigError
from chairlift.kernels.aligned import ALIGNMENT_BYTES
from chairlift.kernels.cpu.array_checks import check_array
from chairlift.kernels.cpu.kv_tasks import KV_TYPES, AttentionTask, QkvToCacheTask
from chairlift.kernels.cpu.library import NativeLibrary
from chairlift.kernels.interface import AttentionSpec, BatchLayout, FloatArray, RopeTable

KV_INT8 = KV_TYPES["int8"]

ByteArray = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedQueries:
    """Queries as bytes: x = codes * scales."""

    codes: NDArray[np.int8]
    """[T, N, D]."""
    scales: FloatArray
    """[T, N]."""


class KvInt8Ops:
    """The ops on a cache of bytes of a loaded library, run by the threads of `pool`.

    Whoever made the pool keeps it alive.

    Args:
        block_size: tokens of a block, a multiple of 16.
    """

    def __init__(self, library: NativeLibrary, pool: ctypes.c_void_p, block_size: int) -> None:
        self._library = library
        self._functions = library.functions
        self._pool = pool
        self.block_size = block_size

    def piece_bytes(self, num_kv_heads: int, head_dim: int) -> int:
        """Bytes of the keys and values of one block and layer.

        Raises:
            ConfigError: such a cache cannot be stored as bytes.
        """
        size: int = self._functions.chairlift_kv_piece_bytes(
            KV_INT8, self.block_size, num_kv_heads, head_dim
        )
        if size == 0:
            raise ConfigError(self._library.last_error, field="kv_cache_dtype")
        return size

    def new_cache(
        self, num_blocks: int, num_layers: int, num_kv_heads: int, head_dim: int
    ) -> ByteArray:
        """Uninitialised [num_blocks, num_layers, piece_bytes] that starts on a cache line."""
        shape = (num_blocks, num_layers, self.piece_bytes(num_kv_heads, head_dim))
        buffer = np.empty(int(np.prod(shape)) + ALIGNMENT_BYTES, np.uint8)
        skip = -buffer.ctypes.data % ALIGNMENT_BYTES
        return buffer[skip : skip + int(np.prod(shape))].reshape(shape)

    def store_qkv(
        self,
        qkv: FloatArray,
        rope: RopeTable,
        kv_cache: ByteArray,
        layer: int,
        batch: BatchLayout,
        spec: AttentionSpec,
        q_norm: FloatArray | None = None,
        k_norm: FloatArray | None = None,
    ) -> QuantizedQueries:
        """Normalise, rotate and quantise [T, (N + 2K) D]: keys and values to their slots.

        Raises:
            ValueError: arrays do not fit each other, or a position or slot is out of range.
        """
        num_tokens, dim, half = len(qkv), spec.head_dim, spec.rope_dim // 2
        width = (spec.num_heads + 2 * spec.num_kv_heads) * dim
        check_array("qkv", qkv, np.float32, (None, width))
        check_array("cos", rope.cos, np.float32, (None, half))
        check_array("sin", rope.sin, np.float32, rope.cos.shape)
        check_array("positions", batch.positions, np.int32, (num_tokens,))
        check_array("slot_mapping", batch.slot_mapping, np.int64, (num_tokens,))
        for name, norm in (("q_norm", q_norm), ("k_norm", k_norm)):
            if norm is not None:
                check_array(name, norm, np.float32, (dim,))
        self._check_cache(kv_cache, layer, spec)
        queries = QuantizedQueries(
            codes=np.empty((num_tokens, spec.num_heads, dim), np.int8),
            scales=np.empty((num_tokens, spec.num_heads), np.float32),
        )
        task = QkvToCacheTask(
            struct_size=ctypes.sizeof(QkvToCacheTask),
            qkv=qkv.ctypes.data,
            q_norm=None if q_norm is None else q_norm.ctypes.data,
            k_norm=None if k_norm is None else k_norm.ctypes.data,
            cos=rope.cos.ctypes.data,
            sin=rope.sin.ctypes.data,
            positions=batch.positions.ctypes.data,
            slots=batch.slot_mapping.ctypes.data,
            kv_cache=kv_cache.ctypes.data + layer * kv_cache.strides[1],
            query=queries.codes.ctypes.data,
            query_scales=queries.scales.ctypes.data,
            block_stride=kv_cache.strides[0],
            num_blocks=len(kv_cache),
            num_tokens=num_tokens,
            max_position=len(rope.cos),
            block_size=self.block_size,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=dim,
            rope_dim=spec.rope_dim,
            rope_interleaved=spec.rope_interleaved,
            norm_eps=spec.rms_norm_eps,
            kv_type=KV_INT8,
        )
        self._library.check(self._functions.chairlift_store_qkv(self._pool, ctypes.byref(task)))
        return queries

    def paged_attention(
        self,
        queries: QuantizedQueries,
        kv_cache: ByteArray,
        layer: int,
        batch: BatchLayout,
        spec: AttentionSpec,
    ) -> FloatArray:
        """Causal attention of [T, N, D] queries over the stored context; [T, N, D].

        Raises:
            ValueError: arrays do not fit each other, or a block id is out of range.
        """
        num_tokens, num_sequences = len(queries.codes), len(batch.context_lens)
        check_array("query", queries.codes, np.int8, (None, spec.num_heads, spec.head_dim))
        check_array("query_scales", queries.scales, np.float32, (num_tokens, spec.num_heads))
        check_array("query_start", batch.query_start, np.int32, (num_sequences + 1,))
        check_array("context_lens", batch.context_lens, np.int32, (num_sequences,))
        check_array("block_tables", batch.block_tables, np.int32, (num_sequences, None))
        self._check_cache(kv_cache, layer, spec)
        result = np.empty(queries.codes.shape, np.float32)
        task = AttentionTask(
            struct_size=ctypes.sizeof(AttentionTask),
            query=queries.codes.ctypes.data,
            query_scales=queries.scales.ctypes.data,
            out=result.ctypes.data,
            kv_cache=kv_cache.ctypes.data + layer * kv_cache.strides[1],
            query_start=batch.query_start.ctypes.data,
            context_lens=batch.context_lens.ctypes.data,
            block_tables=batch.block_tables.ctypes.data,
            block_stride=kv_cache.strides[0],
            num_blocks=len(kv_cache),
            num_tokens=num_tokens,
            num_sequences=num_sequences,
            max_blocks=batch.block_tables.shape[1],
            block_size=self.block_size,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            sliding_window=spec.sliding_window or 0,
            scale=spec.scale,
            kv_type=KV_INT8,
        )
        self._library.check(
            self._functions.chairlift_paged_attention(self._pool, ctypes.byref(task))
        )
        return result

    def _check_cache(self, kv_cache: ByteArray, layer: int, spec: AttentionSpec) -> None:
        size = self.piece_bytes(spec.num_kv_heads, spec.head_dim)
        if kv_cache.dtype != np.uint8 or kv_cache.ndim != 3 or kv_cache.shape[2] != size:
            raise ValueError(
                f"kv_cache must be uint8 [.., .., {size}], not {kv_cache.dtype} {kv_cache.shape}"
            )
        if kv_cache.strides[2] != 1:
            raise ValueError("kv_cache must have dense pieces")
        if not 0 <= layer < kv_cache.shape[1]:
            raise ValueError(f"layer {layer} is not one of the cache's {kv_cache.shape[1]}")
