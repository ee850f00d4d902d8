"""Keeps an engine running: builds it, watches it, and builds it anew when it is beyond repair.

A failed step ends its members only; several in a short time, a step that never ends or a thread
that died mean a new engine in the same process.  Requests get `EngineDeadError` meanwhile.  What
kills the whole process is not its business.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.engine import Engine
from chairlift.errors import EngineDeadError
from chairlift.events import StepRecord
from chairlift.thread_start import start_thread

logger = logging.getLogger("chairlift")

SupervisorState = Literal["starting", "running", "restarting", "dead", "stopped"]

_MAX_BUILD_ATTEMPTS = 4
_MAX_HUNG_ENGINES = 2
"""Each keeps its memory: after so many, only a new process helps."""
_JOIN_S = 5.0


class EngineSupervisor:
    """`start()` returns at once; `state` tells, `current()` hands out the engine."""

    def __init__(
        self,
        build: Callable[[], Engine],
        *,
        step_timeout_s: float = 600.0,
        max_failed_steps: int = 3,
        failure_window_s: float = 60.0,
        check_interval_s: float = 0.1,
        retry_wait_s: float = 1.0,
    ) -> None:
        """`max_failed_steps` within `failure_window_s` mean a new engine."""
        self._build = build
        self._step_timeout_s = step_timeout_s
        self._max_failed_steps = max_failed_steps
        self._failure_window_s = failure_window_s
        self._check_interval_s = check_interval_s
        self._retry_wait_s = retry_wait_s
        self._engine: AsyncEngine | None = None
        self._failed_steps: deque[float] = deque(maxlen=max_failed_steps)
        self._num_hung = 0
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._listeners: list[Callable[[StepRecord], None]] = []
        self._preparations: list[Callable[[Engine], None]] = []
        self._thread = threading.Thread(target=self._run, name="chairlift-supervisor", daemon=True)
        self.state: SupervisorState = "starting"
        self.failure: Exception | None = None
        """Why it is dead."""
        self.num_rebuilds = 0
        self.on_change: Callable[[], None] = lambda: None
        """Called in the supervisor's thread whenever `state` has changed."""

    def listen(self, listener: Callable[[StepRecord], None]) -> None:
        """Call `listener(record)` after every step of every engine.  Before `start()`."""
        self._listeners.append(listener)

    def prepare(self, preparation: Callable[[Engine], None]) -> None:
        """Call `preparation(engine)` of every engine before it takes requests.  Before `start()`.

        In the supervisor's thread; what it raises is a failure to build.
        """
        self._preparations.append(preparation)

    def start(self) -> None:
        """Raises `MemoryError` or `RuntimeError` if the system grants no thread."""
        start_thread(self._thread)

    def current(self) -> AsyncEngine:
        """The engine that takes requests now.  Raises `EngineDeadError`."""
        engine = self._engine
        if engine is None or not engine.is_alive:
            raise EngineDeadError(f"the engine is {self.state}")
        return engine

    def wait_until(self, *states: SupervisorState, timeout_s: float) -> bool:
        """Block until one of these states is reached; False if it takes too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self.state in states, timeout_s)

    def shutdown(self) -> None:
        """Stop the engine after the step in progress.  A step that hangs is left behind."""
        self._stop.set()
        self._end_engine()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)
        self._end_engine()  # one that was being built
        self._change("stopped")

    def _end_engine(self) -> None:
        engine = self._engine
        if engine is not None:
            engine.fail("the engine has been shut down")
            engine.join(_JOIN_S)

    # -- in the supervisor's thread ----------------------------------------------------------
    def _run(self) -> None:
        while not self._stop.is_set():
            engine = self._build_engine()
            if engine is None:
                return
            self._engine = engine
            self._change("running")
            reason = self._watch(engine)
            if reason is None:
                return
            self._take_down(engine, reason)
            del engine
            gc.collect()  # its memory is needed for the next one

    def _build_engine(self) -> AsyncEngine | None:
        """None if there will be none."""
        attempts = 1 if self.num_rebuilds == 0 else _MAX_BUILD_ATTEMPTS
        for attempt in range(attempts):
            try:
                engine = self._build()
                for prepare in self._preparations:
                    prepare(engine)
                engine.core.recorder.listen(self._book_step)
                for listener in self._listeners:
                    engine.core.recorder.listen(listener)
                running = AsyncEngine(engine)  # starts a thread
            except Exception as error:
                self.failure = error
                if self.num_rebuilds:
                    logger.error("building the engine anew failed: %s", error)
                self._stop.wait(self._retry_wait_s * 2**attempt if attempt + 1 < attempts else 0)
            else:
                self._failed_steps.clear()
                return running
        self._change("dead")
        return None

    def _watch(self, engine: AsyncEngine) -> str | None:
        """Wait until the engine must go, and say why; None when it is time to stop."""
        while not self._stop.wait(self._check_interval_s):
            reason = self._trouble(engine)
            if reason is not None:
                return reason
        return None

    def _trouble(self, engine: AsyncEngine) -> str | None:
        started_s = engine.step_started_s
        if not engine.is_alive:
            return engine.failure or "its thread has ended"
        if started_s is not None:
            age_s = engine.engine.clock.now() - started_s
            if age_s > self._step_timeout_s:
                return f"a step has not ended for {age_s:.1f} s"
        failed = self._failed_steps
        is_full = len(failed) == self._max_failed_steps
        if is_full and failed[-1] - failed[0] <= self._failure_window_s:
            return (
                f"{self._max_failed_steps} steps have failed within {failed[-1] - failed[0]:.1f} s"
            )
        return None

    def _take_down(self, engine: AsyncEngine, reason: str) -> None:
        logger.error("the engine is built anew: %s", reason)
        self.num_rebuilds += 1
        self._engine = None
        self._change("restarting")
        engine.fail(f"the engine is being restarted: {reason}")
        if not engine.join(_JOIN_S):
            self._num_hung += 1
            logger.error("its last step still hangs, and keeps its memory")
            if self._num_hung >= _MAX_HUNG_ENGINES:
                self.failure = EngineDeadError(f"{self._num_hung} engines hang")
                self._stop.set()
                self._change("dead")

    def _book_step(self, record: StepRecord) -> None:
        """In the engine's thread."""
        if record.error is not None:
            self._failed_steps.append(time.monotonic())

    def _change(self, state: SupervisorState) -> None:
        with self._changed:
            if self.state == "dead" and state == "stopped":
                return
            self.state = state
            self._changed.notify_all()
        self.on_change()
