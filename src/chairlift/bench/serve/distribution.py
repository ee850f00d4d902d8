"""Mean, spread and percentiles of many numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of sorted values, in the unit that the name of the variable says; may be empty."""

    values: NDArray[np.float64]

    @property
    def mean(self) -> float:
        return float(self.values.mean()) if len(self.values) else 0.0

    @property
    def std(self) -> float:
        return float(self.values.std()) if len(self.values) else 0.0

    @property
    def median(self) -> float:
        return self.percentile(50)

    @property
    def largest(self) -> float:
        return float(self.values[-1]) if len(self.values) else 0.0

    def percentile(self, share: float) -> float:
        """`share` from 0 to 100; between two values, in proportion.  0 when empty."""
        return float(np.percentile(self.values, share)) if len(self.values) else 0.0


def distribution_of(values: Sequence[float]) -> Distribution:
    return Distribution(np.sort(np.asarray(values, dtype=np.float64)))
