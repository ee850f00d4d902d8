"""Deadlines, and a queue that is full: who is turned away, with which answer, and when again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from chairlift.server.admission import BoundedQueue
from chairlift.server.errors import ApiError
from chairlift.server.queue_rate import MAX_RETRY_AFTER_S
from chairlift.server.queue_room import QueueLimits
from http_harness import RunningServer, request_bytes, until
from server_gate import Gate, LeapingClock

LONG = {"max_tokens": 100, "ignore_eos": True}


def background(server: RunningServer, count: int, **options: Any) -> list[Any]:
    """Requests under way, their answers to be asked for later."""
    pool = ThreadPoolExecutor(count)
    futures = [pool.submit(server.complete, "abc", **{**LONG, **options}) for _ in range(count)]
    pool.shutdown(wait=False)
    return futures


# -- deadlines ---------------------------------------------------------------------------------
@pytest.mark.parametrize("is_streaming", [True, False], ids=["stream", "whole"])
def test_expired_request_never_reaches_the_model(serve: Any, is_streaming: bool) -> None:
    with serve(engine={"max_num_seqs": 1}) as server:
        gate, clock = Gate(server.engine), LeapingClock(server)
        running = background(server, 1)
        until(lambda: bool(server.engine.scheduler.requests))
        late = ThreadPoolExecutor(1).submit(
            server.complete, "xyz", timeout=100.0, stream=is_streaming
        )
        until(lambda: server.serving.admission.num_waiting == 2)
        clock.ahead_s = 200.0
        gate.open()
        answer = late.result()
        assert answer.status == 504 and answer.error["code"] == "deadline_exceeded"
        assert answer.headers["x-should-retry"] == "false"
        assert running[0].result().status == 200
        members = {
            member.request_id
            for record in server.engine.core.recorder.records
            for member in record.members
        }
        assert len(members) == 1, "only the one that had time was ever computed"
        server.check_idle()


def test_deadline_in_mid_answer(serve: Any) -> None:
    with serve() as server:
        gate, clock = Gate(server.engine), LeapingClock(server)
        pool = ThreadPoolExecutor(2)
        whole, streamed = (
            pool.submit(server.complete, "abc", timeout=100.0, logprobs=0, stream=stream, **LONG)
            for stream in (False, True)
        )
        until(lambda: server.serving.admission.num_waiting == 2)
        gate.let(5)
        until(lambda: gate.num_steps == 5 and server.serving.admission.num_waiting == 0)
        clock.ahead_s = 200.0
        gate.open()
        assert whole.result().status == 504
        assert whole.result().error["code"] == "deadline_exceeded"
        *chunks, failure, done = streamed.result().events
        assert chunks and done == "[DONE]"
        assert failure["error"]["code"] == "deadline_exceeded"
        server.check_idle()


def test_deadline_by_header_and_by_default(serve: Any) -> None:
    with serve(request_timeout=100.0) as server:
        gate, clock = Gate(server.engine), LeapingClock(server)
        pool = ThreadPoolExecutor(4)
        by_default = pool.submit(server.complete)
        by_header = pool.submit(server.complete, headers={"x-request-timeout": "50"})
        longer = pool.submit(server.complete, headers={"x-request-timeout": "900"})
        by_body = pool.submit(server.complete, timeout=800.0)
        until(lambda: server.serving.admission.num_waiting == 4)
        clock.ahead_s = 400.0
        gate.open()
        assert by_default.result().status == 504 == by_header.result().status
        assert by_body.result().status == 200 == longer.result().status


def test_deadline_that_passed_before_the_queue(server: RunningServer) -> None:
    assert server.complete(timeout=1e-9).status == 504


@pytest.mark.parametrize("text", ["abc", "0", "-1", "nan", "inf", "1e999", ""])
def test_bad_deadline_header(server: RunningServer, text: str) -> None:
    answer = server.complete(headers={"x-request-timeout": text})
    assert answer.status == 400 and answer.error["param"] == "x-request-timeout"


# -- the queue ---------------------------------------------------------------------------------
def test_full_queue_turns_away_at_once(serve: Any) -> None:
    with serve(max_queued_requests=4, engine={"max_num_seqs": 2}) as server:
        gate = Gate(server.engine)
        running = background(server, 2)
        until(lambda: server.serving.admission.num_waiting == 2)
        gate.let(4)  # the engine hears of newcomers between steps
        until(lambda: server.serving.admission.num_waiting == 0)
        waiting = background(server, 4)
        until(lambda: server.serving.admission.num_waiting == 4)
        for _ in range(5):  # while no step passes
            answer = server.complete()
            assert answer.status == 429 and answer.error["code"] == "queue_full"
            assert answer.error["type"] == "rate_limit_error"
            assert int(answer.headers["retry-after"]) >= 1
        assert server.chat(stream=True).status == 429
        assert server.get("/health").status == 200 == server.get("/v1/models").status
        gate.open()
        assert all(future.result().status == 200 for future in running + waiting)
        assert server.complete().status == 200
        server.check_idle()


def test_queue_is_bounded_by_tokens_too(serve: Any) -> None:
    with serve(max_queued_tokens=100, engine={"max_num_seqs": 1}) as server:
        gate = Gate(server.engine)
        first = background(server, 1)
        until(lambda: len(server.engine.scheduler.requests) > 0)
        gate.let(2)
        until(lambda: server.serving.admission.num_waiting == 0)
        second = [ThreadPoolExecutor(1).submit(server.complete, [5] * 90, max_tokens=1)]
        until(lambda: server.serving.admission.num_waiting_tokens == 90)
        refused = server.complete([5] * 20)
        assert refused.status == 429 and "tokens" in refused.error["message"]
        gate.open()
        assert all(future.result().status == 200 for future in first + second)


def test_what_is_larger_than_the_queue_comes_in_when_it_is_empty(serve: Any) -> None:
    with serve(max_queued_requests=4, max_queued_tokens=50) as server:
        answer = server.complete([[5] * 20] * 10, max_tokens=1)
        assert answer.status == 200 and len(answer.json["choices"]) == 10


def test_place_in_the_queue_is_given_back_by_those_who_go(serve: Any) -> None:
    with serve(max_queued_requests=3) as server:
        gate = Gate(server.engine)
        sockets = []
        for _ in range(3):
            connection = server.connect()
            fields = {"model": "tiny", "prompt": "abc", "max_tokens": 5}
            connection.sendall(request_bytes("/v1/completions", fields))
            sockets.append(connection)
        until(lambda: server.serving.admission.num_waiting == 3)
        assert server.complete().status == 429
        for connection in sockets:
            connection.close()
        until(lambda: server.serving.admission.num_waiting == 0)
        gate.open()
        assert server.complete().status == 200


# -- the queue by itself -----------------------------------------------------------------------
class Moment:
    """A clock that is told the time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def arrival(queue: BoundedQueue, engine: Any, name: str, num_tokens: int) -> Any:
    from chairlift.sampling_params import SamplingParams
    from chairlift.server.arrival import Arrival

    request = engine.process_input([5] * num_tokens, SamplingParams(), request_id=name)
    return Arrival(key_name="", priority=0, requests=[request])


