"""The C structures of halves of layers, field by field."""

from __future__ import annotations

import ctypes

from chairlift.kernels.cpu.kv_tasks import POINTER, AttentionTask, QkvToCacheTask
from chairlift.kernels.cpu.library import SIZE


class AttentionBlockTask(ctypes.Structure):
    """`chairlift_attention_block`."""

    _fields_ = (
        ("struct_size", SIZE),
        ("x", POINTER),
        ("out", POINTER),
        ("norm", POINTER),
        ("qkv", POINTER),
        ("qkv_bias", POINTER),
        ("output", POINTER),
        ("output_bias", POINTER),
        ("q_norm", POINTER),
        ("k_norm", POINTER),
        ("kv_cache", POINTER),
        ("store", ctypes.POINTER(QkvToCacheTask)),
        ("attention", ctypes.POINTER(AttentionTask)),
    )


class MlpBlockTask(ctypes.Structure):
    """`chairlift_mlp_block`."""

    _fields_ = (
        ("struct_size", SIZE),
        ("x", POINTER),
        ("out", POINTER),
        ("norm", POINTER),
        ("gate_up", POINTER),
        ("gate_up_bias", POINTER),
        ("down", POINTER),
        ("down_bias", POINTER),
        ("rows", SIZE),
        ("eps", ctypes.c_float),
    )


class BlockTask(ctypes.Structure):
    """`chairlift_block`."""

    _fields_ = (
        ("attention", ctypes.POINTER(AttentionBlockTask)),
        ("mlp", ctypes.POINTER(MlpBlockTask)),
    )
