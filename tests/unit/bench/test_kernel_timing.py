"""Shares of limits: turns, best of them, sums over a step.  Times and limits are made up here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chairlift.bench.kernel_case import KernelCase
from chairlift.bench.kernel_report import KernelReport, family_shares, result_line
from chairlift.bench.kernel_shapes import StepShapes, default_shapes, read_shapes
from chairlift.bench.kernel_timing import KernelResult, TimingPlan, all_groups, time_case
from chairlift.bench.machine_limits import Work


class MadeUpLimits:
    """Rates that change with every question."""

    def __init__(self, int8: Iterator[float], read: Iterator[float]) -> None:
        self._int8, self._read = int8, read

    def int8_dot(self) -> float:
        return next(self._int8)

    def fp32_fma(self) -> float:
        raise AssertionError("nobody needs it")

    def memory_read(self) -> float:
        return next(self._read)


def _time(calls_s: list[float], work: Work, limits: MadeUpLimits, num_turns: int) -> KernelResult:
    now, durations = [0.0], iter(calls_s)

    def call() -> None:
        now[0] += next(durations)

    case = KernelCase(label="x", num_rows=4, work=work, call=call, count=3)
    plan = TimingPlan(num_turns=num_turns, seconds_per_turn=0.0)
    return time_case("GEMM", case, limits, plan, clock=lambda: now[0])


def test_best_time_against_highest_limit() -> None:
    limits = MadeUpLimits(iter([50.0, 100.0]), iter([10.0, 5.0]))
    work = Work(int8_products=2e9, read_bytes=1e8)
    result = _time([0.5, 0.04, 0.08, 0.09], work, limits, num_turns=2)
    assert result.seconds == pytest.approx(0.04)
    assert (result.limit, result.limit_rate) == ("int8 dot", 100.0)
    assert result.rate == pytest.approx(50.0)
    assert result.share == pytest.approx(0.5)
    assert result.rates == {"int8 dot": 100.0, "memory read": 10.0}


def test_reading_is_the_limit_where_it_takes_longer() -> None:
    limits = MadeUpLimits(iter([100.0]), iter([10.0]))
    result = _time([0.04, 0.04], Work(int8_products=1e9, read_bytes=2e8), limits, num_turns=1)
    assert result.limit == "memory read"
    assert result.rate == pytest.approx(5.0) and result.share == pytest.approx(0.5)
    assert "GB/s" in result_line(result) and "50%" in result_line(result)


def _result(
    family: str, label: str, rows: int, count: int, ms: float, bound: float
) -> KernelResult:
    return KernelResult(
        family=family,
        label=label,
        num_rows=rows,
        count=count,
        seconds=ms / 1e3,
        limit="int8 dot",
        limit_rate=100.0,
        rate=100.0 * bound / ms,
        bound_seconds=bound / 1e3,
        rates={"int8 dot": 100.0},
    )


RESULTS = (
    _result("GEMM", "qkv", 1, 30, ms=1.0, bound=0.5),
    _result("GEMM", "qkv", 8, 30, ms=2.0, bound=2.0),
    _result("GEMM", "head", 1, 1, ms=10.0, bound=1.0),
    _result("attention int8", "decode 1 x 576", 1, 30, ms=1.0, bound=0.25),
    _result("attention int8", "prefill 512", 512, 30, ms=1.0, bound=0.75),
)


def test_a_family_share_is_that_of_a_step() -> None:
    shares = {(share.family, share.at): share.share for share in family_shares(RESULTS)}
    assert shares["GEMM", "1"] == pytest.approx((30 * 0.5 + 1.0) / (30 * 1.0 + 10.0))
    assert shares["GEMM", "8"] == 1.0
    assert shares["attention int8", "prefill 512"] == 0.75


def test_summary_and_json_of_a_report() -> None:
    report = KernelReport(
        shapes=default_shapes(), isa="avx2", num_threads=2, results=RESULTS, without_int8=None
    )
    summary = report.summary()
    assert "int8 dot 100.0 GMAC/s" in summary
    assert "GEMM                     1: 40%, 8: 100%" in summary
    written = report.to_json()
    assert len(written["cases"]) == 5 and written["cases"][0]["share"] == 0.5
    assert written["families"][0] == {"family": "GEMM", "at": "1", "share": pytest.approx(0.4)}
    assert written["limits"] == {"int8 dot": {"rate": 100.0, "unit": "GMAC/s"}}


def test_a_model_that_bytes_cannot_run_is_timed_in_float32(
    tiny_folder: Callable[[str], Path],
) -> None:
    shapes = read_shapes(tiny_folder("llama3"), "tiny")
    odd = dataclasses.replace(shapes.config, intermediate_size=97)
    groups, why = all_groups(StepShapes("odd", odd, shapes.matrices), 1, TimingPlan())
    assert why is not None and "multiple of 16" in why
    assert groups and not any("int8" in group.family for group in groups)
