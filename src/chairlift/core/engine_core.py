"""The loop: schedule, execute, update.  One for offline and online use, and for simulation.

It owns a scheduler, an executor and a clock, and touches neither text nor arrays.  With an
executor that allows it, one step is submitted before the one before has been read.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from chairlift.clock import Clock
from chairlift.core.executor import Executor, StepHandle
from chairlift.core.request import Request
from chairlift.core.scheduler import Scheduler
from chairlift.core.scheduler_output import RequestUpdate, RunnerOutput, SchedulerOutput
from chairlift.core.step_recorder import StepRecorder


@dataclass(slots=True)
class _InFlight:
    output: SchedulerOutput
    handle: StepHandle
    start_s: float
    schedule_s: float


@dataclass(slots=True)
class EngineCore:
    """`step()` moves every rider by one step.  Not thread-safe: one thread calls it."""

    scheduler: Scheduler
    executor: Executor
    clock: Clock
    recorder: StepRecorder = field(default_factory=StepRecorder)
    _in_flight: deque[_InFlight] = field(default_factory=deque)

    def add_request(self, request: Request) -> None:
        """Raises `RequestError` if the request can never be served."""
        self.scheduler.add_request(request)

    def abort(self, request_id: str, *, stop_reason: str | None = None) -> RequestUpdate | None:
        """Free everything that a request holds, now."""
        return self.scheduler.abort(request_id, stop_reason=stop_reason)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_requests or self.scheduler.has_updates or bool(self._in_flight)

    def step(self) -> list[RequestUpdate]:
        """Schedule a step and submit it; read the oldest one whose turn it is.

        Returns what changed for each request; nothing when only a waiting window runs.
        """
        interrupted = self._read_beyond_depth()
        start_s = self.clock.now()
        output = self.scheduler.schedule(start_s)
        if output.has_work:
            self._submit(output, start_s, self.clock.now() - start_s)
        updates = interrupted + self.scheduler.take_updates()
        if len(self._in_flight) > self.executor.overlap_depth or not output.has_work:
            updates += self._read_oldest()
        while output.needs_drain and self._in_flight:
            updates += self._read_oldest()
        if not self.has_work:
            self.scheduler.check_integrity()
        return updates

    def idle_s(self) -> float | None:
        """Seconds until a waiting window ends; 0 if a step would do something; None: never."""
        if self._in_flight or self.scheduler.running or self.scheduler.has_updates:
            return 0.0
        wake_at = self.scheduler.wake_at()
        if wake_at is not None:
            return max(0.0, wake_at - self.clock.now())
        return 0.0 if self.scheduler.has_requests else None

    def _submit(self, output: SchedulerOutput, start_s: float, schedule_s: float) -> None:
        """Hand a step over.  An interruption (Ctrl-C) passes, and the step counts as failed."""
        handle: StepHandle = _FailedStep(RuntimeError("interrupted"))
        try:
            handle = self.executor.submit(output)
        except Exception as error:
            handle = _FailedStep(error)
        finally:
            self._in_flight.append(_InFlight(output, handle, start_s, schedule_s))

    def _read_beyond_depth(self) -> list[RequestUpdate]:
        """Book the step that an interruption has left behind, if any."""
        updates: list[RequestUpdate] = []
        while len(self._in_flight) > self.executor.overlap_depth:
            updates += self._read_oldest()
        return updates

    def _read_oldest(self) -> list[RequestUpdate]:
        """Wait for the oldest step and book it.  A step that failed ends its members only."""
        if not self._in_flight:
            return []
        step = self._in_flight.popleft()
        error: str | None = None
        result = RunnerOutput(sampled={})
        try:
            result = step.handle.result()
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        read_s = self.clock.now()
        if error is None:
            updates = self.scheduler.update(step.output, result)
        else:
            updates = self.scheduler.fail_step(step.output, f"the step failed: {error}")
        if step.output.scheduled or step.output.moves or step.output.preemptions:
            self.recorder.record(
                step.output,
                result,
                updates,
                self.scheduler,
                start_s=step.start_s,
                schedule_s=step.schedule_s,
                execute_s=read_s - step.start_s - step.schedule_s,
                update_s=self.clock.now() - read_s,
                error=error,
            )
        return updates


@dataclass(slots=True)
class _FailedStep:
    """Stands for a step that could not even be submitted."""

    error: Exception

    def result(self) -> RunnerOutput:
        raise self.error
