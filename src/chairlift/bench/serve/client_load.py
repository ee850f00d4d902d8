"""How hard the client itself had to work, and whether that spoilt the measurement."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from chairlift.bench.serve.distribution import Distribution, distribution_of

INTERVAL_S = 0.025
BUSY_CPU_SHARE = 0.8
LATE_MS = 25.0
_SCHEDSTAT = Path("/proc/self/schedstat")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLoad:
    """Of this process, from the start to the end of a run."""

    duration_s: float
    cpu_s: float
    waited_s: float | None
    """Ready to run, with no core free; None where the system does not say."""
    lag_ms: Distribution
    """How much later than it should the event loop woke up."""

    @property
    def cpu_share(self) -> float:
        """Of one core: one is all that this client can use."""
        return self.cpu_s / self.duration_s if self.duration_s > 0.0 else 0.0

    def note(self) -> str | None:
        """Says so if the client was the limit."""
        if self.cpu_share >= BUSY_CPU_SHARE:
            return (
                f"the client was the limit: it used {self.cpu_share:.0%} of the one core that it"
                " can use; spread the load over several clients"
            )
        if self.lag_ms.percentile(99) >= LATE_MS:
            return (
                "the client was a limit: its event loop ran up to"
                f" {self.lag_ms.percentile(99):.0f} ms late (p99), and latencies look longer by as"
                " much; give it a core of its own"
            )
        return None


class ClientWatch:
    """Measures between `start` and `stop`; belongs to the running loop."""

    def __init__(self) -> None:
        self._lags_ms: list[float] = []
        self._task: asyncio.Task[None] | None = None
        self._start_s = self._start_cpu_s = 0.0
        self._start_waited_s: float | None = None

    def start(self) -> None:
        self._start_s, self._start_cpu_s = time.monotonic(), time.process_time()
        self._start_waited_s = _waited_s()
        self._task = asyncio.create_task(self._watch())

    def stop(self) -> ClientLoad:
        assert self._task is not None
        self._task.cancel()
        waited_s = _waited_s()
        return ClientLoad(
            duration_s=time.monotonic() - self._start_s,
            cpu_s=time.process_time() - self._start_cpu_s,
            waited_s=None
            if waited_s is None or self._start_waited_s is None
            else waited_s - self._start_waited_s,
            lag_ms=distribution_of(self._lags_ms),
        )

    async def _watch(self) -> None:
        while True:
            due_s = time.monotonic() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            self._lags_ms.append(1e3 * max(0.0, time.monotonic() - due_s))


def _waited_s() -> float | None:
    """How long this process has waited for a core so far (Linux)."""
    try:
        return int(_SCHEDSTAT.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None
