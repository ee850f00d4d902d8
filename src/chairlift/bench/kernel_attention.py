"""Attention of a step alone, over a cache of bytes and over those of floats.

The limits are reading every key and value once, and the products: on bytes three for each element
of a query-key pair, since weights of 16 bits take two to meet a value; on floats two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from chairlift.bench.kernel_case import RING_BYTES, CaseGroup, KernelCase
from chairlift.bench.kernel_shapes import StepShapes
from chairlift.bench.machine_limits import Work
from chairlift.bench.recorded_ops import RecordedOps
from chairlift.kernels.aligned import aligned_empty
from chairlift.kernels.cpu.int8 import PAGE_TOKENS
from chairlift.kernels.cpu.ops import NativeKernels
from chairlift.kernels.interface import (
    AttentionSpec,
    BatchLayout,
    FloatArray,
    Kernels,
    KvArray,
    RopeTable,
)
from chairlift.kernels.kv_dtype import FLOAT_STORAGE, KvDtype, to_stored
from chairlift.models.model_config import ModelConfig
from chairlift.runner.kv_cache import KVCache

INT8_PRODUCTS_PER_ELEMENT, FP32_MACS_PER_ELEMENT = 3, 2
_MIN_LAYERS, _MAX_LAYERS = 2, 256


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """So many sequences that compute the last tokens of their context."""

    num_sequences: int
    num_new_tokens: int
    context_len: int

    @property
    def label(self) -> str:
        if self.num_new_tokens == 1:
            return f"decode {self.num_sequences} x {self.context_len}"
        return f"prefill {self.num_new_tokens}"

    @property
    def num_tokens(self) -> int:
        return self.num_sequences * self.num_new_tokens

    @property
    def num_pairs(self) -> int:
        """Of queries and keys: a token sees itself and all before it."""
        new, end = self.num_new_tokens, self.context_len
        return self.num_sequences * (new * end - new * (new - 1) // 2)


STEPS = (
    AttentionStep(1, 1, 576),
    AttentionStep(32, 1, 576),
    AttentionStep(128, 1, 576),
    AttentionStep(1, 512, 512),
)


def int8_attention_groups(shapes: StepShapes, ops: RecordedOps) -> list[CaseGroup]:
    """Steps of decode and of prefill."""
    return [
        CaseGroup(
            family="attention int8",
            num_cases=1,
            build=partial(_int8_case, shapes, step, ops),
        )
        for step in attention_steps(shapes.config)
    ]


def float_attention_groups(shapes: StepShapes, num_threads: int) -> list[CaseGroup]:
    """The same in float32 arithmetic, over each form of floats that a cache may have."""
    return [
        CaseGroup(
            family=f"attention {kv_dtype}",
            num_cases=1,
            build=partial(_float_case, shapes, step, kv_dtype, num_threads),
        )
        for kv_dtype in FLOAT_STORAGE
        for step in attention_steps(shapes.config)
    ]


def attention_steps(config: ModelConfig) -> list[AttentionStep]:
    """The steps above, cut to the model's context."""
    return [
        AttentionStep(
            step.num_sequences,
            min(step.num_new_tokens, config.max_position),
            min(step.context_len, config.max_position),
        )
        for step in STEPS
    ]


def attention_spec(config: ModelConfig) -> AttentionSpec:
    """The attention of a layer that sees the whole context."""
    return AttentionSpec(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.rms_norm_eps,
        scale=config.head_dim**-0.5,
        rope_dim=config.rope_dim,
        rope_interleaved=config.rope_interleaved,
    )