def got_on(*names: str) -> Any:
    class Record:
        admitted = names
        duration_s = 0.1
        num_prefill_tokens = num_decode_tokens = 0
        members = ()
        finished = ()

    return Record()


def test_time_to_come_back_follows_the_measured_rate(build_tiny: Any) -> None:
    engine, clock = build_tiny(), Moment()
    queue = BoundedQueue(QueueLimits(max_requests=100, max_tokens=10**6), now=clock)
    for index in range(100):
        queue.admit(arrival(queue, engine, f"r{index}", 10))
    with pytest.raises(ApiError) as caught:
        queue.check_open("")
    assert caught.value.status == 429
    assert queue.retry_after_s() == 1, "nothing is known yet"
    for index in range(20):  # two a second
        clock.now_s += 0.5
        queue.step_done(got_on(f"r{index}"))
    queue.check_open("")
    assert queue.num_waiting == 80 and queue.num_waiting_tokens == 800
    assert 15 <= queue.retry_after_s() <= 25, "half of 80 at two a second"
    clock.now_s += 10_000
    assert queue.retry_after_s() == MAX_RETRY_AFTER_S, "it has been standing still"


def test_slow_tokens_count_more_than_quick_requests(build_tiny: Any) -> None:
    engine, clock = build_tiny(), Moment()
    queue = BoundedQueue(QueueLimits(max_requests=1000, max_tokens=1000), now=clock)
    for index in range(10):
        queue.admit(arrival(queue, engine, f"short{index}", 1))
        clock.now_s += 1
        queue.step_done(got_on(f"short{index}"))
    queue.admit(arrival(queue, engine, "long", 100))
    assert queue.retry_after_s() >= 40, "100 tokens at about one a second, half of it"


def test_leaving_twice_and_completions_of_one_prompt(build_tiny: Any) -> None:
    queue = BoundedQueue(QueueLimits(max_requests=2, max_tokens=100))
    one = arrival(queue, build_tiny(), "r", 7)
    queue.admit(one)
    queue.step_done(got_on("r#0", "r#1"))
    assert queue.num_waiting == 0 == queue.num_waiting_tokens
    queue.leave(one)
    queue.leave(one)
    assert queue.num_waiting == 0 == queue.num_waiting_tokens
