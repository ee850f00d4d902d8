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
from typing import Any

import numpy as np

from chairlift.bench.kernel_attention import (
    AttentionStep,
    LayerRing,
    attention_spec,
    float_ring,
    int8_ring,
    random_qkv,
    random_rope,
    step_layout,
)
from chairlift.bench.kernel_case import CaseGroup, KernelCase
from chairlift.bench.kernel_gemm import (
    Call,
    matrix_ring,
    packed_ring,
    random_rows,
    random_weights,
)
from chairlift.bench.kernel_shapes import MatrixShape, StepShapes
from chairlift.bench.machine_limits import Work
from chairlift.bench.recorded_ops import RecordedOps
from chairlift.kernels.aligned import aligned_empty
from chairlift.kernels.cpu.int8 import COLUMNS, PAGE_TOKENS
from chairlift.kernels.cpu.ops import NativeKernels
from chairlift.kernels.grouped_weights import QUANTISED_FLOATS
from chairlift.kernels.interface import FloatArray, IntArray
from chairlift.kernels.kv_dtype import FLOAT_STORAGE

_NORM, _QUANTISE, _ROTATE = 3, 2, 2
_NORMS_PER_LAYER = 2


def int8_row_groups(shapes: StepShapes, ops: RecordedOps, rows: Sequence[int]) -> list[CaseGroup]:
    """Rows through the backend on bytes."""
    builds = {
        "norm + quantise int8": partial(_int8_norms, shapes, ops, rows),
        "rope + KV write int8": partial(_int8_stores, shapes, ops, rows),
        "embed int8": partial(_int8_embeds, shapes, ops, rows),
    }
    return _groups(builds, len(rows))


def float_row_groups(
    shapes: StepShapes, kernels: NativeKernels, rows: Sequence[int]
) -> list[CaseGroup]:
    """The same in float32, where numpy does most of them, and tables of each kind of floats."""
    builds = {
        "norm float32": partial(_float32_norms, shapes, kernels, rows),
        "rope + KV write float32": partial(_float32_stores, shapes, kernels, rows),
    }
    for stored, dtype in FLOAT_STORAGE.items():
        builds[f"embed {stored}"] = partial(_float_embeds, shapes, kernels, rows, dtype)
    return _groups(builds, len(rows))


def _groups(
    builds: Mapping[str, Callable[[], Iterator[KernelCase]]], num_cases: int
) -> list[CaseGroup]:
    return [
        CaseGroup(family=family, num_cases=num_cases, build=build)
        for family, build in builds.items()
    ]


def _int8_norms(shapes: StepShapes, ops: RecordedOps, rows: Sequence[int]) -> Iterator[KernelCase]:
    """In front of the smallest matrix there is, not counted: the library has them nowhere else."""
    hidden, eps = shapes.config.hidden_size, shapes.config.rms_norm_eps
    smallest = MatrixShape("head", COLUMNS, hidden, QUANTISED_FLOATS, 1)
    packed = ops.linears.pack(random_weights(smallest))
    norm = np.ones(hidden, np.float32)
    norm_linear = ops.library.functions.chairlift_norm_linear_q8

    def call_of(x: FloatArray) -> Call:
        out = aligned_empty(len(x), COLUMNS)

        def op() -> object:
            pointers = (packed.packed.ctypes.data, None, None, out.ctypes.data)
            rows_and_norm = (x.ctypes.data, len(x), norm.ctypes.data, eps)
            ops.library.check(norm_linear(ops.pool, *rows_and_norm, *pointers))
            return out

        return ops.recorder.replay(op)

    for count in rows:
        yield KernelCase(
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
            label=f"{hidden} wide",
            num_rows=count,
            work=Work(fp32_macs=_NORM * count * hidden),
            call=partial(kernels.rms_norm, random_rows(count, hidden), norm, eps),
            count=_NORMS_PER_LAYER * shapes.config.num_layers,
        )


