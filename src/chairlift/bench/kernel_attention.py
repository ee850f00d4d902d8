"""Attention of a step alone, over a cache of bytes and over one of float32.

The limits are reading every key and value once, and the products: on bytes three for each element
of a query-key pair, since weights of 16 bits take two to meet a value; in float32 two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from chairlift.bench.kernel_case import FAR_BYTES, RING_BYTES, CaseGroup, KernelCase
from chairlift.bench.kernel_shapes import StepShapes
from chairlift.bench.machine_limits import LimitMeter, Work
from chairlift.bench.native_replay import CallRecorder, RotatingCalls
from chairlift.kernels.cpu.attention_int8 import KvInt8Ops
from chairlift.kernels.cpu.int8 import PAGE_TOKENS, Int8Kernels
from chairlift.kernels.cpu.ops import NativeKernels
from chairlift.kernels.interface import AttentionSpec, BatchLayout, Kernels, KvArray, RopeTable
from chairlift.models.model_config import ModelConfig
from chairlift.runner.kv_cache import KVCache

ATTENTION_INT8, ATTENTION_FLOAT32 = "attention int8", "attention float32"
INT8_PRODUCTS_PER_ELEMENT = 3
_MIN_LAYERS = 2


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


def step_layout(step: AttentionStep, block_size: int) -> BatchLayout:
    """Sequences whose blocks lie anywhere in the cache."""
    blocks = -(-step.context_len // block_size)
    shuffled = np.random.default_rng(0).permutation(step.num_sequences * blocks)
    tables = shuffled.astype(np.int32).reshape(step.num_sequences, blocks)
    at = np.arange(step.context_len - step.num_new_tokens, step.context_len, dtype=np.int32)
    slots = tables[:, at // block_size].astype(np.int64) * block_size + at % block_size
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


class LayerRing:
    """Layers of a cache in turn, as many as drive the first out of every processor cache.

    Args:
        cache: [num_blocks, num_layers, ...].
    """

    def __init__(self, cache: KvArray) -> None:
        self.cache = cache
        self._next = 0

    def advance(self) -> int:
        """The layer whose turn it is."""
        layer = self._next
        self._next = (layer + 1) % self.cache.shape[1]
        return layer

    def far(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The cache's pieces, and those of up to 16 MiB of layers from half way round on."""
        num_blocks, num_layers = self.cache.shape[:2]
        pieces = self.cache.reshape(num_blocks * num_layers, -1).view(np.uint8)
        count = min(num_layers, max(1, FAR_BYTES // (num_blocks * pieces.shape[1])))
        layers = (self._next + num_layers // 2 + np.arange(count)) % num_layers
        blocks = np.arange(num_blocks) * num_layers
        return pieces, (layers[:, None] + blocks[None, :]).reshape(-1)


def int8_attention_groups(
    shapes: StepShapes, kernels: Int8Kernels, meter: LimitMeter
) -> list[CaseGroup]:
    """Steps of decode and of prefill."""
    return [
        CaseGroup(
            family=ATTENTION_INT8,
            num_cases=1,
            build=partial(_int8_case, shapes, step, kernels, meter),
        )
        for step in attention_steps(shapes.config)
    ]


def float32_attention_groups(
    shapes: StepShapes, kernels: NativeKernels, meter: LimitMeter
) -> list[CaseGroup]:
    """The same in float32."""
    return [
        CaseGroup(
            family=ATTENTION_FLOAT32,
            num_cases=1,
            build=partial(_float32_case, shapes, step, kernels, meter),
        )
        for step in attention_steps(shapes.config)
    ]


def int8_ring(
    shapes: StepShapes, kernels: Int8Kernels, ops: KvInt8Ops, step: AttentionStep
) -> LayerRing:
    """A cache in which every sequence of the step has its keys and values."""
    spec = attention_spec(shapes.config)
    ring = _empty_ring(shapes, kernels, step, 1.0)
    rope = random_rope(shapes.config, step.context_len)
    qkv = random_qkv(spec, step.context_len)
    whole = AttentionStep(step.num_sequences, step.context_len, step.context_len)
    layout = step_layout(whole, PAGE_TOKENS)
    for first in range(0, whole.num_tokens, step.context_len):
        tokens = slice(first, first + step.context_len)
        alone = dataclasses.replace(
            layout,
            positions=layout.positions[tokens].copy(),
            slot_mapping=layout.slot_mapping[tokens].copy(),
        )
        for layer in range(ring.cache.shape[1]):
            ops.store_qkv(qkv, rope, ring.cache, layer, alone, spec)
    return ring


def float32_ring(shapes: StepShapes, kernels: NativeKernels, step: AttentionStep) -> LayerRing:
    """The same in float32; every block holds the same numbers."""
    ring = _empty_ring(shapes, kernels, step, 4.0)
    ring.cache[:] = np.random.default_rng(1).standard_normal(ring.cache.shape[2:], np.float32)
    return ring


def _empty_ring(
    shapes: StepShapes, kernels: Kernels, step: AttentionStep, weight_bytes: float
) -> LayerRing:
    """Memory such as the engine has it, with as many layers as a step reads between two uses of
    one, as far as processor caches reach.

    weight_bytes: of one weight.
    """
    config = shapes.config
    num_blocks = step.num_sequences * -(-step.context_len // PAGE_TOKENS)
    one = kernels.kv_block(1, config.num_kv_heads, config.head_dim, PAGE_TOKENS).num_bytes
    weights = sum(shape.num_weights * shape.count for shape in shapes.matrices)
    step_bytes = int(weights * weight_bytes) + num_blocks * one * config.num_layers
    num_layers = max(_MIN_LAYERS, -(-min(RING_BYTES, step_bytes) // (num_blocks * one)))
    block = kernels.kv_block(num_layers, config.num_kv_heads, config.head_dim, PAGE_TOKENS)
    return LayerRing(KVCache(block, num_blocks=num_blocks).blocks)


def random_qkv(spec: AttentionSpec, num_tokens: int) -> NDArray[np.float32]:
    """[num_tokens, (N + 2K) D] of a normal distribution."""
    width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    return np.random.default_rng(1).standard_normal((num_tokens, width), np.float32)


def layer_bytes(cache: KvArray) -> int:
    """Keys and values of one layer of a cache [num_blocks, num_layers, ...]."""
    return cache.nbytes // int(cache.shape[1])


def _int8_case(
    shapes: StepShapes, step: AttentionStep, kernels: Int8Kernels, meter: LimitMeter
) -> Iterator[KernelCase]:
    spec = attention_spec(shapes.config)
    recorder = CallRecorder(meter.library)
    ops = KvInt8Ops(recorder.library, meter.pool, PAGE_TOKENS)
    ring = int8_ring(shapes, kernels, ops, step)
    layout = step_layout(step, PAGE_TOKENS)
    rope = random_rope(shapes.config, step.context_len)
    qkv = random_qkv(spec, step.num_tokens)
    queries = ops.store_qkv(qkv, rope, ring.cache, 0, layout, spec)
    work = Work(
        int8_products=INT8_PRODUCTS_PER_ELEMENT * _num_elements(step, spec),
        read_bytes=layer_bytes(ring.cache),
    )
    call = RotatingCalls(
        recorder,
        ring.advance,
        lambda layer: ops.paged_attention(queries, ring.cache, layer, layout, spec),
    )
    yield _case(ATTENTION_INT8, shapes, step, ring, meter, work, call)


def _float32_case(
    shapes: StepShapes, step: AttentionStep, kernels: NativeKernels, meter: LimitMeter
) -> Iterator[KernelCase]:
    spec = attention_spec(shapes.config)
    ring = float32_ring(shapes, kernels, step)
    layout = step_layout(step, PAGE_TOKENS)
    heads = (step.num_tokens, spec.num_heads, spec.head_dim)
    query = np.random.default_rng(2).standard_normal(heads, np.float32)
    work = Work(fp32_macs=2 * _num_elements(step, spec), read_bytes=layer_bytes(ring.cache))

    def call() -> None:
        kernels.paged_attention(query, ring.cache, ring.advance(), layout, spec)

    yield _case(ATTENTION_FLOAT32, shapes, step, ring, meter, work, call)


def _num_elements(step: AttentionStep, spec: AttentionSpec) -> int:
    """Of the query heads, over all query-key pairs."""
    return step.num_pairs * spec.num_heads * spec.head_dim


def _case(
    family: str,
    shapes: StepShapes,
    step: AttentionStep,
    ring: LayerRing,
    meter: LimitMeter,
    work: Work,
    call: Callable[[], object],
) -> KernelCase:
    return KernelCase(
        family=family,
        label=step.label,
        num_rows=step.num_tokens,
        work=work,
        call=call,
        read_rate=lambda: meter.memory_read(*ring.far()),
        count=shapes.config.num_layers,
    )
