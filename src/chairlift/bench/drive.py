"""Sends a workload to an engine, or to a simulated one, and gathers what comes back.

Open loop: requests come at their times, whatever the engine does.  Closed loop: a number of
clients, each of which sends its next request when it has its answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from chairlift.bench.policy_run import PolicyRun, RequestResult
from chairlift.bench.workload import BenchRequest
from chairlift.core.engine_core import EngineCore
from chairlift.core.request import Request
from chairlift.engine.engine import Engine
from chairlift.errors import ChairliftError
from chairlift.events import StepRecord
from chairlift.sampling_params import SamplingParams


class Target(Protocol):
    """What can be driven."""

    @property
    def core(self) -> EngineCore: ...

    def add(self, request: BenchRequest, arrival_time: float) -> None:
        """Queue a request that came at `arrival_time` of the core's clock."""
        ...

    def step(self) -> list[RequestResult]:
        """One step; the answers that are complete."""
        ...


class EngineTarget:
    """A real engine, text and all."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def core(self) -> EngineCore:
        return self.engine.core

    def add(self, request: BenchRequest, arrival_time: float) -> None:
        processed = self.engine.process_input(
            request.prompt_token_ids,
            SamplingParams(temperature=0.0, max_tokens=request.num_output_tokens, ignore_eos=True),
            request_id=request.request_id,
        )
        for child in processed.children:
            child.arrival_time = arrival_time  # it came while a step was running
        self.engine.add(processed, is_streaming=False)

    def step(self) -> list[RequestResult]:
        results = []
        for output in self.engine.step():
            completion, metrics = output.outputs[0], output.metrics
            if completion.finish_reason == "error" or metrics.first_token_time is None:
                raise ChairliftError(f"request {output.request_id} failed: {completion.error}")
            results.append(
                RequestResult(
                    request_id=output.request_id,
                    num_prompt_tokens=len(output.prompt_token_ids),
                    token_ids=tuple(completion.token_ids),
                    arrival_s=metrics.arrival_time,
                    first_token_s=metrics.first_token_time,
                    finished_s=metrics.finished_time or metrics.first_token_time,
                )
            )
        return results


class CoreTarget:
    """The engine's loop without text: for an executor that only simulates."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._open: dict[str, Request] = {}
        self._first_token_s: dict[str, float] = {}

    @property
    def core(self) -> EngineCore:
        return self._core

    def add(self, request: BenchRequest, arrival_time: float) -> None:
        added = Request(
            request.request_id,
            request.prompt_token_ids,
            request.num_output_tokens,
            arrival_time=arrival_time,
        )
        self._open[request.request_id] = added
        self._core.add_request(added)

    def step(self) -> list[RequestResult]:
        updates = self._core.step()
        now = self._core.clock.now()
        results = []
        for update in updates:
            if update.new_token_ids:
                self._first_token_s.setdefault(update.request_id, now)
            if update.is_released:
                results.append(self._result(self._open.pop(update.request_id), now))
        return results

    def _result(self, request: Request, now: float) -> RequestResult:
        first_token_s = self._first_token_s.pop(request.request_id, now)
        return RequestResult(
            request_id=request.request_id,
            num_prompt_tokens=request.num_prompt_tokens,
            token_ids=tuple(request.output_token_ids),
            arrival_s=request.arrival_time,
            first_token_s=now if self._core.scheduler.batching.holds_finished else first_token_s,
            finished_s=now,
        )


class Feed(Protocol):
    """Says which requests have come.  Times count from the start of the run."""

    @property
    def next_arrival_s(self) -> float | None:
        """When the next one comes by itself; None: none, or only after an answer."""
        ...

    def take(self, now_s: float, num_in_flight: int) -> list[tuple[BenchRequest, float]]:
        """The requests that have come, with the time when they did."""
        ...


class OpenLoop:
    """Requests come at their own times."""

    def __init__(self, requests: Sequence[BenchRequest]) -> None:
        self._left = deque(sorted(requests, key=lambda request: request.arrival_s))

    @property
    def next_arrival_s(self) -> float | None:
        return self._left[0].arrival_s if self._left else None

    def take(self, now_s: float, num_in_flight: int) -> list[tuple[BenchRequest, float]]:
        taken = []
        while self._left and self._left[0].arrival_s <= now_s:
            request = self._left.popleft()
            taken.append((request, request.arrival_s))
        return taken


class ClosedLoop:
    """`concurrency` clients; each waits for its answer before it sends again."""

    def __init__(self, requests: Sequence[BenchRequest], concurrency: int) -> None:
        self._left = deque(requests)
        self._concurrency = concurrency

    @property
    def next_arrival_s(self) -> float | None:
        return None

    def take(self, now_s: float, num_in_flight: int) -> list[tuple[BenchRequest, float]]:
        count = min(len(self._left), self._concurrency - num_in_flight)
        return [(self._left.popleft(), now_s) for _ in range(count)]


def drive(
    target: Target, feed: Feed, on_step: Callable[[StepRecord], None] | None = None
) -> PolicyRun:
    """Run until every request has its answer.  `on_step` sees each step as it ends."""
    core = target.core
    records: list[StepRecord] = []
    core.recorder.listen(records.append)
    if on_step is not None:
        core.recorder.listen(on_step)
    results: list[RequestResult] = []
    start_s = end_s = core.clock.now()
    num_in_flight = 0
    while True:
        now_s = core.clock.now() - start_s
        for request, arrival_s in feed.take(now_s, num_in_flight):
            target.add(request, start_s + arrival_s)
            num_in_flight += 1
        pause_s = _pause_s(core.idle_s(), feed.next_arrival_s, now_s)
        if pause_s is None:
            break
        if pause_s > 0:
            core.clock.sleep(pause_s)
            continue
        answered = target.step()
        num_in_flight -= len(answered)
        results += answered
        end_s = core.clock.now()
    assert num_in_flight == 0, f"{num_in_flight} requests got no answer"
    core.step()  # lets the executor forget the last ones
    config = core.scheduler.config
    return PolicyRun(
        policy=config.batching_policy,
        num_seats=config.max_num_seqs,
        start_s=start_s,
        duration_s=end_s - start_s,
        records=tuple(records),
        results=tuple(results),
    )


def _pause_s(idle_s: float | None, next_arrival_s: float | None, now_s: float) -> float | None:
    """How long nothing will happen; 0: step now; None: nothing is left."""
    pauses = [] if idle_s is None else [idle_s]
    if next_arrival_s is not None and idle_s != 0.0:
        pauses.append(max(1e-6, next_arrival_s - now_s))
    return min(pauses, default=None)
