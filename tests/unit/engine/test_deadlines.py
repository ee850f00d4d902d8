"""Deadlines: the heap by itself, and an engine that keeps them on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from chairlift.clock import ManualClock
from chairlift.engine.deadlines import Deadlines
from chairlift.engine.engine import Engine
from chairlift.engine.loaded_model import LoadedModel
from chairlift.outputs import DEADLINE, RequestOutput
from chairlift.sampling_params import SamplingParams
from engines import make_engine

Load = Callable[..., LoadedModel]
LONG = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)


def engine_on(clock: ManualClock, model: LoadedModel, **options: object) -> Engine:
    engine = make_engine(model, **options)
    engine.clock = engine.core.clock = clock
    return engine


def add(engine: Engine, name: str, deadline_s: float | None, params: SamplingParams = LONG) -> None:
    engine.add(engine.process_input("abc", params, request_id=name), deadline_s=deadline_s)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9), st.booleans())))
def test_each_live_request_expires_once_and_in_time(actions: list[tuple[str, int, bool]]) -> None:
    deadlines, expected = Deadlines(), dict[str, int]()
    for name, moment, is_removal in actions:
        if is_removal:
            deadlines.remove(name)
            expected.pop(name, None)
        elif name not in expected:
            deadlines.add(name, moment)
            expected[name] = moment
        assert deadlines.next_s() == min(expected.values(), default=None)
    for now in range(10):
        due = {name for name, moment in expected.items() if moment <= now}
        assert set(deadlines.take_expired(now)) == due
        expected = {name: moment for name, moment in expected.items() if name not in due}
    assert deadlines.next_s() is None


def test_waiting_request_expires_before_it_is_scheduled(load_tiny: Load) -> None:
    clock = ManualClock()
    engine = engine_on(clock, load_tiny())
    add(engine, "late", 1.0)
    clock.advance(1.0)
    (output,) = engine.step()
    assert output.finished and output.outputs[0].finish_reason == "abort"
    assert output.outputs[0].stop_reason == DEADLINE
    assert not engine.has_unfinished_requests and not engine.core.recorder.records
    assert output.metrics.first_scheduled_time is None


def test_running_request_keeps_what_it_has(load_tiny: Load) -> None:
    clock = ManualClock()
    engine = engine_on(clock, load_tiny())
    add(engine, "r", 1.0, SamplingParams(n=2, max_tokens=50, ignore_eos=True))
    for _ in range(4):
        engine.step()
    clock.advance(2.0)
    outputs = engine.step()
    assert len(outputs) == 1 and outputs[0].finished
    assert all(c.token_ids and c.stop_reason == DEADLINE for c in outputs[0].outputs)
    engine.scheduler.check_integrity()


def test_request_that_ends_in_time_is_forgotten(load_tiny: Load) -> None:
    clock = ManualClock()
    engine = engine_on(clock, load_tiny())
    add(engine, "r", 1.0, SamplingParams(max_tokens=2, ignore_eos=True))
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests:
        outputs += engine.step()
    assert outputs[-1].outputs[0].finish_reason == "length"
    assert engine.idle_s() is None
    add(engine, "r", 5.0)
    clock.advance(2.0)
    engine.step()
    assert engine.has_unfinished_requests, "the deadline of its namesake is not its own"


def test_idle_engine_wakes_for_a_deadline(load_tiny: Load) -> None:
    clock = ManualClock()
    engine = engine_on(clock, load_tiny(), batching_policy="static", batch_wait_ms=60_000.0)
    add(engine, "r", 3.0)
    assert engine.idle_s() == 3.0
    clock.advance(3.0)
    assert engine.idle_s() == 0.0
    assert engine.step()[0].finished and engine.idle_s() is None
