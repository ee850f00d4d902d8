"""The C structures of storing keys and values and of attending over them, field by field."""

from __future__ import annotations

import ctypes

from chairlift.kernels.cpu.library import SIZE
from chairlift.kernels.kv_dtype import KvDtype

POINTER = ctypes.c_void_p
KV_TYPES: dict[KvDtype, int] = {"int8": 1, "float16": 2, "bfloat16": 3, "float32": 4}
"""`CHAIRLIFT_KV_*` of the C header."""


class KvToCacheTask(ctypes.Structure):
    """`chairlift_kv_to_cache`."""

    _fields_ = (
        ("struct_size", SIZE),
        ("key", POINTER),
        ("value", POINTER),
        ("slots", POINTER),
        ("kv_cache", POINTER),
        ("key_stride", SIZE),
        ("value_stride", SIZE),
        ("block_stride", SIZE),
        ("num_blocks", SIZE),
        ("num_tokens", SIZE),
        ("block_size", SIZE),
        ("num_kv_heads", SIZE),
        ("head_dim", SIZE),
        ("kv_type", ctypes.c_int32),
    )


class QkvToCacheTask(ctypes.Structure):
    """`chairlift_qkv_to_cache`."""

    _fields_ = (
        ("struct_size", SIZE),
        ("qkv", POINTER),
        ("q_norm", POINTER),
        ("k_norm", POINTER),
        ("cos", POINTER),
        ("sin", POINTER),
        ("positions", POINTER),
        ("slots", POINTER),
        ("kv_cache", POINTER),
        ("query", POINTER),
        ("query_scales", POINTER),
        ("block_stride", SIZE),
        ("num_blocks", SIZE),
        ("num_tokens", SIZE),
        ("max_position", SIZE),
        ("block_size", SIZE),
        ("num_heads", SIZE),
        ("num_kv_heads", SIZE),
        ("head_dim", SIZE),
        ("rope_dim", SIZE),
        ("rope_interleaved", SIZE),
        ("norm_eps", ctypes.c_float),
        ("kv_type", ctypes.c_int32),
    )


class AttentionTask(ctypes.Structure):
    """`chairlift_attention`."""

    _fields_ = (
        ("struct_size", SIZE),
        ("query", POINTER),
        ("query_scales", POINTER),
        ("out", POINTER),
        ("kv_cache", POINTER),
        ("query_start", POINTER),
        ("context_lens", POINTER),
        ("block_tables", POINTER),
        ("block_stride", SIZE),
        ("num_blocks", SIZE),
        ("num_tokens", SIZE),
        ("num_sequences", SIZE),
        ("max_blocks", SIZE),
        ("block_size", SIZE),
        ("num_heads", SIZE),
        ("num_kv_heads", SIZE),
        ("head_dim", SIZE),
        ("sliding_window", SIZE),
        ("scale", ctypes.c_float),
        ("kv_type", ctypes.c_int32),
    )
