"""Times kernels in turns with the limits that hold them, so that both saw the same machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from chairlift.bench.kernel_attention import float_attention_groups, int8_attention_groups
from chairlift.bench.kernel_case import CaseGroup, KernelCase
from chairlift.bench.kernel_gemm import float_groups, int8_groups
from chairlift.bench.kernel_row_ops import float_row_groups, int8_row_groups
from chairlift.bench.kernel_shapes import StepShapes
from chairlift.bench.machine_limits import LimitName, Limits, Rates, bound_of, highest_rates
from chairlift.bench.recorded_ops import RecordedOps
from chairlift.errors import ConfigError
from chairlift.kernels.cpu.int8 import PAGE_TOKENS, Int8Kernels
from chairlift.kernels.cpu.ops import NativeKernels

_LEAST_CALLS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingPlan:
    """What to time, and how long."""

    rows: tuple[int, ...] = (1, 4, 8, 16, 32, 64, 128, 512)
    """Of matrix products."""
    row_op_rows: tuple[int, ...] = (1, 32, 128, 512)
    """Of everything else that goes row by row."""
    num_turns: int = 5
    seconds_per_turn: float = 0.03


QUICK_PLAN = TimingPlan(
    rows=(1, 16, 128), row_op_rows=(1, 128), num_turns=2, seconds_per_turn=0.015
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelResult:
    """One case, timed."""

    family: str
    label: str
    num_rows: int
    count: int
    """Calls per step."""
    seconds: float
    """Of the fastest call."""
    limit: LimitName
    """The one that asks for the longest time."""
    limit_rate: float
    """1e9 of its units a second."""
    rate: float
    """What the fastest call made of it."""
    bound_seconds: float
    """That the limit asks for."""
    rates: Rates
    """Of all limits that were measured: the highest in the turns."""

    @property
    def share(self) -> float:
        return self.bound_seconds / self.seconds


def all_groups(
    shapes: StepShapes, num_threads: int, plan: TimingPlan
) -> tuple[list[CaseGroup], str | None]:
    """Everything that a step uses, in the order of the report; and why int8 is not in it."""
    kernels = NativeKernels(num_threads)
    floats = [
        *float_groups(shapes, kernels, plan.rows),
        *float_attention_groups(shapes, num_threads),
        *float_row_groups(shapes, kernels, plan.row_op_rows),
    ]
    ops = RecordedOps(num_threads)
    try:
        _check_int8(shapes, ops.kernels)
    except ConfigError as error:
        return floats, str(error)
    int8 = [
        *int8_groups(shapes, ops, plan.rows, fast=False),
        *int8_groups(shapes, ops, plan.rows, fast=True),
        *int8_attention_groups(shapes, ops),
        *int8_row_groups(shapes, ops, plan.row_op_rows),
    ]
    return int8 + floats, None


def time_groups(
    groups: Sequence[CaseGroup], meter: Limits, plan: TimingPlan
) -> Iterator[KernelResult]:
    """One case after the other, each as it is done."""
    for group in groups:
        for case in group.build():
            yield time_case(group.family, case, meter, plan)


def time_case(
    family: str,
    case: KernelCase,
    meter: Limits,
    plan: TimingPlan,
    clock: Callable[[], float] = time.perf_counter,
) -> KernelResult:
    """Limits and calls in turns.  The best of each counts: other processes only slow down."""
    rates: list[Rates] = []
    fastest: list[float] = []
    for _ in range(plan.num_turns):
        rates.append(_measure_limits(case, meter))
        fastest.append(_fastest_call(case.call, plan.seconds_per_turn, clock))
    best = highest_rates(rates)
    limit, bound_seconds = bound_of(case.work, best)
    seconds = min(fastest)
    return KernelResult(
        family=family,
        label=case.label,
        num_rows=case.num_rows,
        count=case.count,
        seconds=seconds,
        limit=limit,
        limit_rate=best[limit],
        rate=case.work.amounts()[limit] / seconds / 1e9,
        bound_seconds=bound_seconds,
        rates=best,
    )


def _measure_limits(case: KernelCase, meter: Limits) -> Rates:
    """Only those that the case needs."""
    rates: Rates = {}
    if case.work.int8_products:
        rates["int8 dot"] = meter.int8_dot()
    if case.work.fp32_macs:
        rates["fp32 FMA"] = meter.fp32_fma()
    if case.work.read_bytes:
        rates["memory read"] = meter.memory_read()
    return rates


def _fastest_call(call: Callable[[], object], budget_s: float, clock: Callable[[], float]) -> float:
    """Of at least two calls, until the budget is spent."""
    times: list[float] = []
    stop = clock() + budget_s
    while len(times) < _LEAST_CALLS or clock() < stop:
        start = clock()
        call()
        times.append(clock() - start)
    return min(times)


def _check_int8(shapes: StepShapes, kernels: Int8Kernels) -> None:
    """Raises `ConfigError` if the backend on bytes cannot run the model."""
    config = shapes.config
    kernels.kv_block(1, config.num_kv_heads, config.head_dim, PAGE_TOKENS)
    narrow = np.zeros((config.intermediate_size, 1), np.float32)
    kernels.prepare_gate_up([narrow, narrow], [None, None])
