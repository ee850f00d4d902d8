"""Steps wait for permits where a test must know how many there have been."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chairlift.engine.async_engine import AsyncEngine
from chairlift.engine.engine import Engine
from chairlift.engine.loaded_model import LoadedModel
from chairlift.errors import EngineDeadError, RequestError
from chairlift.outputs import RequestOutput
from chairlift.sampling_params import SamplingParams
from engines import Job, make_engine, run_jobs

Load = Callable[..., LoadedModel]
LONG = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
SHORT = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)


class Gate:
    """Lets an engine's steps pass one by one; `fault` makes the next one raise."""

    def __init__(self, engine: Engine) -> None:
        self._permits = threading.Semaphore(0)
        self._step = engine.step
        self.is_waiting = threading.Event()
        self.fault: BaseException | None = None
        engine.step = self.step  # type: ignore[method-assign]

    def step(self) -> list[RequestOutput]:
        self.is_waiting.set()
        assert self._permits.acquire(timeout=10), "the test has let no further step pass"
        self.is_waiting.clear()
        if self.fault is not None:
            raise self.fault
        return self._step()

    def let(self, num_steps: int) -> None:
        self._permits.release(num_steps)


@pytest.fixture
def start(load_tiny: Load) -> Iterator[Callable[..., AsyncEngine]]:
    """start(max_num_seqs=2) -> a running AsyncEngine over the tiny model; stopped at the end."""
    started: list[AsyncEngine] = []

    def make(**options: Any) -> AsyncEngine:
        started.append(AsyncEngine(make_engine(load_tiny(), **options)))
        return started[-1]

    yield make
    for engine in started:
        engine.shutdown()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def collect(engine: AsyncEngine, prompt: Any, params: SamplingParams, **named: Any) -> str:
    """The text of a request, read to its end."""
    async for output in engine.generate(prompt, params, **named):
        last = output
    assert last.finished
    return last.outputs[0].text


async def test_concurrent_tasks_get_the_text_they_have_alone(
    start: Callable[..., AsyncEngine], load_tiny: Load
) -> None:
    engine = start()
    prompts = [f"prompt {index}" for index in range(12)]
    together = await asyncio.gather(*(collect(engine, prompt, SHORT) for prompt in prompts))
    alone = run_jobs(make_engine(load_tiny()), [Job(prompt=p, params=SHORT) for p in prompts])
    assert list(together) == [output.outputs[0].text for output in alone]
    assert max(record.num_running for record in engine.engine.core.recorder.records) > 1


async def test_outputs_are_cumulative_and_the_last_is_finished(
    start: Callable[..., AsyncEngine],
) -> None:
    counts, flags = [], []
    async for output in start().generate("abc", SHORT):
        counts.append(len(output.outputs[0].token_ids))
        flags.append(output.finished)
    assert counts == sorted(set(counts)) and counts[-1] == 5
    assert flags == [False] * (len(flags) - 1) + [True]


async def test_200_requests_all_end(start: Callable[..., AsyncEngine]) -> None:
    engine = start(max_num_seqs=32)
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    texts = await asyncio.gather(*(collect(engine, f"{i}", params) for i in range(200)))
    assert len(texts) == 200
    await until(lambda: not engine.engine.has_unfinished_requests)
    engine.engine.scheduler.check_integrity()


async def test_cancelled_task_aborts_within_a_step(start: Callable[..., AsyncEngine]) -> None:
    engine = start()
    gate = Gate(engine.engine)
    task = asyncio.create_task(collect(engine, "abc", LONG))
    gate.let(3)
    await until(lambda: len(engine.engine.core.recorder.records) == 3 and gate.is_waiting.is_set())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.let(1)
    await until(lambda: not engine.engine.scheduler.has_requests)
    assert len(engine.engine.core.recorder.records) == 4
    engine.engine.scheduler.check_integrity()


async def test_leaving_the_iteration_aborts(start: Callable[..., AsyncEngine]) -> None:
    engine = start()
    async for _ in engine.generate("abc", LONG):
        break
    await until(lambda: not engine.engine.scheduler.has_requests)
    assert await collect(engine, "abc", SHORT)


async def test_task_cancelled_before_its_request_was_added_leaves_nothing(
    start: Callable[..., AsyncEngine],
) -> None:
    engine = start()
    for _ in range(20):
        task = asyncio.create_task(collect(engine, "abc", LONG))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await collect(engine, "abc", SHORT)
    await until(lambda: not engine.engine.has_unfinished_requests)


