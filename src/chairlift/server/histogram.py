"""Counts of values by size, cheap enough for every token: one writing thread, no lock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Only one thread may observe; any thread may read."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: upper ends of the buckets, rising; one more takes what is above."""
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper end, values up to it), as Prometheus has it; the last end is "+Inf"."""
        total, buckets = 0, []
        counts = list(self._counts)
        for bound, count in zip((*self.bounds, None), counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound is None else repr(float(bound)), float(total)))
        return buckets
