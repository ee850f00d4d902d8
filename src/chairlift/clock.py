"""Time as a dependency: everything above the kernels asks a `Clock`, never the `time` module.

With `WallClock` the engine is real; with `ManualClock` waiting windows and deadlines are unit tests
without sleeping, and a simulator can run the very same loop.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic time source, in seconds."""

    def now(self) -> float:
        """Seconds since an arbitrary origin; never decreases."""
        ...

    def sleep(self, duration_s: float) -> None:
        """Return after `duration_s` seconds of this clock's time."""
        ...


class WallClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        time.sleep(max(0.0, duration_s))


class ManualClock:
    """A clock that moves only when told: for tests and simulation."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        return self._now_s

    def sleep(self, duration_s: float) -> None:
        self.advance(duration_s)

    def advance(self, duration_s: float) -> None:
        """Move forward by `duration_s` >= 0 seconds."""
        if duration_s < 0:
            raise ValueError(f"a clock cannot go back: {duration_s} s")
        self._now_s += duration_s
