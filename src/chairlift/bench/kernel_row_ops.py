"""What a step does row by row: embedding, norms, quantising, rotating and storing keys and values.

Activations come from the cache that the operation before has left them in, so their limit is
arithmetic; it counts one operation per element and pass:

```
norm         square and add, times 1 / rms, times weight                    3
quantise     largest magnitude, times the inverse scale                     2
rotate       two multiply-adds for an element of queries and keys           2
```

Rows of the embedding are read from memory, and so is what is written in the KV cache: a line is
fetched before a part of it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from chairlift.bench.kernel_attention import (
    AttentionStep,
    LayerRing,
    attention_spec,
    float32_ring,
    int8_ring,
    layer_bytes,
    random_qkv,
    random_rope,
    step_layout,
)
from chairlift.bench.kernel_case import CaseGroup, KernelCase, Ring
from chairlift.bench.kernel_gemm import packed_ring, random_rows, random_weights, ring_bytes
from chairlift.bench.kernel_shapes import MatrixShape, StepShapes
from chairlift.bench.machine_limits import LimitMeter, Work
from chairlift.bench.native_replay import CallRecorder, RotatingCalls
from chairlift.kernels.cpu.attention_int8 import KvInt8Ops
from chairlift.kernels.cpu.int8 import COLUMNS, PAGE_TOKENS, Int8Kernels
from chairlift.kernels.cpu.linear_q8 import Q8Ops
from chairlift.kernels.cpu.ops import NativeKernels
from chairlift.kernels.grouped_weights import QUANTISED_FLOATS
from chairlift.kernels.interface import FloatArray, IntArray

NORM_INT8, NORM_FLOAT32 = "norm + quantise int8", "norm float32"
EMBED_INT8, EMBED_FLOAT32 = "embed int8", "embed float32"
STORE_INT8, STORE_FLOAT32 = "rope + KV write int8", "rope + KV write float32"
_NORM, _QUANTISE, _ROTATE = 3, 2, 2
_NORMS_PER_LAYER = 2


def int8_row_groups(
    shapes: StepShapes,
    kernels: Int8Kernels,
    meter: LimitMeter,
    rows: Sequence[int],
) -> list[CaseGroup]:
    """Rows through the backend on bytes."""
    linears = Q8Ops(meter.library, meter.pool)
    builds = {
        NORM_INT8: partial(_int8_norms, shapes, linears, meter, rows),
        STORE_INT8: partial(_int8_stores, shapes, kernels, meter, rows),
        EMBED_INT8: partial(_int8_embeds, shapes, kernels, linears, meter, rows),
    }
    return _groups(builds, len(rows))


def float32_row_groups(
    shapes: StepShapes,
    kernels: NativeKernels,
    meter: LimitMeter,
    rows: Sequence[int],
) -> list[CaseGroup]:
    """The same in float32, where numpy does much of it."""
    builds = {
        NORM_FLOAT32: partial(_float32_norms, shapes, kernels, rows),
        STORE_FLOAT32: partial(_float32_stores, shapes, kernels, meter, rows),
        EMBED_FLOAT32: partial(_float32_embeds, shapes, kernels, meter, rows),
    }
    return _groups(builds, len(rows))


def _groups(
    builds: Mapping[str, Callable[[], Iterator[KernelCase]]], num_cases: int
) -> list[CaseGroup]:
    return [
        CaseGroup(family=family, num_cases=num_cases, build=build)
        for family, build in builds.items()
    ]


def _int8_norms(
    shapes: StepShapes, ops: Q8Ops, meter: LimitMeter, rows: Sequence[int]
) -> Iterator[KernelCase]:
    """In front of the smallest matrix there is, not counted: the library has them nowhere else."""
    hidden, eps = shapes.config.hidden_size, shapes.config.rms_norm_eps
    smallest = MatrixShape("output", COLUMNS, hidden, QUANTISED_FLOATS, 1)
    packed = ops.pack(random_weights(smallest))
    norm = np.ones(hidden, np.float32)
    norm_linear = meter.library.functions.chairlift_norm_linear_q8

    def call_of(x: FloatArray) -> Callable[[], object]:
        out = np.zeros((len(x), COLUMNS), np.float32)
        rows_and_norm = (x.ctypes.data, len(x), norm.ctypes.data, eps)
        pointers = (packed.packed.ctypes.data, None, None, out.ctypes.data)

        def call(kept_alive: object = (x, norm, packed, out)) -> None:
            meter.library.check(norm_linear(meter.pool, *rows_and_norm, *pointers))

        return call

    for count in rows:
        yield KernelCase(
            family=NORM_INT8,
            label=f"{hidden} wide",
            num_rows=count,
            work=Work(fp32_macs=(_NORM + _QUANTISE) * count * hidden),
            call=call_of(random_rows(count, hidden)),
            count=_NORMS_PER_LAYER * shapes.config.num_layers,
        )


def _float32_norms(
    shapes: StepShapes, kernels: NativeKernels, rows: Sequence[int]
) -> Iterator[KernelCase]:
    hidden, eps = shapes.config.hidden_size, shapes.config.rms_norm_eps
    norm = np.ones(hidden, np.float32)
    for count in rows:
        yield KernelCase(
            family=NORM_FLOAT32,
            label=f"{hidden} wide",
            num_rows=count,
            work=Work(fp32_macs=_NORM * count * hidden),
            call=partial(kernels.rms_norm, random_rows(count, hidden), norm, eps),
            count=_NORMS_PER_LAYER * shapes.config.num_layers,
        )


def _int8_stores(
    shapes: StepShapes, kernels: Int8Kernels, meter: LimitMeter, rows: Sequence[int]
) -> Iterator[KernelCase]:
    config, spec = shapes.config, attention_spec(shapes.config)
    recorder = CallRecorder(meter.library)
    ops = KvInt8Ops(recorder.library, meter.pool, PAGE_TOKENS)

    def call_of(ring: LayerRing, step: AttentionStep) -> Callable[[], object]:
        layout = step_layout(step, ops.block_size)
        rope = random_rope(config, step.context_len)
        qkv = random_qkv(spec, step.num_tokens)
        return RotatingCalls(
            recorder,
            ring.advance,
            lambda layer: ops.store_qkv(qkv, rope, ring.cache, layer, layout, spec),
        )

    for count in rows:
        step = _storing_step(count)
        ring = int8_ring(shapes, kernels, ops, step)
        yield _store_case(STORE_INT8, shapes, step, ring, meter, _QUANTISE, call_of(ring, step))


def _float32_stores(
    shapes: StepShapes,
    kernels: NativeKernels,
    meter: LimitMeter,
    rows: Sequence[int],
) -> Iterator[KernelCase]:
    config, spec = shapes.config, attention_spec(shapes.config)

    def call_of(ring: LayerRing, step: AttentionStep) -> Callable[[], object]:
        layout = step_layout(step, PAGE_TOKENS)
        rope = random_rope(config, step.context_len)
        heads = random_qkv(spec, step.num_tokens).reshape(step.num_tokens, -1, spec.head_dim)
        queries, keys, values = np.split(
            heads, (spec.num_heads, spec.num_heads + spec.num_kv_heads), axis=1
        )

        def call() -> None:
            is_interleaved = spec.rope_interleaved
            kernels.rope(queries, rope, layout.positions, interleaved=is_interleaved)
            rotated = kernels.rope(keys, rope, layout.positions, interleaved=is_interleaved)
            kernels.store_kv(rotated, values, ring.cache, ring.advance(), layout.slot_mapping)

        return call

    for count in rows:
        step = _storing_step(count)
        ring = float32_ring(shapes, kernels, step)
        yield _store_case(STORE_FLOAT32, shapes, step, ring, meter, 0, call_of(ring, step))


def _storing_step(num_tokens: int) -> AttentionStep:
    """So many sequences of one token: every one begins a block."""
    return AttentionStep(num_tokens, 1, 1)


def _store_case(
    family: str,
    shapes: StepShapes,
    step: AttentionStep,
    ring: LayerRing,
    meter: LimitMeter,
    passes: int,
    call: Callable[[], object],
) -> KernelCase:
    config = shapes.config
    token_bytes = layer_bytes(ring.cache) / len(ring.cache) / PAGE_TOKENS
    rotated = (config.num_heads + config.num_kv_heads) * config.rope_dim
    stored = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return KernelCase(
        family=family,
        label=f"{config.num_heads} + 2 x {config.num_kv_heads} heads of {config.head_dim}",
        num_rows=step.num_tokens,
        work=Work(
            fp32_macs=step.num_tokens * (_ROTATE * rotated + passes * stored),
            read_bytes=step.num_tokens * token_bytes,
        ),
        call=call,
        read_rate=lambda: meter.memory_read(*ring.far()),
        count=config.num_layers,
    )


def _int8_embeds(
    shapes: StepShapes,
    kernels: Int8Kernels,
    ops: Q8Ops,
    meter: LimitMeter,
    rows: Sequence[int],
) -> Iterator[KernelCase]:
    shape = shapes.matrix("head")  # which the table is, unless a file has both
    packed = ops.pack(random_weights(shape))
    ring, copies = packed_ring(shapes, packed, shape.num_weights)

    def call_of(token_ids: IntArray) -> Callable[[], object]:
        return lambda: kernels.embed(copies[ring.advance()], token_ids)

    for count in rows:
        yield _embed_case(
            EMBED_INT8,
            shape,
            count,
            packed.num_bytes / shape.out_features,
            call_of(_token_ids(shape, count)),
            lambda: meter.memory_read(*ring.far()),
        )


def _float32_embeds(
    shapes: StepShapes, kernels: NativeKernels, meter: LimitMeter, rows: Sequence[int]
) -> Iterator[KernelCase]:
    shape = shapes.matrix("head")
    table = random_rows(shape.out_features, shape.in_features)
    ring = Ring(table.reshape(-1).view(np.uint8), ring_bytes(shapes, 4.0))
    tables = [copy.view(np.float32).reshape(table.shape) for copy in ring.copies()]

    def call_of(token_ids: IntArray) -> Callable[[], object]:
        return lambda: kernels.embed(tables[ring.advance()], token_ids)

    for count in rows:
        yield _embed_case(
            EMBED_FLOAT32,
            shape,
            count,
            4 * shape.in_features,
            call_of(_token_ids(shape, count)),
            lambda: meter.memory_read(*ring.far()),
        )


def _token_ids(shape: MatrixShape, count: int) -> IntArray:
    ids = np.random.default_rng(count).integers(0, shape.out_features, count)
    return ids.astype(np.int32)


def _embed_case(
    family: str,
    shape: MatrixShape,
    count: int,
    row_bytes: float,
    call: Callable[[], object],
    read_rate: Callable[[], float],
) -> KernelCase:
    return KernelCase(
        family=family,
        label=f"{shape.out_features} x {shape.in_features}",
        num_rows=count,
        work=Work(read_bytes=count * row_bytes),
        call=call,
        read_rate=read_rate,
    )
