"""Where the time of a run goes: in the kernels, in the runner around them, and outside the runner.

```
wall of a step  | schedule | execute                              | update | text   |
kernels         |          |    ######   #######   ####  ######   |        |        |
Python's share  |##########|####      ###       ###    ##      ###|########|########|
```

Whatever runs while no kernel does is Python's share; sampling that is not a kernel's counts, too.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, cast

from chairlift.bench.drive import Target
from chairlift.bench.policy_run import PolicyRun, RequestResult
from chairlift.bench.workload import BenchRequest
from chairlift.core.engine_core import EngineCore
from chairlift.events import StepRecord
from chairlift.kernels.interface import Kernels
from chairlift.runner.model_runner import ModelRunner


class KernelClock:
    """Stands before a backend and adds up the seconds inside it.

    What a backend only puts off until the end of `one_call` is Python's work, and the end its own.
    """

    def __init__(self, kernels: Kernels, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        self.is_putting_off = False
        self._kernels = kernels
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._kernels, name)
        if not callable(value):
            return value

        def timed(*arguments: Any, **named: Any) -> Any:
            if self.is_putting_off:
                return value(*arguments, **named)
            with self.running():
                result = value(*arguments, **named)
            is_nothing = isinstance(result, nullcontext)
            if isinstance(result, AbstractContextManager) and not is_nothing:
                return _PutOff(result, self)
            return result

        setattr(self, name, timed)
        return timed

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time that this lasts."""
        start = self._clock()
        try:
            yield
        finally:
            self.seconds += self._clock() - start


class _PutOff(AbstractContextManager[Any]):
    """A backend's `one_call`: only its end is the backend's time."""

    def __init__(self, inner: AbstractContextManager[Any], clock: KernelClock) -> None:
        self._inner = inner
        self._clock = clock

    def __enter__(self) -> Any:
        self._clock.is_putting_off = True
        return self._inner.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        self._clock.is_putting_off = False
        with self._clock.running():
            return self._inner.__exit__(kind, error, trace)


@contextmanager
def timed_kernels(runner: ModelRunner) -> Iterator[KernelClock]:
    """The runner's model calls its kernels through the clock as long as this lasts."""
    model = runner.model
    clock = KernelClock(model.kernels)
    runner.model = dataclasses.replace(model, kernels=cast(Kernels, clock))
    try:
        yield clock
    finally:
        runner.model = model


_FULL = 0.9


@dataclass(frozen=True, slots=True)
class StepTiming:
    """One call of `step()`.  Seconds."""

    records: tuple[StepRecord, ...]
    """Of the step that it finished; none if it only waited."""
    wall_s: float
    kernel_s: float


class TimedTarget:
    """A target whose steps are timed from outside."""

    def __init__(self, target: Target, kernels: KernelClock) -> None:
        self.timings: list[StepTiming] = []
        self._target = target
        self._kernels = kernels
        self._new: list[StepRecord] = []
        target.core.recorder.listen(self._new.append)

    @property
    def core(self) -> EngineCore:
        return self._target.core

    def add(self, request: BenchRequest, arrival_time: float) -> None:
        self._target.add(request, arrival_time)

    def step(self) -> list[RequestResult]:
        self._new.clear()
        start_s, before_s = time.perf_counter(), self._kernels.seconds
        results = self._target.step()
        wall_s, kernel_s = time.perf_counter() - start_s, self._kernels.seconds - before_s
        self.timings.append(StepTiming(tuple(self._new), wall_s, kernel_s))
        return results


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSplit:
    """A run's seconds by where they were spent; they add up to the whole."""

    kernels_s: float
    runner_s: float
    """Building batches, sampling, moving blocks."""
    schedule_s: float
    update_s: float
    text_s: float
    arrivals_s: float
    """Checking and queueing requests, and whatever else is outside steps."""

    @property
    def wall_s(self) -> float:
        return (
            self.kernels_s
            + self.runner_s
            + self.schedule_s
            + self.update_s
            + self.text_s
            + self.arrivals_s
        )

    @property
    def python_share(self) -> float:
        return 1 - self.kernels_s / self.wall_s


def time_split(run: PolicyRun, timings: Sequence[StepTiming]) -> TimeSplit:
    """Of a run with the timings of its steps."""
    records = [record for timing in timings for record in timing.records]
    kernels_s = sum(timing.kernel_s for timing in timings)
    steps_s = sum(timing.wall_s for timing in timings)
    return TimeSplit(
        kernels_s=kernels_s,
        runner_s=sum(record.execute_s for record in records) - kernels_s,
        schedule_s=sum(record.schedule_s for record in records),
        update_s=sum(record.update_s for record in records),
        text_s=steps_s - sum(record.duration_s for record in records),
        arrivals_s=run.duration_s - steps_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FullDecode:
    """Steps that only decode, for at least nine tenths as many requests as any of that kind."""

    num_running: int
    """At most."""
    num_steps: int
    mean_step_s: float
    python_share: float


def full_decode(timings: Sequence[StepTiming]) -> FullDecode | None:
    """None if no step was of that kind."""
    decodes = [
        (timing.records[0].num_decode_tokens, timing)
        for timing in timings
        if len(timing.records) == 1
        and timing.records[0].num_decode_tokens == len(timing.records[0].members) > 0
    ]
    if not decodes:
        return None
    most = max(num_running for num_running, _ in decodes)
    full = [timing for num_running, timing in decodes if num_running >= _FULL * most]
    wall_s = sum(timing.wall_s for timing in full)
    return FullDecode(
        num_running=most,
        num_steps=len(full),
        mean_step_s=wall_s / len(full),
        python_share=1 - sum(timing.kernel_s for timing in full) / wall_s,
    )