def _int8_stores(shapes: StepShapes, ops: RecordedOps, rows: Sequence[int]) -> Iterator[KernelCase]:
    spec = attention_spec(shapes.config)

    def call_of(ring: LayerRing, step: AttentionStep) -> Call:
        layout, qkv = step_layout(step), random_qkv(spec, step.num_tokens)
        rope = random_rope(shapes.config, step.context_len)
        return ops.recorder.rotating(
            ring.advance,
            lambda layer: ops.pages.store_qkv(qkv, rope, ring.cache, layer, layout, spec),
        )

    for count in rows:
        step = _storing_step(count)
        ring = int8_ring(shapes, ops, step)
        yield _store_case(shapes, step, ring, call_of(ring, step), passes=_QUANTISE)


def _float32_stores(
    shapes: StepShapes, kernels: NativeKernels, rows: Sequence[int]
) -> Iterator[KernelCase]:
    spec = attention_spec(shapes.config)

    def call_of(ring: LayerRing, step: AttentionStep) -> Call:
        layout = step_layout(step)
        rope = random_rope(shapes.config, step.context_len)
        heads = random_qkv(spec, step.num_tokens).reshape(step.num_tokens, -1, spec.head_dim)
        ends = (spec.num_heads, spec.num_heads + spec.num_kv_heads)
        queries, keys, values = np.split(heads, ends, axis=1)
        rotate = partial(
            kernels.rope,
            rope=rope,
            positions=layout.positions,
            interleaved=spec.rope_interleaved,
        )

        def call() -> None:
            rotate(queries)
            kernels.store_kv(rotate(keys), values, ring.cache, ring.advance(), layout.slot_mapping)

        return call

    for count in rows:
        step = _storing_step(count)
        ring = float_ring(shapes, kernels, step)
        yield _store_case(shapes, step, ring, call_of(ring, step), passes=0)


def _storing_step(num_tokens: int) -> AttentionStep:
    """So many sequences of one token: every one begins a block."""
    return AttentionStep(num_tokens, 1, 1)


def _store_case(
    shapes: StepShapes, step: AttentionStep, ring: LayerRing, call: Call, *, passes: int
) -> KernelCase:
    """passes: over every element that is stored, and over the queries."""
    config = shapes.config
    rotated = (config.num_heads + config.num_kv_heads) * config.rope_dim
    stored = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return KernelCase(
        label=f"{config.num_heads} + 2 x {config.num_kv_heads} heads of {config.head_dim}",
        num_rows=step.num_tokens,
        work=Work(
            fp32_macs=step.num_tokens * (_ROTATE * rotated + passes * stored),
            read_bytes=ring.layer_bytes / PAGE_TOKENS,
        ),
        call=call,
        count=config.num_layers,
    )


def _int8_embeds(shapes: StepShapes, ops: RecordedOps, rows: Sequence[int]) -> Iterator[KernelCase]:
    shape = shapes.matrix("head")  # which the table is, unless a file has both
    packed = ops.linears.pack(random_weights(shape))
    ring, copies = packed_ring(shapes, packed, shape.num_weights)

    def call_of(token_ids: IntArray) -> Call:
        return lambda: ops.kernels.embed(copies[ring.advance()], token_ids)

    for count in rows:
        row_bytes = packed.num_bytes / shape.out_features
        yield _embed_case(shape, count, row_bytes, call_of(_token_ids(shape, count)))


def _float_embeds(
    shapes: StepShapes, kernels: NativeKernels, rows: Sequence[int], dtype: np.dtype[Any]
) -> Iterator[KernelCase]:
    shape = shapes.matrix("head")
    ring, tables = matrix_ring(shapes, shape, kernels, dtype)
    row_bytes = dtype.itemsize * shape.in_features

    def call_of(token_ids: IntArray) -> Call:
        return lambda: kernels.embed(tables[ring.advance()], token_ids)

    for count in rows:
        yield _embed_case(shape, count, row_bytes, call_of(_token_ids(shape, count)))


def _token_ids(shape: MatrixShape, count: int) -> IntArray:
    ids = np.random.default_rng(count).integers(0, shape.out_features, count)
    return ids.astype(np.int32)


def _embed_case(shape: MatrixShape, count: int, row_bytes: float, call: Call) -> KernelCase:
    return KernelCase(
        label=f"table {shape.out_features} x {shape.in_features}",
        num_rows=count,
        work=Work(read_bytes=count * row_bytes),
        call=call,
    )
