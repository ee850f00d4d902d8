"""Arrival times: the rate holds, and burstiness does what it says."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

from chairlift.bench.serve.arrivals import arrival_times


def gaps(times: list[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise([0.0, *times])]


@pytest.mark.parametrize("burstiness", [0.2, 1.0, 8.0])
def test_the_mean_rate_is_the_rate_and_times_rise(burstiness: float) -> None:
    times = arrival_times(50, 10.0, burstiness, seed=3)
    assert times[-1] == pytest.approx(5.0)
    assert times == sorted(times) and times[0] > 0.0


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_the_spread_of_gaps_is_that_of_a_gamma_distribution(burstiness: float) -> None:
    found = gaps(arrival_times(20_000, 10.0, burstiness, seed=1))
    variation = statistics.pstdev(found) / statistics.mean(found)
    assert variation == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert arrival_times(3, math.inf, 1.0, seed=0) == [0.0, 0.0, 0.0]


def test_a_seed_fixes_the_times() -> None:
    assert arrival_times(9, 5.0, 1.0, 4) == arrival_times(9, 5.0, 1.0, 4)
    assert arrival_times(9, 5.0, 1.0, 4) != arrival_times(9, 5.0, 1.0, 5)
