"""Matrix products of a step at several numbers of rows: on bytes, exact and fast, and on floats.

The times on bytes include quantising the rows and unpacking the weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from chairlift.bench.kernel_case import RING_BYTES, CaseGroup, KernelCase, Ring
from chairlift.bench.kernel_shapes import MatrixShape, StepShapes
from chairlift.bench.machine_limits import Work
from chairlift.bench.recorded_ops import RecordedOps
from chairlift.kernels.aligned import aligned_empty
from chairlift.kernels.cpu.int8 import INTERLEAVE
from chairlift.kernels.cpu.linear_q8 import QuantizedLinear
from chairlift.kernels.cpu.ops import NativeKernels, NativeLinear
from chairlift.kernels.grouped_weights import GroupedWeights
from chairlift.kernels.interface import FloatArray, MlpWeights
from chairlift.kernels.kv_dtype import FLOAT_STORAGE, to_stored

Call = Callable[[], object]

_FLOAT32 = FLOAT_STORAGE["float32"]


def int8_groups(
    shapes: StepShapes, ops: RecordedOps, rows: Sequence[int], *, fast: bool
) -> list[CaseGroup]:
    """Every matrix of a step alone, then gate, up, silu and down in one call."""
    mode = "fast" if fast else "exact"
    products = [
        CaseGroup(
            family=f"GEMM {mode} int8",
            num_cases=len(rows),
            build=partial(_int8_products, shapes, shape, ops, rows, fast),
        )
        for shape in shapes.matrices
    ]
    whole = CaseGroup(
        family=f"MLP {mode} int8",
        num_cases=len(rows),
        build=partial(_int8_mlps, shapes, ops, rows, fast),
    )
    return [*products, whole]


def float_groups(
    shapes: StepShapes, kernels: NativeKernels, rows: Sequence[int]
) -> list[CaseGroup]:
    """Every matrix stored as each kind of floats, then a whole MLP, all computed in float32."""
    products = [
        CaseGroup(
            family=f"GEMM {stored}",
            num_cases=len(rows),
            build=partial(_float_products, shapes, shape, kernels, rows, dtype),
        )
        for stored, dtype in FLOAT_STORAGE.items()
        for shape in shapes.matrices
    ]
    whole = CaseGroup(
        family="MLP float32",
        num_cases=len(rows),
        build=partial(_float32_mlps, shapes, kernels, rows),
    )
    return [*products, whole]


def random_weights(shape: MatrixShape) -> GroupedWeights:
    """A matrix of the shape and form, every code as likely as any other."""
    rng = np.random.default_rng(0)
    form = shape.form
    groups = (shape.out_features, -(-shape.in_features // form.group_size))
    precision = np.float16 if form.half_scales else np.float32
    scales = rng.uniform(0.01, 0.1, groups).astype(precision).astype(np.float32)
    mins = rng.uniform(-0.5, 0.1, groups).astype(precision).astype(np.float32)
    zero_point = np.float32(-(1 << (form.bits - 1)))
    return GroupedWeights(
        codes=rng.integers(0, 1 << form.bits, (shape.out_features, shape.in_features), np.uint8),
        scales=scales,
        mins=mins if form.has_minimum else scales * zero_point,
        bits=form.bits,
        group_size=form.group_size,
    )


def random_rows(num_rows: int, width: int) -> FloatArray:
    """[num_rows, width] of a normal distribution, where the engine's arrays lie."""
    rows = aligned_empty(num_rows, width)
    rows[:] = np.random.default_rng(1).standard_normal((num_rows, width), np.float32)
    return rows


def ring_bytes(shapes: StepShapes, bytes_per_weight: float) -> int:
    """What a step's weights take, as far as it matters: a small model does stay in cache."""
    return min(RING_BYTES, int(shapes.num_weights * bytes_per_weight))


def packed_ring(
    shapes: StepShapes, packed: QuantizedLinear, num_weights: int
) -> tuple[Ring, list[QuantizedLinear]]:
    """Copies of a packed matrix, and the ring that says whose turn it is."""
    ring = Ring(packed.packed, ring_bytes(shapes, packed.num_bytes / num_weights))
    return ring, [dataclasses.replace(packed, packed=copy) for copy in ring.copies()]


