"""When requests come, in an open loop: gaps from a gamma distribution."""

from __future__ import annotations

import itertools
import math
import random


def arrival_times(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds after the start for each of `count` requests at `rate` a second, in order.

    `burstiness` is the shape of the gamma distribution: 1 is a Poisson process, less comes in
    bursts, more is more even.  Gaps are scaled so that the mean rate of a short run is `rate` as
    well.  An infinite rate: all at once.
    """
    if math.isinf(rate):
        return [0.0] * count
    rng = random.Random(f"{seed}:arrivals")
    gaps = [rng.gammavariate(burstiness, 1.0) for _ in range(count)]
    scale = count / rate / sum(gaps) if any(gaps) else 0.0
    return [scale * time for time in itertools.accumulate(gaps)]
