"""What stands behind the scheduler: something that turns a step's order into tokens."""

from __future__ import annotations

from typing import Protocol

from chairlift.core.scheduler_output import RunnerOutput, SchedulerOutput


class StepHandle(Protocol):
    """A step that has been submitted."""

    def result(self) -> RunnerOutput:
        """Wait for the tokens.  Raises whatever made the whole step fail."""
        ...


class Executor(Protocol):
    """A device with a model on it, or a simulation of one."""

    overlap_depth: int
    """Steps that may be submitted before the first one's tokens have been read; 0 on a CPU."""

    def submit(self, output: SchedulerOutput) -> StepHandle:
        """Start a step and return at once (or, on a CPU, when it is done)."""
        ...
