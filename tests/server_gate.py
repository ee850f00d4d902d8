"""Lets the steps of an engine pass one by one, or makes one raise; and puts its clock forward."""

from __future__ import annotations

import threading

from chairlift.clock import WallClock
from chairlift.engine.engine import Engine
from chairlift.outputs import RequestOutput
from http_harness import RunningServer


class Gate:
    """Stands before every step of one engine until it is opened."""

    def __init__(self, engine: Engine) -> None:
        self._permits = threading.Semaphore(0)
        self._is_open = False
        self._step = engine.step
        self.num_steps = 0
        self.fault: BaseException | None = None
        """Raised by the next step that passes."""
        engine.step = self.step  # type: ignore[method-assign]

    def step(self) -> list[RequestOutput]:
        if not self._is_open:
            assert self._permits.acquire(timeout=120), "the test has let no further step pass"
        self.num_steps += 1
        if self.fault is not None:
            raise self.fault
        return self._step()

    def let(self, num_steps: int) -> None:
        self._permits.release(num_steps)

    def open(self) -> None:
        self._is_open = True
        self._permits.release()


class LeapingClock(WallClock):
    """The engine's clock, which a test can put forward: no test waits for a deadline."""

    def __init__(self, server: RunningServer) -> None:
        self.ahead_s = 0.0
        server.engine.clock = server.engine.core.clock = self

    def now(self) -> float:
        return super().now() + self.ahead_s
