"""Matrix products of a step at several numbers of rows: on bytes, exact and fast, and on float32.

The times on bytes include quantising the rows and unpacking the weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from chairlift.bench.kernel_case import RING_BYTES, CaseGroup, KernelCase, Ring
from chairlift.bench.kernel_shapes import MatrixShape, StepShapes
from chairlift.bench.machine_limits import LimitMeter, Work
from chairlift.bench.native_replay import CallRecorder, RotatingCalls
from chairlift.kernels.cpu.int8 import INTERLEAVE
from chairlift.kernels.cpu.linear_q8 import Q8Ops, QuantizedLinear
from chairlift.kernels.cpu.ops import NativeKernels, NativeLinear
from chairlift.kernels.grouped_weights import GroupedWeights
from chairlift.kernels.interface import FloatArray, MlpWeights

EXACT, FAST, FLOAT32 = "GEMM exact int8", "GEMM fast int8", "GEMM float32"
MLP_EXACT, MLP_FAST, MLP_FLOAT32 = "MLP exact int8", "MLP fast int8", "MLP float32"


def int8_groups(
    shapes: StepShapes, meter: LimitMeter, rows: Sequence[int], *, fast: bool
) -> list[CaseGroup]:
    """Every matrix of a step alone, then gate, up, silu and down in one call."""
    recorder = CallRecorder(meter.library)
    ops = Q8Ops(recorder.library, meter.pool)
    products = [
        CaseGroup(
            family=FAST if fast else EXACT,
            num_cases=len(rows),
            build=partial(_int8_products, shapes, shape, ops, recorder, meter, rows, fast),
        )
        for shape in shapes.matrices
    ]
    whole = CaseGroup(
        family=MLP_FAST if fast else MLP_EXACT,
        num_cases=len(rows),
        build=partial(_int8_mlps, shapes, ops, recorder, meter, rows, fast),
    )
    return [*products, whole]


def float32_groups(
    shapes: StepShapes, kernels: NativeKernels, meter: LimitMeter, rows: Sequence[int]
) -> list[CaseGroup]:
    """The same in float32."""
    products = [
        CaseGroup(
            family=FLOAT32,
            num_cases=len(rows),
            build=partial(_float32_products, shapes, shape, kernels, meter, rows),
        )
        for shape in shapes.matrices
    ]
    whole = CaseGroup(
        family=MLP_FLOAT32,
        num_cases=len(rows),
        build=partial(_float32_mlps, shapes, kernels, meter, rows),
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
    """[num_rows, width] of a normal distribution."""
    return np.random.default_rng(1).standard_normal((num_rows, width), np.float32)


def ring_bytes(shapes: StepShapes, bytes_per_weight: float) -> int:
    """What a step's weights take, as far as it matters: a small model does stay in cache."""
    weights = sum(shape.num_weights * shape.count for shape in shapes.matrices)
    return min(RING_BYTES, int(weights * bytes_per_weight))


def packed_ring(
    shapes: StepShapes, packed: QuantizedLinear, num_weights: int
) -> tuple[Ring, list[QuantizedLinear]]:
    """Copies of a packed matrix, and the ring that says whose turn it is."""
    ring = Ring(packed.packed, ring_bytes(shapes, packed.num_bytes / num_weights))
    return ring, [dataclasses.replace(packed, packed=copy) for copy in ring.copies()]


def _int8_products(
    shapes: StepShapes,
    shape: MatrixShape,
    ops: Q8Ops,
    recorder: CallRecorder,
    meter: LimitMeter,
    rows: Sequence[int],
    fast: bool,
) -> Iterator[KernelCase]:
    packed = ops.pack(random_weights(shape), per_channel=fast)
    ring, copies = packed_ring(shapes, packed, shape.num_weights)

    def call_of(x: FloatArray) -> Callable[[], None]:
        out = np.zeros((len(x), shape.out_features), np.float32)
        return RotatingCalls(
            recorder, ring.advance, lambda index: ops.linear(x, copies[index], out=out)
        )

    for count in rows:
        yield KernelCase(
            family=FAST if fast else EXACT,
            label=_label(shape, fast),
            num_rows=count,
            work=Work(int8_products=count * shape.num_weights, read_bytes=packed.num_bytes),
            call=call_of(random_rows(count, shape.in_features)),
            read_rate=lambda: meter.memory_read(*ring.far()),
            count=shape.count,
        )


