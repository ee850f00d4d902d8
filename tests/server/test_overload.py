"""Ten times more than an engine can do: goodput stays, and nobody is admitted only to be late.

The real scheduler and the real queue, on an engine whose steps take a fixed time per token, on a
clock of its own: what happens does not depend on the machine.  `benchmarks/overload.py` measures
the same over HTTP.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from chairlift.clock import ManualClock
from chairlift.config import SchedulerConfig
from chairlift.core.engine_core import EngineCore
from chairlift.core.kv_cache_manager import KVCacheManager
from chairlift.core.scheduler import Scheduler
from chairlift.core.scheduler_output import RunnerOutput, SampledToken, SchedulerOutput
from chairlift.engine.deadlines import Deadlines
from chairlift.engine.input_processor import ProcessedInput
from chairlift.sampling_params import SamplingParams
from chairlift.server.admission import Arrival, BoundedQueue
from chairlift.server.errors import ApiError
from chairlift.server.queue_room import QueueLimits
from chairlift.server.service_estimate import ServiceEstimate
from fake_executor import FinishedStep, make_request
from http_harness import until
from server_gate import Gate

STEP_S, TOKEN_S = 0.005, 0.001
PROMPT = OUTPUT = 64
CAPACITY = 7.3
"""Requests a second, about: 128 tokens each, and their part of the steps."""
DEADLINE_S = 9.0
RUN_S, RAMP_S = 40.0, 10.0


@dataclass
class TimedExecutor:
    """Takes its time on a clock that stands still otherwise."""

    clock: ManualClock
    unevenness: float = 0.0
    """0: the same time for the same work; 0.5: half or one and a half of it, for seconds on end."""
    overlap_depth: int = 0

    def submit(self, output: SchedulerOutput) -> FinishedStep:
        is_slow = int(self.clock.now() / 3.0) % 2
        pace = 1.0 + (self.unevenness if is_slow else -self.unevenness)
        self.clock.advance(pace * (STEP_S + TOKEN_S * output.num_tokens))
        token = SampledToken(token_id=1)
        members = output.scheduled
        return FinishedStep(
            RunnerOutput(sampled={item.request_id: token for item in members if item.is_sampling})
        )


@dataclass
class Outcome:
    """Of one run, by key."""

    num_good_tokens: Counter[str] = field(default_factory=Counter)
    """Of answers in time, after the ramp."""
    num_late: int = 0
    causes: Counter[str] = field(default_factory=Counter)

    @property
    def goodput(self) -> float:
        return sum(self.num_good_tokens.values()) / (RUN_S - RAMP_S)


class Server:
    """A queue, an engine behind it, and clients that come at random times."""

    def __init__(
        self,
        *,
        max_num_seqs: int = 256,
        weights: Mapping[str, int] | None = None,
        unevenness: float = 0.0,
    ) -> None:
        self.clock = ManualClock()
        scheduler = Scheduler(
            SchedulerConfig(max_num_seqs=max_num_seqs),
            KVCacheManager(4000, 16, enable_prefix_caching=False),
        )
        if weights is not None:
            scheduler.share_fairly(weights)
        self.core = EngineCore(scheduler, TimedExecutor(self.clock, unevenness), self.clock)
        limits = QueueLimits(max_requests=512, max_tokens=262_144)
        self.queue = BoundedQueue(limits, weights=weights, now=self.clock.now)
        self.core.recorder.listen(self.queue.step_done)
        self.deadlines = Deadlines()
        self.inside: dict[str, Arrival] = {}
        self.outcome = Outcome()
        self.num_arrivals = 0

    def run(self, rates: Mapping[str, float], *, tells_deadline: bool = True) -> Outcome:
        """`rates`: requests a second, by key.  `tells_deadline`: to the queue, not only to us."""
        draw = random.Random(7)
        due = {key: draw.expovariate(rate) for key, rate in rates.items()}
        while self.clock.now() < RUN_S:
            for key, rate in rates.items():
                while due[key] <= self.clock.now():
                    self.arrive(key, due[key], tells_deadline)
                    due[key] += draw.expovariate(rate)
            for name in self.deadlines.take_expired(self.clock.now()):
                self.core.abort(name)
                self.queue.leave(self.inside.pop(name))
                self.outcome.num_late += 1
            if self.core.has_work:
                self.step()
            else:
                self.clock.advance(max(0.0, min(due.values()) - self.clock.now()))
        return self.outcome

    def arrive(self, key: str, at_s: float, tells_deadline: bool) -> None:
        self.num_arrivals += 1
        name = f"{key}/{self.num_arrivals}"
        request = make_request(name, PROMPT, OUTPUT, tenant=key)
        processed = ProcessedInput(
            request_id=name,
            prompt=None,
            prompt_token_ids=tuple(request.prompt_token_ids),
            params=SamplingParams(),
            children=(request,),
        )
        deadline_s = at_s + DEADLINE_S
        told_s = deadline_s if tells_deadline else None
        arrival = Arrival(key_name=key, priority=0, requests=[processed], deadline_s=told_s)
        try:
            self.queue.check_open(key)
            self.queue.check_time(key, told_s)
            self.queue.admit(arrival)
        except ApiError as error:
            assert error.status == 429 and 1 <= int(dict(error.headers)[b"retry-after"]) <= 60
            self.outcome.causes[str(error.code)] += 1
            return
        self.core.add_request(request)
        self.inside[name] = arrival
        self.deadlines.add(name, deadline_s)

    def step(self) -> None:
        for update in self.core.step():
            if update.is_released and update.request_id in self.inside:
                self.queue.leave(self.inside.pop(update.request_id))
                self.deadlines.remove(update.request_id)
                if self.clock.now() > RAMP_S:
                    key = update.request_id.partition("/")[0]
                    self.outcome.num_good_tokens[key] += OUTPUT


@pytest.mark.parametrize("max_num_seqs", [16, 256])
def test_goodput_stays_under_overload(max_num_seqs: int) -> None:
    """With few seats requests wait in line, with many they slow each other down."""

    def run(load: float) -> Outcome:
        return Server(max_num_seqs=max_num_seqs).run({"": load * CAPACITY})

    peak = run(1.0).goodput
    for load in (2.0, 10.0):
        outcome = run(load)
        assert outcome.goodput >= 0.9 * peak > 0, load
        assert outcome.causes["deadline_unreachable"] > 0
        assert outcome.num_late <= 0.05 * RUN_S * CAPACITY


def test_without_a_look_at_the_time_it_would_not() -> None:
    told, untold = (
        Server().run({"": 10 * CAPACITY}, tells_deadline=tells_deadline)
        for tells_deadline in (True, False)
    )
    assert untold.goodput < 0.5 * told.goodput


def test_polite_key_is_served_while_a_greedy_one_overloads() -> None:
    """What the polite one asks for is less than its half: it gets nearly all of it."""
    polite = 0.35 * CAPACITY
    outcome = Server(weights={"greedy": 1, "polite": 1}).run(
        {"greedy": 8 * CAPACITY, "polite": polite}
    )
    good = outcome.num_good_tokens
    assert good["polite"] / (RUN_S - RAMP_S) >= 0.8 * polite * OUTPUT
    assert good["greedy"] > good["polite"], "and the rest is not wasted"


def test_little_load_is_never_turned_away() -> None:
    outcome = Server().run({"": 0.5 * CAPACITY})
    assert not outcome.causes and not outcome.num_late


def test_nothing_is_turned_away_before_anything_is_known() -> None:
    estimate = ServiceEstimate()
    asked = {"num_prompt_tokens": 10.0, "num_running": 50.0, "num_waiting": 50.0}
    assert estimate.seconds(max_tokens=1000, **asked) == 0.0
    assert estimate.seconds(max_tokens=None, **asked) == 0.0


def test_idle_server_takes_what_comes() -> None:
    """However slow it has been: who is alone is never told that there is no time."""
    server = Server()
    server.run({"": 10 * CAPACITY})
    for name in list(server.inside):
        server.core.abort(name)
        server.queue.leave(server.inside.pop(name))
    server.queue.check_time("", server.clock.now() + 0.01)


def test_answer_says_that_there_is_no_time(serve: Any) -> None:
    """Over HTTP: by body, by header, and only to those that have a deadline."""
    with serve(engine={"max_num_seqs": 1}) as server:
        gate = Gate(server.engine)
        server.serving.admission._estimate.seconds = lambda **asked: 3000.0
        with ThreadPoolExecutor(3) as pool:
            first = pool.submit(server.complete, timeout=500.0)
            until(lambda: server.serving.admission.num_waiting == 1)
            for fields in ({"timeout": 500.0}, {"headers": {"x-request-timeout": "500"}}):
                for call in (server.complete, server.chat):
                    answer = call(**fields)
                    assert answer.status == 429
                    assert answer.error["code"] == "deadline_unreachable"
                    assert answer.headers["retry-after"] == "60"
            patient = pool.submit(server.complete, timeout=1e6)
            timeless = pool.submit(server.complete)
            until(lambda: server.serving.admission.num_waiting == 3)
            gate.open()
            assert patient.result().status == 200 == timeless.result().status
            assert first.result().status == 200
        server.check_idle()


def test_uneven_engine_teaches_caution() -> None:
    """Half or one and a half of its pace for seconds on end: few are late, and goodput stays."""
    server = Server(unevenness=0.5)
    peak = Server(unevenness=0.5).run({"": CAPACITY}).goodput
    outcome = server.run({"": 10 * CAPACITY})
    assert outcome.goodput >= 0.9 * peak > 0
    assert server.queue._margin < 0.8
    assert outcome.num_late <= 0.25 * outcome.goodput * RUN_S / OUTPUT