async def test_abort_by_id_gives_the_reader_a_last_output(
    start: Callable[..., AsyncEngine],
) -> None:
    engine = start()
    reasons = []
    async for output in engine.generate("abc", LONG, request_id="mine"):
        reasons.append(output.outputs[0].finish_reason)
        await engine.abort("mine")
        await engine.abort("somebody else")
    assert reasons[-1] == "abort" and reasons[0] is None


async def test_bad_requests_are_refused_and_the_engine_goes_on(
    start: Callable[..., AsyncEngine],
) -> None:
    engine = start(num_blocks=4)
    before = await collect(engine, "abc", SHORT)
    for prompt, params in (
        ("", SHORT),
        ([999], SHORT),
        ("abc", LONG),  # longer than the pool: known to the engine's thread only
    ):
        with pytest.raises(RequestError):
            await collect(engine, prompt, params)
    assert await collect(engine, "abc", SHORT) == before


async def test_id_in_use_is_refused_by_name(start: Callable[..., AsyncEngine]) -> None:
    engine = start()
    async for _ in engine.generate("abc", LONG, request_id="r"):
        with pytest.raises(RequestError) as caught:
            await collect(engine, "abc", SHORT, request_id="r")
        assert caught.value.field == "request_id"
        break
    await until(lambda: not engine.engine.scheduler.has_requests)
    assert await collect(engine, "abc", SHORT, request_id="r")


@pytest.mark.parametrize("fault", [RuntimeError("out of snow"), SystemExit("out of snow")])
async def test_dead_engine_tells_every_waiter_and_later_callers(
    start: Callable[..., AsyncEngine], fault: BaseException
) -> None:
    engine = start()
    gate = Gate(engine.engine)
    running = [asyncio.create_task(collect(engine, "abc", LONG)) for _ in range(3)]
    gate.let(2)
    await until(lambda: len(engine.engine.core.recorder.records) == 2 and gate.is_waiting.is_set())
    # This one is in the queue, not yet known to the engine, when the engine dies.
    running.append(asyncio.create_task(collect(engine, "xyz", SHORT)))
    await until(lambda: len(engine._readers) == 4)
    gate.fault = fault
    gate.let(1)
    async with asyncio.timeout(10):
        for task in running:
            with pytest.raises(EngineDeadError, match="out of snow"):
                await task
    assert not engine.is_alive
    with pytest.raises(EngineDeadError, match="out of snow"):
        await collect(engine, "abc", SHORT)
    await engine.abort("whatever")