def _int8_mlps(
    shapes: StepShapes,
    ops: Q8Ops,
    recorder: CallRecorder,
    meter: LimitMeter,
    rows: Sequence[int],
    fast: bool,
) -> Iterator[KernelCase]:
    gate_up, down = shapes.matrix("gate-up"), shapes.matrix("down")
    first = ops.pack(random_weights(gate_up), interleave=INTERLEAVE, per_channel=fast)
    second = ops.pack(random_weights(down), per_channel=fast)
    num_weights = gate_up.num_weights + down.num_weights
    ring, copies = packed_ring(shapes, first, gate_up.num_weights)
    downs = Ring(second.packed, len(ring) * second.num_bytes).copies()
    pairs = [
        (copy, dataclasses.replace(second, packed=downs[index]))
        for index, copy in enumerate(copies)
    ]

    def call_of(x: FloatArray) -> Callable[[], None]:
        return RotatingCalls(recorder, ring.advance, lambda index: ops.mlp(x, *pairs[index]))

    for count in rows:
        yield KernelCase(
            family=MLP_FAST if fast else MLP_EXACT,
            label="gate, up, silu, down",
            num_rows=count,
            work=Work(
                int8_products=count * num_weights, read_bytes=first.num_bytes + second.num_bytes
            ),
            call=call_of(random_rows(count, gate_up.in_features)),
            read_rate=lambda: meter.memory_read(*ring.far()),
            count=gate_up.count,
        )


def _float32_products(
    shapes: StepShapes,
    shape: MatrixShape,
    kernels: NativeKernels,
    meter: LimitMeter,
    rows: Sequence[int],
) -> Iterator[KernelCase]:
    ring, copies = _float32_ring(shapes, shape, kernels)

    def call_of(x: FloatArray) -> Callable[[], object]:
        return lambda: kernels.linear(x, copies[ring.advance()])

    for count in rows:
        yield KernelCase(
            family=FLOAT32,
            label=f"{shape.name} {shape.out_features} x {shape.in_features}",
            num_rows=count,
            work=Work(fp32_macs=count * shape.num_weights, read_bytes=copies[0].num_bytes),
            call=call_of(random_rows(count, shape.in_features)),
            read_rate=lambda: meter.memory_read(*ring.far()),
            count=shape.count,
        )


def _float32_mlps(
    shapes: StepShapes, kernels: NativeKernels, meter: LimitMeter, rows: Sequence[int]
) -> Iterator[KernelCase]:
    gate_up, down = shapes.matrix("gate-up"), shapes.matrix("down")
    ring, gate_ups = _float32_ring(shapes, gate_up, kernels)
    _, downs = _float32_ring(shapes, down, kernels)
    norm = np.ones(gate_up.in_features, np.float32)
    weights = [
        MlpWeights(norm=norm, gate_up=copy, down=downs[index % len(downs)])
        for index, copy in enumerate(gate_ups)
    ]
    eps = shapes.config.rms_norm_eps

    def call_of(x: FloatArray) -> Callable[[], object]:
        return lambda: kernels.mlp_block(x, weights[ring.advance()], eps)

    for count in rows:
        yield KernelCase(
            family=MLP_FLOAT32,
            label="norm, gate, up, silu, down",
            num_rows=count,
            work=Work(
                fp32_macs=count * (gate_up.num_weights + down.num_weights),
                read_bytes=gate_ups[0].num_bytes + downs[0].num_bytes,
            ),
            call=call_of(random_rows(count, gate_up.in_features)),
            read_rate=lambda: meter.memory_read(*ring.far()),
            count=gate_up.count,
        )


def _float32_ring(
    shapes: StepShapes, shape: MatrixShape, kernels: NativeKernels
) -> tuple[Ring, list[NativeLinear]]:
    packed = kernels.prepare_linear([random_rows(shape.out_features, shape.in_features)], [None])
    assert isinstance(packed, NativeLinear)
    content = packed.packed.reshape(-1).view(np.uint8)
    ring = Ring(content, ring_bytes(shapes, 4.0))
    copies = [
        dataclasses.replace(packed, packed=copy.view(np.float32).reshape(packed.packed.shape))
        for copy in ring.copies()
    ]
    return ring, copies


def _label(shape: MatrixShape, fast: bool) -> str:
    bits = 8 if fast else shape.form.bits
    return f"{shape.name} {shape.out_features} x {shape.in_features}, {bits} bits"
