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
from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from chairlift.clock import ManualClock
from chairlift.config import SchedulerConfig
from chairlift.core.engine_core import EngineCore
from chairlift.core.kv_cache_manager import KVCacheManager
from chairlift.core.request import Request
from chairlift.core.scheduler import Scheduler
from chairlift.core.scheduler_output import RunnerOutput, SampledToken, SchedulerOutput
from chairlift.engine.deadlines import Deadlines
from chairlift.engine.input_processor import ProcessedInput
from chairlift.events import StepRecord
from chairlift.sampling_params import SamplingParams
from chairlift.server.admission import BoundedQueue
from chairlift.server.arrival import Arrival
from chairlift.server.errors import ApiError
from chairlift.server.queue_room import QueueLimits
from chairlift.server.service_estimate import ServiceEstimate, WorkAhead
from fake_executor import FinishedStep, make_request
from http_harness import MODEL, until
from server_gate import Gate

STEP_S, TOKEN_S = 0.005, 0.001
PROMPT = OUTPUT = 64
CAPACITY = 7.3
"""Requests a second, about: 128 tokens each, and their part of the steps."""
VECTOR = 8
"""Tokens of a text of which the vector is wanted."""
DEADLINE_S = 9.0
RUN_S, RAMP_S = 40.0, 10.0


NOTHING: dict[str, Any] = {
    **{each.name: 0 for each in fields(StepRecord)},
    **{name: () for name in ("members", "admitted", "finished", "preemptions")},
    "limit": "arrivals",
    "error": None,
}
"""The record of a step in which nothing happened."""


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
        self.num_arrivals = self.num_vectors = 0

    def run(
        self,
        rates: Mapping[str, float],
        *,
        tells_deadline: bool = True,
        vectors_per_s: float = 0.0,
    ) -> Outcome:
        """`rates`: requests a second, by key.  `tells_deadline`: to the queue, not only to us.
        `vectors_per_s`: of short texts, which come whatever happens."""
        draw = random.Random(7)
        due = {key: draw.expovariate(rate) for key, rate in rates.items()}
        while self.clock.now() < RUN_S:
            while self.num_vectors < vectors_per_s * self.clock.now():
                self.add_vector()
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
        deadline_s = at_s + DEADLINE_S
        told_s = deadline_s if tells_deadline else None
        arrival = arrival_of(request, told_s)
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

    def add_vector(self) -> None:
        self.num_vectors += 1
        request = make_request(f"vector/{self.num_vectors}", VECTOR, 0)
        self.inside[request.request_id] = arrival_of(request)
        self.queue.admit(self.inside[request.request_id])
        self.core.add_request(request)

    def step(self) -> None:
        for update in self.core.step():
            if update.is_released and update.request_id in self.inside:
                self.queue.leave(self.inside.pop(update.request_id))
                if update.request_id.startswith("vector/"):
                    continue
                self.deadlines.remove(update.request_id)
                if self.clock.now() > RAMP_S:
                    key = update.request_id.partition("/")[0]
                    self.outcome.num_good_tokens[key] += OUTPUT


def arrival_of(request: Request, deadline_s: float | None = None) -> Arrival:
    processed = ProcessedInput(
        request_id=request.request_id,
        prompt=None,
        prompt_token_ids=tuple(request.prompt_token_ids),
        params=SamplingParams(),
        children=(request,),
    )
    return Arrival(key_name=request.tenant, priority=0, requests=[processed], deadline_s=deadline_s)


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
    ahead = WorkAhead(num_running=50, num_waiting=50, num_vector_tokens=5000)
    for max_tokens in (1000, None):
        asked = {"max_tokens": max_tokens, "num_prompt_tokens": 10.0, "ahead": ahead}
        assert estimate.answer_s(**asked) == 0.0
    assert estimate.vectors_s(num_tokens=1000, ahead=ahead) == 0.0


# -- vectors -----------------------------------------------------------------------------------
def test_vectors_among_them_make_no_answer_late() -> None:
    """They are short, and far more than the answers: taken for answers, they promise the moon."""
    alone = Server().run({"": 10 * CAPACITY})
    server = Server()
    outcome = server.run({"": 10 * CAPACITY}, vectors_per_s=30)
    assert outcome.causes["deadline_unreachable"] > 0
    assert outcome.num_late <= 0.05 * RUN_S * CAPACITY
    vectors_share = 30 * VECTOR * TOKEN_S
    assert outcome.goodput >= 0.85 * (1 - vectors_share) * alone.goodput


def test_short_texts_are_no_short_answers() -> None:
    def estimate(vectors_per_s: float) -> float:
        server = Server()
        server.run({"": 0.3 * CAPACITY}, vectors_per_s=vectors_per_s)
        ahead = WorkAhead(num_running=10, num_waiting=10)
        return server.queue._estimate.answer_s(max_tokens=None, num_prompt_tokens=0, ahead=ahead)

    assert estimate(20) >= 0.9 * estimate(0) > 0


def test_vectors_are_not_turned_away_for_long_answers() -> None:
    """Answers that would take minutes get on with them: a few tokens come in the next steps."""
    server = Server()
    server.run({"": CAPACITY}, vectors_per_s=5)
    for index in range(400):
        server.queue.admit(arrival_of(make_request(f"long/{index}", PROMPT, 5000)))
        server.queue.step_done(StepRecord(**{**NOTHING, "admitted": (f"long/{index}",)}))
    soon_s = server.clock.now() + 2.0
    with pytest.raises(ApiError, match="at the measured rate"):
        server.queue.check_time("", soon_s)
    server.queue.check_time("", soon_s, wants_vectors=True)
    server.queue.admit(arrival_of(make_request("short", VECTOR, 0), soon_s))
    with pytest.raises(ApiError, match="at the measured rate"):
        server.queue.admit(arrival_of(make_request("book", 100_000, 0), soon_s))


def test_line_of_answers_does_not_move_because_vectors_do() -> None:
    server = Server()
    queue, clock = server.queue, server.clock
    for index in range(100):
        queue.admit(arrival_of(make_request(f"answer/{index}", PROMPT, OUTPUT)))
    for index in range(10):
        clock.advance(1.0)
        names = [f"answer/{index}", *(f"vector/{index}/{i}" for i in range(50))]
        for name in names[1:]:
            queue.admit(arrival_of(make_request(name, VECTOR, 0)))
        queue.step_done(StepRecord(**{**NOTHING, "admitted": tuple(names)}))
    assert 40 <= queue.retry_after_s() <= 50, "half of 90 at one a second"


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
        server.serving.admission._estimate.answer_s = lambda **asked: 3000.0
        with ThreadPoolExecutor(3) as pool:
            first = pool.submit(server.complete, timeout=500.0)
            until(lambda: server.serving.admission.num_waiting == 1)
            for fields in ({"timeout": 500.0}, {"headers": {"x-request-timeout": "500"}}):
                for call in (server.complete, server.chat):
                    answer = call(**fields)
                    assert answer.status == 429
                    assert answer.error["code"] == "deadline_unreachable"
                    assert answer.headers["retry-after"] == "60"
            server.serving.admission._estimate.vectors_s = lambda **asked: 4000.0
            asked = {"model": MODEL, "input": "abc", "timeout": 500.0}
            answer = server.post("/v1/embeddings", asked)
            assert answer.status == 429 and "about 4000.0 s" in answer.error["message"]
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