async def test_fault_while_adding_does_not_leave_the_caller_waiting(
    start: Callable[..., AsyncEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start()

    def broken(*args: object, **named: object) -> str:
        raise RuntimeError("no room in the house")

    monkeypatch.setattr(engine.engine, "add", broken)
    async with asyncio.timeout(10):
        with pytest.raises(EngineDeadError, match="no room"):
            await collect(engine, "abc", SHORT)


async def test_shutdown_ends_running_and_queued_requests(
    start: Callable[..., AsyncEngine],
) -> None:
    engine = start()
    gate = Gate(engine.engine)
    tasks = [asyncio.create_task(collect(engine, "abc", LONG))]
    await until(gate.is_waiting.is_set)
    tasks.append(asyncio.create_task(collect(engine, "abc", LONG)))
    await until(lambda: len(engine._readers) == 2)
    stopping = asyncio.create_task(asyncio.to_thread(engine.shutdown))
    await until(lambda: engine._is_stopping)
    gate.let(1)
    await stopping
    for task in tasks:
        with pytest.raises(EngineDeadError, match="shut down"):
            await task
    with pytest.raises(EngineDeadError, match="shut down"):
        await collect(engine, "abc", SHORT)
    engine.shutdown()


def test_answer_that_came_before_the_shutdown_is_not_lost(
    start: Callable[..., AsyncEngine],
) -> None:
    engine = start()

    async def slow_reader() -> list[bool]:
        seen = []
        async for output in engine.generate("abc", SHORT):
            seen.append(output.finished)
            if len(seen) == 1:
                while engine.engine.has_unfinished_requests:
                    threading.Event().wait(0.001)  # the loop stands still meanwhile
                engine.shutdown()
        return seen

    assert asyncio.run(slow_reader())[-1] is True


def test_two_event_loops_share_one_engine(start: Callable[..., AsyncEngine]) -> None:
    engine = start()
    texts: list[list[str]] = []

    async def several() -> list[str]:
        return list(
            await asyncio.gather(*(collect(engine, f"prompt {i}", SHORT) for i in range(5)))
        )

    threads = [
        threading.Thread(target=lambda: texts.append(asyncio.run(several()))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(texts) == 2 and texts[0] == texts[1]


def test_requests_of_a_closed_event_loop_are_aborted(start: Callable[..., AsyncEngine]) -> None:
    engine = start()
    loop = asyncio.new_event_loop()
    outputs = engine.generate("abc", LONG)
    loop.run_until_complete(anext(outputs))
    loop.close()  # without ending its generators first
    text = asyncio.run(collect(engine, "abc", SHORT))
    assert text
    asyncio.run(until(lambda: not engine.engine.scheduler.has_requests))
    reasons = [
        reason for record in engine.engine.core.recorder.records for _, reason in record.finished
    ]
    assert reasons == ["length"], "the long one did not run to its end"


async def test_dynamic_batch_waits_for_its_window_without_a_busy_loop(
    start: Callable[..., AsyncEngine],
) -> None:
    engine = start(batching_policy="dynamic", batch_wait_ms=60.0)
    texts = await asyncio.gather(*(collect(engine, "abc", SHORT) for _ in range(3)))
    assert len(set(texts)) == 1
    first = engine.engine.core.recorder.records[0]
    assert len(first.admitted) == 3, "they had time to gather"


async def test_requests_of_one_reader_end_together(start: Callable[..., AsyncEngine]) -> None:
    engine = start()
    requests = [
        engine.engine.process_input(f"{index}", SHORT, request_id=f"r{index}") for index in range(3)
    ]
    newest: dict[str, RequestOutput] = {}
    with engine.submit(requests) as reader:
        while not reader.is_finished:
            for output in await reader.get():
                newest[output.request_id] = output
    assert sorted(newest) == ["r0", "r1", "r2"]
    assert all(len(output.outputs[0].token_ids) == 5 for output in newest.values())


async def test_without_streaming_only_the_end_is_read(start: Callable[..., AsyncEngine]) -> None:
    engine = start()
    requests = [engine.engine.process_input("abc", SHORT) for _ in range(2)]
    outputs = []
    with engine.submit(requests, is_streaming=False) as reader:
        while not reader.is_finished:
            outputs += await reader.get()
    assert [output.finished for output in outputs] == [True, True]


async def test_if_one_request_is_refused_none_is_added(start: Callable[..., AsyncEngine]) -> None:
    engine = start()
    requests = [engine.engine.process_input("abc", LONG, request_id="same") for _ in range(2)]
    with pytest.raises(RequestError, match="in use"), engine.submit(requests) as reader:
        await reader.get()
    await until(lambda: not engine.engine.has_unfinished_requests)
    assert await collect(engine, "abc", SHORT)


async def test_nudge_returns_with_nothing(start: Callable[..., AsyncEngine]) -> None:
    engine = start()
    gate = Gate(engine.engine)
    with engine.submit([engine.engine.process_input("abc", SHORT)]) as reader:
        reader.nudge()
        assert await reader.get() == []
        gate.let(20)
        while not reader.is_finished:
            await reader.get()


async def test_failing_from_outside_while_a_step_hangs(start: Callable[..., AsyncEngine]) -> None:
    engine = start()
    gate = Gate(engine.engine)
    task = asyncio.create_task(collect(engine, "abc", SHORT))
    await until(gate.is_waiting.is_set)
    assert engine.step_started_s is not None
    engine.fail("given up")
    with pytest.raises(EngineDeadError, match="given up"):
        await task
    assert not engine.is_alive and not engine.join(0.01)
    gate.let(1)
    assert await asyncio.to_thread(engine.join, 10)


async def test_tenants_share_the_engine(start: Callable[..., AsyncEngine]) -> None:
    engine = start(max_num_seqs=1)
    engine.engine.share_fairly({})
    gate = Gate(engine.engine)
    finished: list[str] = []

    async def ask(name: str) -> None:
        async for _ in engine.generate([5, 6, 7], SHORT, request_id=name, tenant=name[0]):
            pass
        finished.append(name)

    tasks = [asyncio.create_task(ask("a0"))]
    await asyncio.to_thread(gate.is_waiting.wait, 10)
    for name in ("a1", "a2", "b0"):
        tasks.append(asyncio.create_task(ask(name)))
        while len(engine._commands) < len(tasks) - 1:
            await asyncio.sleep(0.001)
    gate.let(100)
    await asyncio.gather(*tasks)
    assert finished[:2] == ["a0", "b0"]
