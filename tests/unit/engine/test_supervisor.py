"""The supervisor by itself, over engines that fail on demand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chairlift.engine import supervisor as supervisor_module
from chairlift.engine.engine import Engine
from chairlift.engine.loaded_model import LoadedModel
from chairlift.engine.supervisor import EngineSupervisor
from chairlift.errors import EngineDeadError, ModelFileError
from chairlift.events import StepRecord
from chairlift.sampling_params import SamplingParams
from engines import make_engine
from server_gate import Gate

Load = Callable[..., LoadedModel]
SHORT = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
WAIT_S = 20.0


@pytest.fixture
def supervise(load_tiny: Load) -> Iterator[Callable[..., tuple[EngineSupervisor, list[Engine]]]]:
    """supervise() -> (a started supervisor, the engines it has built); stopped at the end."""
    made: list[EngineSupervisor] = []

    def start(
        build: Callable[[], Engine] | None = None, **options: Any
    ) -> tuple[EngineSupervisor, list[Engine]]:
        engines: list[Engine] = []

        def build_and_keep() -> Engine:
            engines.append((build or (lambda: make_engine(load_tiny())))())
            return engines[-1]

        given = {"check_interval_s": 0.01, "retry_wait_s": 0.01, **options}
        supervisor = EngineSupervisor(build_and_keep, **given)
        made.append(supervisor)
        return supervisor, engines

    yield start
    for supervisor in made:
        supervisor.shutdown()


async def tokens_of(supervisor: EngineSupervisor) -> int:
    async for output in supervisor.current().generate("abc", SHORT):
        last = output
    return len(last.outputs[0].token_ids)


def test_no_memory_for_a_thread_is_a_failure_to_build(
    supervise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for it is told, rather than left waiting."""

    def no_thread(engine: Engine) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(supervisor_module, "AsyncEngine", no_thread)
    supervisor, _ = supervise()
    supervisor.start()
    assert supervisor.wait_until("dead", timeout_s=WAIT_S)
    assert isinstance(supervisor.failure, RuntimeError)


async def test_it_hands_out_a_working_engine(supervise: Any) -> None:
    supervisor, _ = supervise()
    with pytest.raises(EngineDeadError, match="starting"):
        supervisor.current()
    supervisor.start()
    assert supervisor.wait_until("running", timeout_s=WAIT_S)
    assert await tokens_of(supervisor) == 3


def test_failure_at_the_start_is_kept(supervise: Any) -> None:
    def build() -> Engine:
        raise ModelFileError("there is no such file")

    supervisor, _ = supervise(build)
    supervisor.start()
    assert supervisor.wait_until("dead", timeout_s=WAIT_S)
    assert isinstance(supervisor.failure, ModelFileError)
    with pytest.raises(EngineDeadError, match="dead"):
        supervisor.current()


async def test_dead_engine_is_replaced_and_waiting_tasks_are_told(supervise: Any) -> None:
    changes: list[str] = []
    supervisor, engines = supervise()
    supervisor.on_change = lambda: changes.append(supervisor.state)
    supervisor.start()
    assert supervisor.wait_until("running", timeout_s=WAIT_S)
    gate = Gate(engines[0])
    gate.fault = KeyError("for the test")
    waiting = asyncio.create_task(tokens_of(supervisor))
    await asyncio.sleep(0.05)
    gate.open()
    with pytest.raises(EngineDeadError):
        await waiting
    await asyncio.to_thread(lambda: wait_for(lambda: len(engines) == 2))
    assert await asyncio.to_thread(supervisor.wait_until, "running", timeout_s=WAIT_S)
    assert await tokens_of(supervisor) == 3
    assert changes[:3] == ["running", "restarting", "running"] and supervisor.num_rebuilds == 1


def wait_for(condition: Callable[[], bool]) -> None:
    moment = threading.Event()
    for _ in range(2000):
        if condition():
            return
        moment.wait(0.01)
    raise AssertionError("waited in vain")


async def test_listeners_hear_of_every_engine(supervise: Any) -> None:
    heard: list[StepRecord] = []
    supervisor, engines = supervise()
    supervisor.listen(heard.append)
    supervisor.start()
    assert supervisor.wait_until("running", timeout_s=WAIT_S)
    await tokens_of(supervisor)
    before = len(heard)
    assert before >= 3
    supervisor.current().fail("for the test")
    await asyncio.to_thread(lambda: wait_for(lambda: len(engines) == 2))
    assert await asyncio.to_thread(supervisor.wait_until, "running", timeout_s=WAIT_S)
    await tokens_of(supervisor)
    assert len(heard) > before


def test_too_many_hung_engines_are_the_end(supervise: Any, monkeypatch: Any) -> None:
    from chairlift.engine import supervisor as module

    monkeypatch.setattr(module, "_JOIN_S", 0.1)
    release = threading.Event()

    supervisor, engines = supervise(step_timeout_s=0.05)
    supervisor.start()
    for count in (1, 2):
        wait_for(lambda count=count: len(engines) == count)  # type: ignore[misc]
        assert supervisor.wait_until("running", timeout_s=WAIT_S)
        engine = supervisor.current()
        engine.engine.step = lambda: release.wait(30) and []  # type: ignore[method-assign]
        request = engine.engine.process_input("abc", SHORT)
        engine._tell(lambda engine=engine, request=request: engine.engine.add(request))
        wait_for(lambda: supervisor.state != "running")
    assert supervisor.wait_until("dead", timeout_s=WAIT_S)
    release.set()


def test_shutdown_while_it_builds(supervise: Any, load_tiny: Load) -> None:
    may_build = threading.Event()

    def build() -> Engine:
        may_build.wait(WAIT_S)
        return make_engine(load_tiny())

    supervisor, engines = supervise(build)
    supervisor.start()
    timer = threading.Timer(0.2, may_build.set)
    timer.start()
    supervisor.shutdown()
    assert supervisor.state == "stopped"
    timer.join()
    with pytest.raises(EngineDeadError):
        supervisor.current()