def step_layout(step: AttentionStep) -> BatchLayout:
    """Sequences whose blocks lie anywhere in the cache."""
    blocks = -(-step.context_len // PAGE_TOKENS)
    shuffled = np.random.default_rng(0).permutation(step.num_sequences * blocks)
    tables = shuffled.astype(np.int32).reshape(step.num_sequences, blocks)
    at = np.arange(step.context_len - step.num_new_tokens, step.context_len, dtype=np.int32)
    slots = tables[:, at // PAGE_TOKENS].astype(np.int64) * PAGE_TOKENS + at % PAGE_TOKENS
    return BatchLayout(
        query_start=np.arange(step.num_sequences + 1, dtype=np.int32) * step.num_new_tokens,
        context_lens=np.full(step.num_sequences, step.context_len, np.int32),
        block_tables=tables,
        positions=np.tile(at, step.num_sequences),
        slot_mapping=slots.reshape(-1),
    )


def random_rope(config: ModelConfig, num_positions: int) -> RopeTable:
    """Angles of any size: [num_positions, rope_dim / 2]."""
    rng = np.random.default_rng(2)
    angles = rng.uniform(0, 6, (num_positions, config.rope_dim // 2)).astype(np.float32)
    return RopeTable(cos=np.cos(angles), sin=np.sin(angles))


def random_qkv(spec: AttentionSpec, num_tokens: int) -> FloatArray:
    """[num_tokens, (N + 2K) D] of a normal distribution."""
    qkv = aligned_empty(num_tokens, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim)
    qkv[:] = np.random.default_rng(1).standard_normal(qkv.shape, np.float32)
    return qkv


class LayerRing:
    """Layers of a cache [num_blocks, num_layers, ...] in turn."""

    def __init__(self, cache: KvArray) -> None:
        self.cache = cache
        self.num_layers = int(cache.shape[1])
        self._next = 0

    @property
    def layer_bytes(self) -> int:
        """Keys and values of one layer."""
        return self.cache.nbytes // self.num_layers

    def advance(self) -> int:
        """The layer whose turn it is."""
        layer = self._next
        self._next = (layer + 1) % self.num_layers
        return layer


def int8_ring(shapes: StepShapes, ops: RecordedOps, step: AttentionStep) -> LayerRing:
    """A cache in which every sequence of the step has its keys and values."""
    spec = attention_spec(shapes.config)
    ring = _empty_ring(shapes, ops.kernels, step, 1.0)
    rope = random_rope(shapes.config, step.context_len)
    qkv = random_qkv(spec, step.context_len)
    whole = AttentionStep(step.num_sequences, step.context_len, step.context_len)
    layout = step_layout(whole)
    for first in range(0, whole.num_tokens, step.context_len):
        tokens = slice(first, first + step.context_len)
        alone = dataclasses.replace(
            layout,
            positions=layout.positions[tokens].copy(),
            slot_mapping=layout.slot_mapping[tokens].copy(),
        )
        for layer in range(ring.num_layers):
            ops.pages.store_qkv(qkv, rope, ring.cache, layer, alone, spec)
    return ring


def float_ring(shapes: StepShapes, kernels: NativeKernels, step: AttentionStep) -> LayerRing:
    """The same in floats; every block holds the same numbers."""
    ring = _empty_ring(shapes, kernels, step, 4.0)
    block = np.random.default_rng(1).standard_normal(ring.cache.shape[2:], np.float32)
    ring.cache[:] = to_stored(block, ring.cache.dtype)
    return ring


def _empty_ring(
    shapes: StepShapes, kernels: Kernels, step: AttentionStep, weight_bytes: float
) -> LayerRing:
    """Memory such as the engine's, with so many layers that the first is in no cache any more
    when its turn comes again; as many at most as if a step had read its weights meanwhile.
    """
    config = shapes.config
    heads = (config.num_kv_heads, config.head_dim)
    num_blocks = step.num_sequences * -(-step.context_len // PAGE_TOKENS)
    layer_bytes = num_blocks * kernels.kv_block(1, *heads, PAGE_TOKENS).num_bytes
    step_bytes = int(shapes.num_weights * weight_bytes) + layer_bytes * config.num_layers
    num_layers = -(-min(RING_BYTES, step_bytes) // layer_bytes)
    num_layers = min(max(num_layers, _MIN_LAYERS), _MAX_LAYERS)
    block = kernels.kv_block(num_layers, *heads, PAGE_TOKENS)
    return LayerRing(KVCache(block, num_blocks=num_blocks).blocks)


def _int8_case(shapes: StepShapes, step: AttentionStep, ops: RecordedOps) -> Iterator[KernelCase]:
    spec = attention_spec(shapes.config)
    ring = int8_ring(shapes, ops, step)
    layout = step_layout(step)
    rope = random_rope(shapes.config, step.context_len)
    qkv = random_qkv(spec, step.num_tokens)
    queries = ops.pages.store_qkv(qkv, rope, ring.cache, 0, layout, spec)
    work = Work(
        int8_products=INT8_PRODUCTS_PER_ELEMENT * _num_elements(step, spec),
        read_bytes=ring.layer_bytes,
    )
    call = ops.recorder.rotating(
        ring.advance,
        lambda layer: ops.pages.paged_attention(queries, ring.cache, layer, layout, spec),
    )
    yield _case(shapes, step, work, call)


def _float_case(
    shapes: StepShapes, step: AttentionStep, kv_dtype: KvDtype, num_threads: int
) -> Iterator[KernelCase]:
    spec, kernels = attention_spec(shapes.config), NativeKernels(num_threads, kv_dtype)
    ring = float_ring(shapes, kernels, step)
    layout = step_layout(step)
    query = random_qkv(spec, step.num_tokens).reshape(step.num_tokens, -1, spec.head_dim)
    query = np.ascontiguousarray(query[:, : spec.num_heads])
    work = Work(
        fp32_macs=FP32_MACS_PER_ELEMENT * _num_elements(step, spec), read_bytes=ring.layer_bytes
    )

    def call() -> object:
        return kernels.paged_attention(query, ring.cache, ring.advance(), layout, spec)

    yield _case(shapes, step, work, call)


def _num_elements(step: AttentionStep, spec: AttentionSpec) -> int:
    """Of the query heads, over all query-key pairs."""
    return step.num_pairs * spec.num_heads * spec.head_dim


def _case(
    shapes: StepShapes, step: AttentionStep, work: Work, call: Callable[[], object]
) -> KernelCase:
    return KernelCase(
        label=step.label,
        num_rows=step.num_tokens,
        work=work,
        call=call,
        count=shapes.config.num_layers,
    )
