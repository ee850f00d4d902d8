"""Bounds from rates, and the machine's own limits as far as a test can tell."""

from __future__ import annotations

import pytest

from chairlift.bench import machine_limits
from chairlift.bench.machine_limits import (
    LimitMeter,
    Rates,
    Work,
    bound_of,
    highest_rates,
    median_rates,
)
from chairlift.errors import ConfigError
from chairlift.kernels.cpu.library import LibraryUnavailableError

RATES: Rates = {"int8 dot": 400.0, "fp32 FMA": 100.0, "memory read": 20.0}


def test_the_longest_time_is_the_bound() -> None:
    assert bound_of(Work(int8_products=8e9, read_bytes=1e9), RATES) == ("memory read", 0.05)
    assert bound_of(Work(int8_products=80e9, read_bytes=1e9), RATES) == ("int8 dot", 0.2)
    assert bound_of(Work(fp32_macs=1e9), RATES) == ("fp32 FMA", 0.01)


def test_a_limit_that_is_not_needed_need_not_be_measured() -> None:
    assert bound_of(Work(fp32_macs=1e9), {"fp32 FMA": 10.0}) == ("fp32 FMA", 0.1)


def test_medians_and_highest_over_those_that_have_them() -> None:
    many: list[Rates] = [{"int8 dot": 3.0}, {"int8 dot": 9.0, "fp32 FMA": 2.0}, {"int8 dot": 4.0}]
    assert median_rates(many) == {"int8 dot": 4.0, "fp32 FMA": 2.0}
    assert highest_rates(many) == {"int8 dot": 9.0, "fp32 FMA": 2.0}


def test_a_meter_measures_something_of_every_kind() -> None:
    meter = LimitMeter(2)
    for rate in (meter.int8_dot(), meter.fp32_fma(), meter.memory_read()):
        assert 0.01 < rate < 1e6
    windows = [tuple(window) for window in meter._windows]
    assert len(windows) == len(set(windows)) > 1
    assert sum(len(window) for window in windows) * 4096 == meter._buffer.size


def test_without_a_library_there_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise LibraryUnavailableError("not built")

    monkeypatch.setattr(machine_limits, "load_library", refuse)
    with pytest.raises(ConfigError, match="no native library to measure: not built"):
        LimitMeter(1)
