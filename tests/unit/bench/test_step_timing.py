"""Where a run's time goes, from made-up seconds and from a real run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from chairlift.bench.drive import EngineTarget, OpenLoop, drive
from chairlift.bench.policy_run import PolicyRun
from chairlift.bench.random_prompts import fresh_engine
from chairlift.bench.step_timing import (
    FullDecode,
    KernelClock,
    StepTiming,
    TimedTarget,
    full_decode,
    time_split,
    timed_kernels,
)
from chairlift.bench.workload import uniform_workload
from chairlift.config import EngineConfig
from chairlift.engine.loaded_model import LoadedModel
from unit.bench.step_records import make_record


class SlowKernels:
    """An op that takes two seconds, calls another of its own, and one that fails."""

    name = "slow"

    def __init__(self) -> None:
        self.now = 0.0

    def inner(self) -> None:
        self.now += 0.5

    def outer(self, value: int, *, factor: int) -> int:
        self.now += 1.5
        self.inner()
        return value * factor

    def fail(self) -> None:
        self.now += 1.0
        raise ValueError("no")


def test_seconds_inside_a_backend() -> None:
    slow = SlowKernels()
    clock = KernelClock(slow, clock=lambda: slow.now)
    assert clock.name == "slow"
    slow.now += 5.0
    assert clock.outer(3, factor=2) == 6
    assert clock.seconds == 2.0  # the inner call is counted once
    with pytest.raises(ValueError, match="no"):
        clock.fail()
    assert clock.seconds == 3.0


class PuttingOff(SlowKernels):
    """Runs everything at the end of `one_call`, in three seconds."""

    @contextmanager
    def one_call(self) -> Iterator[None]:
        yield
        self.now += 3.0


def test_what_is_put_off_counts_where_it_runs() -> None:
    slow = PuttingOff()
    clock = KernelClock(slow, clock=lambda: slow.now)
    with clock.one_call():
        slow.now += 10.0
        clock.outer(3, factor=2)
    assert clock.seconds == 3.0
    clock.outer(3, factor=2)
    assert clock.seconds == 5.0


def test_nothing_put_off_counts_at_once() -> None:
    slow = SlowKernels()
    slow.one_call = nullcontext
    clock = KernelClock(slow, clock=lambda: slow.now)
    with clock.one_call():
        slow.now += 10.0
        clock.outer(3, factor=2)
    assert clock.seconds == 2.0


def test_a_fault_inside_reaches_the_backend() -> None:
    slow = PuttingOff()
    clock = KernelClock(slow, clock=lambda: slow.now)
    with pytest.raises(ValueError, match="no"), clock.one_call():
        clock.fail()
    assert clock.seconds == 0.0
    clock.inner()
    assert clock.seconds == 0.5


def _timing(members: dict[str, str], wall_s: float, kernel_s: float) -> StepTiming:
    record = make_record(
        0.0, members, schedule_s=0.1 * wall_s, execute_s=0.7 * wall_s, update_s=0.1 * wall_s
    )
    return StepTiming((record,), wall_s, kernel_s)


TIMINGS = [
    _timing({"a": "prefill", "b": "decode"}, 4.0, 2.0),
    _timing({"a": "decode", "b": "decode"}, 2.0, 1.0),
    _timing({"b": "decode"}, 1.0, 0.1),
    StepTiming((), 0.5, 0.0),
]


def test_parts_of_a_run_add_up() -> None:
    run = PolicyRun(
        policy="continuous", num_seats=2, start_s=0.0, duration_s=10.0, records=(), results=()
    )
    split = time_split(run, TIMINGS)
    assert split.kernels_s == pytest.approx(3.1)
    assert split.runner_s == pytest.approx(0.7 * 7 - 3.1)
    assert split.schedule_s == split.update_s == pytest.approx(0.7)
    assert split.text_s == pytest.approx(0.1 * 7 + 0.5)
    assert split.arrivals_s == pytest.approx(2.5)
    assert split.wall_s == pytest.approx(10.0)
    assert split.python_share == pytest.approx(0.69)


def test_only_full_decode_steps_are_full() -> None:
    assert full_decode(TIMINGS) == FullDecode(
        num_running=2, num_steps=1, mean_step_s=2.0, python_share=0.5
    )
    assert full_decode(TIMINGS[:1]) is None and full_decode([]) is None


def test_a_real_run_is_timed_and_left_as_it_was(
    bench_model: LoadedModel, bench_asked: EngineConfig
) -> None:
    requests = uniform_workload(
        list(range(2, 200)), num_requests=4, num_prompt_tokens=9, output_tokens=(3, 6), seed=5
    )
    model = bench_model.runner.model
    plain = drive(EngineTarget(fresh_engine(bench_model, bench_asked)), OpenLoop(requests))
    with timed_kernels(bench_model.runner) as kernels:
        target = TimedTarget(EngineTarget(fresh_engine(bench_model, bench_asked)), kernels)
        run = drive(target, OpenLoop(requests))
    assert bench_model.runner.model is model
    assert [r.token_ids for r in run.results] == [r.token_ids for r in plain.results]
    assert tuple(r for timing in target.timings for r in timing.records) == run.records
    split = time_split(run, target.timings)
    assert split.wall_s == pytest.approx(run.duration_s)
    assert 0 < split.kernels_s < run.duration_s and 0 < split.python_share < 1
    parts = (split.runner_s, split.schedule_s, split.update_s, split.text_s, split.arrivals_s)
    assert all(part > 0 for part in parts)
