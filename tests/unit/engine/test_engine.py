from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from chairlift.clock import ManualClock
from chairlift.config import EngineConfig
from chairlift.engine.engine import Engine
from chairlift.engine.loaded_model import LoadedModel
from chairlift.errors import RequestError
from chairlift.sampling_params import SamplingParams
from engines import Job, make_engine, run_jobs

Load = Callable[..., LoadedModel]
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


@pytest.fixture
def engine(load_tiny: Load) -> Engine:
    return make_engine(load_tiny())


def run(engine: Engine) -> dict[str, object]:
    """Step to the end; the finished outputs by id."""
    finished = {}
    while engine.has_unfinished_requests:
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = output
    return finished


def test_id_in_use_is_refused_and_free_again_afterwards(engine: Engine) -> None:
    engine.add_request("abc", GREEDY, request_id="r")
    with pytest.raises(RequestError) as caught:
        engine.add_request("xyz", GREEDY, request_id="r")
    assert caught.value.field == "request_id"
    assert run(engine).keys() == {"r"}
    engine.add_request("xyz", GREEDY, request_id="r")
    assert run(engine).keys() == {"r"}


def test_refused_children_take_nobody_elses_request_with_them(engine: Engine) -> None:
    """Ids of completions ("x#1") may be taken; refusing "x" leaves their owner alone."""
    for name in ("x#0", "x#1"):
        engine.add_request("abc", GREEDY, request_id=name)
    params = SamplingParams(n=3, max_tokens=2)
    with pytest.raises(RequestError, match="in use"):
        engine.add_request("abc", params, request_id="x")
    assert run(engine).keys() == {"x#0", "x#1"}


def test_partly_added_children_are_taken_back(engine: Engine) -> None:
    engine.add_request("abc", GREEDY, request_id="x#2")
    with pytest.raises(RequestError, match="in use"):
        engine.add_request("abc", SamplingParams(n=3, max_tokens=2), request_id="x")
    assert set(engine.scheduler.requests) == {"x#2"}
    assert run(engine).keys() == {"x#2"}


def test_abort_returns_the_last_output_once(engine: Engine) -> None:
    engine.add_request("abc", SamplingParams(n=2, max_tokens=50), request_id="r")
    for _ in range(4):
        engine.step()
    (output,) = engine.abort("r")
    assert output.finished
    assert [c.finish_reason for c in output.outputs] == ["abort", "abort"]
    assert all(c.token_ids for c in output.outputs)
    assert engine.abort("r") == [] == engine.abort("never heard of")
    engine.scheduler.check_integrity()


def test_abort_that_ends_a_static_batch_keeps_the_others_answers(load_tiny: Load) -> None:
    engine = make_engine(load_tiny(), batching_policy="static", batch_wait_ms=0.0)
    engine.add_request("abc", GREEDY, request_id="short")
    engine.add_request("abc", SamplingParams(max_tokens=60, ignore_eos=True), request_id="long")
    for _ in range(6):
        assert engine.step() == []
    assert [output.request_id for output in engine.abort("long")] == ["long"]
    assert run(engine).keys() == {"short"}


def test_streaming_is_per_request(engine: Engine) -> None:
    engine.add_request("abc", GREEDY, request_id="stream")
    engine.add_request("abc", GREEDY, request_id="end", is_streaming=False)
    seen: dict[str, int] = {"stream": 0, "end": 0}
    while engine.has_unfinished_requests:
        for output in engine.step():
            seen[output.request_id] += 1
    assert seen == {"stream": 4, "end": 1}


def test_waiting_window_is_slept_on_the_engines_clock(load_tiny: Load) -> None:
    model, clock = load_tiny(), ManualClock()
    engine = make_engine(model, batching_policy="dynamic", batch_wait_ms=5000.0)
    engine.clock = engine.core.clock = clock
    engine.add_request("abc", GREEDY)
    assert clock.now() == 0.0
    engine.step()
    assert clock.now() == pytest.approx(5.0)


def test_metrics_tell_waiting_running_and_preemption(load_tiny: Load) -> None:
    engine = make_engine(load_tiny(), num_blocks=5, enable_prefix_caching=False)
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    outputs = run_jobs(engine, [Job(prompt="a" * 20, params=params) for _ in range(2)])
    metrics = [output.metrics for output in outputs]
    assert metrics[1].num_preemptions > 0 == metrics[0].num_preemptions
    for item in metrics:
        assert item.first_scheduled_time is not None and item.first_token_time is not None
        assert item.last_token_time is not None and item.finished_time is not None
        assert (
            item.arrival_time
            <= item.first_scheduled_time
            <= item.first_token_time
            <= item.last_token_time
            <= item.finished_time
        )
        assert len(item.token_times) == 30 and item.token_times == sorted(item.token_times)
        assert item.time_to_first_token_s == item.first_token_time - item.arrival_time


def test_trace_has_a_line_per_step(load_tiny: Load, tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    engine = Engine(load_tiny(), EngineConfig(trace=str(path)))
    run_jobs(engine, [Job(prompt="abc", params=GREEDY)])
    engine.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["prefill", "decode", "decode", "decode"]
    assert lines[-1]["finished"] == [["0", "length"]]
    run_jobs(engine, [Job(prompt="abc", params=GREEDY)])
    assert len(path.read_text().splitlines()) == 4, "closed: no more lines, and no error"