def _int8_products(
    shapes: StepShapes, shape: MatrixShape, ops: RecordedOps, rows: Sequence[int], fast: bool
) -> Iterator[KernelCase]:
    packed = ops.linears.pack(random_weights(shape), per_channel=fast)
    ring, copies = packed_ring(shapes, packed, shape.num_weights)

    def call_of(x: FloatArray) -> Call:
        out = aligned_empty(len(x), shape.out_features)
        return ops.recorder.rotating(
            ring.advance, lambda index: ops.linears.linear(x, copies[index], out=out)
        )

    for count in rows:
        yield KernelCase(
            label=f"{shape.label}, {8 if fast else shape.form.bits} bits",
            num_rows=count,
            work=Work(int8_products=count * shape.num_weights, read_bytes=packed.num_bytes),
            call=call_of(random_rows(count, shape.in_features)),
            count=shape.count,
        )


def _int8_mlps(
    shapes: StepShapes, ops: RecordedOps, rows: Sequence[int], fast: bool
) -> Iterator[KernelCase]:
    gate_up, down = shapes.matrix("gate-up"), shapes.matrix("down")
    first = ops.linears.pack(random_weights(gate_up), interleave=INTERLEAVE, per_channel=fast)
    second = ops.linears.pack(random_weights(down), per_channel=fast)
    num_weights = gate_up.num_weights + down.num_weights
    ring, gate_ups = packed_ring(shapes, first, gate_up.num_weights)
    copies = Ring(second.packed, len(ring) * second.num_bytes).copies()
    downs = [dataclasses.replace(second, packed=copy) for copy in copies]

    def call_of(x: FloatArray) -> Call:
        return ops.recorder.rotating(
            ring.advance, lambda index: ops.linears.mlp(x, gate_ups[index], downs[index])
        )

    for count in rows:
        yield KernelCase(
            label="gate, up, silu, down",
            num_rows=count,
            work=Work(
                int8_products=count * num_weights, read_bytes=first.num_bytes + second.num_bytes
            ),
            call=call_of(random_rows(count, gate_up.in_features)),
            count=gate_up.count,
        )


def _float_products(
    shapes: StepShapes,
    shape: MatrixShape,
    kernels: NativeKernels,
    rows: Sequence[int],
    dtype: np.dtype[Any],
) -> Iterator[KernelCase]:
    ring, copies = matrix_ring(shapes, shape, kernels, dtype)

    def call_of(x: FloatArray) -> Call:
        return lambda: kernels.linear(x, copies[ring.advance()])

    for count in rows:
        yield KernelCase(
            label=shape.label,
            num_rows=count,
            work=Work(fp32_macs=count * shape.num_weights, read_bytes=copies[0].num_bytes),
            call=call_of(random_rows(count, shape.in_features)),
            count=shape.count,
        )


def _float32_mlps(
    shapes: StepShapes, kernels: NativeKernels, rows: Sequence[int]
) -> Iterator[KernelCase]:
    gate_up, down = shapes.matrix("gate-up"), shapes.matrix("down")
    ring, gate_ups = matrix_ring(shapes, gate_up, kernels, _FLOAT32)
    _, downs = matrix_ring(shapes, down, kernels, _FLOAT32)
    norm = np.ones(gate_up.in_features, np.float32)
    weights = [
        MlpWeights(norm=norm, gate_up=copy, down=downs[index % len(downs)])
        for index, copy in enumerate(gate_ups)
    ]
    eps = shapes.config.rms_norm_eps

    def call_of(x: FloatArray) -> Call:
        return lambda: kernels.mlp_block(x, weights[ring.advance()], eps)

    for count in rows:
        yield KernelCase(
            label="norm, gate, up, silu, down",
            num_rows=count,
            work=Work(
                fp32_macs=count * (gate_up.num_weights + down.num_weights),
                read_bytes=gate_ups[0].num_bytes + downs[0].num_bytes,
            ),
            call=call_of(random_rows(count, gate_up.in_features)),
            count=gate_up.count,
        )


def matrix_ring(
    shapes: StepShapes, shape: MatrixShape, kernels: NativeKernels, dtype: np.dtype[Any]
) -> tuple[Ring, list[NativeLinear]]:
    """Copies of a matrix that is stored in `dtype`, and the ring that says whose turn it is."""
    matrix = to_stored(random_rows(shape.out_features, shape.in_features), dtype)
    packed = kernels.prepare_linear([matrix], [None])
    assert isinstance(packed, NativeLinear)
    ring = Ring(packed.packed.view(np.uint8), ring_bytes(shapes, dtype.itemsize))
    return ring, [dataclasses.replace(packed, packed=copy.view(dtype)) for copy in ring.copies()]
