"""An engine that fails, hangs or dies: clean errors meanwhile, and a new engine afterwards."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from chairlift.engine.engine import Engine
from chairlift.errors import ModelFileError
from http_harness import MODEL, RunningServer, read_all, request_bytes, until
from server_gate import Gate

QUICK = {"check_interval_s": 0.02, "retry_wait_s": 0.02}


def failing_steps(engine: Engine, count: int) -> None:
    """The next `count` steps of an engine raise in the forward pass."""
    forward = engine.model.runner.submit
    left = [count]

    def submit(output: Any) -> Any:
        if left[0] and output.scheduled:
            left[0] -= 1
            raise RuntimeError("broken for the test at 0x7f00deadbeef")
        return forward(output)

    engine.model.runner.submit = submit  # type: ignore[method-assign]


def test_failed_step_ends_its_members_and_nobody_else(serve: Any) -> None:
    with serve(supervisor_options=QUICK) as server:
        expected = server.complete("control").json["choices"]
        failing_steps(server.engine, 1)
        answer = server.complete("abc")
        assert answer.status == 500 and answer.error["code"] == "internal_error"
        assert "0x7f00" not in answer.error["message"] and "broken" not in answer.error["message"]
        assert server.complete("control").json["choices"] == expected
        assert len(server.engines) == 1
        server.check_idle()


def test_several_failed_steps_mean_a_new_engine(serve: Any) -> None:
    with serve(supervisor_options=QUICK) as server:
        expected = server.complete("control").json["choices"]
        failing_steps(server.engine, 1000)
        statuses = [server.complete("abc").status for _ in range(3)]
        assert set(statuses) <= {500, 503} and statuses[0] == 500
        until(lambda: len(server.engines) == 2 and server.serving.supervisor.state == "running")
        assert server.complete("control").json["choices"] == expected
        assert server.get("/health").status == 200
        server.check_idle()


def test_fault_in_a_stream_is_an_event(serve: Any) -> None:
    with serve(supervisor_options=QUICK) as server:
        gate = Gate(server.engine)
        body = {
            "model": MODEL, "prompt": "abc", "max_tokens": 40, "ignore_eos": True,
            "logprobs": 0, "stream": True,
        }  # fmt: skip
        headers = "Connection: close\r\n"
        with server.connect() as connection:
            connection.sendall(request_bytes("/v1/completions", body, headers=headers))
            gate.let(3)
            data = b""
            while b"data: " not in data:  # the first event: from here on it is a stream
                data += connection.recv(65_536)
            failing_steps(server.engine, 1)
            gate.open()
            data += read_all(connection)
        assert data.startswith(b"HTTP/1.1 200")
        assert b"internal_error" in data and data.index(b"internal_error") < data.index(b"[DONE]")


def test_logits_that_are_no_numbers_end_that_request_only(serve: Any) -> None:
    """A model that goes wrong for one prompt: its neighbours in the batch notice nothing."""
    with serve(supervisor_options=QUICK) as server:
        expected = server.complete("control", max_tokens=30, ignore_eos=True).json["choices"]
        sampler = server.engine.model.runner._sampler
        sample = sampler.sample

        def poisoned(head: Any, states: Any) -> Any:
            for row, state in zip(head.rows, states, strict=True):
                if state.params.max_tokens == 7:
                    head.hidden[row] = np.nan
            return sample(head, states)

        sampler.sample = poisoned
        with ThreadPoolExecutor(2) as pool:
            good = pool.submit(server.complete, "control", max_tokens=30, ignore_eos=True)
            bad = server.complete("abc", max_tokens=7)
            assert bad.status == 500 and bad.error["code"] == "nan_logits"
            assert good.result().json["choices"] == expected


def test_hung_step_is_given_up(serve: Any) -> None:
    release = threading.Event()
    options = {**QUICK, "step_timeout_s": 0.3}
    with serve(supervisor_options=options) as server:
        expected = server.complete("control").json["choices"]
        step = server.engine.step

        def hang() -> Any:
            release.wait(60)
            return step()

        server.engine.step = hang  # type: ignore[method-assign]
        with ThreadPoolExecutor(2) as pool:
            whole = pool.submit(server.complete, "abc")
            streamed = pool.submit(server.complete, "abc", stream=True)
            for future in (whole, streamed):
                answer = future.result()
                assert answer.status == 503 and answer.error["code"] == "engine_restarting"
                assert int(answer.headers["retry-after"]) >= 1
        until(lambda: server.serving.supervisor.state == "running", timeout_s=30)
        assert server.complete("control").json["choices"] == expected
        release.set()
        assert server.complete("control").json["choices"] == expected
        server.check_idle()


def test_dead_thread_is_noticed_when_idle(serve: Any) -> None:
    with serve(supervisor_options=QUICK) as server:
        gate = Gate(server.engine)
        gate.fault = MemoryError("for the test")
        gate.open()
        assert server.complete().status == 503
        until(lambda: len(server.engines) == 2 and server.get("/health").status == 200)
        assert server.complete().status == 200


def test_requests_meanwhile_are_told_to_come_back(serve: Any, build_tiny: Any) -> None:
    may_build = threading.Event()
    may_build.set()

    def build() -> Engine:
        assert may_build.wait(30)
        return build_tiny()

    with serve(build=build, supervisor_options=QUICK) as server:
        may_build.clear()
        failing_steps(server.engine, 1000)
        for _ in range(3):
            server.complete()
        until(lambda: server.serving.supervisor.state == "restarting")
        for path in ("/health", "/ready", "/v1/models", "/ping"):
            answer = server.get(path)
            assert answer.status == 503 and answer.error["code"] == "engine_restarting"
            assert answer.error["type"] == "service_unavailable"
        for answer in (server.chat(), server.complete(stream=True)):
            assert answer.status == 503 and int(answer.headers["retry-after"]) >= 1
        may_build.set()
        until(lambda: server.get("/health").status == 200)


def test_engine_that_cannot_be_built_again_is_dead(serve: Any, build_tiny: Any) -> None:
    count = [0]

    def build() -> Engine:
        count[0] += 1
        if count[0] > 1:
            raise ModelFileError("the file has gone")
        return build_tiny()

    with serve(build=build, supervisor_options=QUICK) as server:
        failing_steps(server.engine, 1000)
        for _ in range(3):
            server.complete()
        until(lambda: server.serving.supervisor.state == "dead")
        answer = server.get("/health")
        assert answer.status == 503 and answer.error["code"] == "engine_dead"
        assert server.complete().status == 503
        assert count[0] == 5, "it was tried several times"


def test_starting_server_says_so(serve: Any, build_tiny: Any) -> None:
    may_build = threading.Event()

    def build() -> Engine:
        may_build.wait(30)
        return build_tiny()

    seen: list[Any] = []

    def look(server: RunningServer) -> None:
        for call in (lambda: server.get("/health"), server.complete, lambda: server.get("/nope")):
            seen.append(call())

    with starting(build) as server:
        until(lambda: server.server.started)
        look(server)
        may_build.set()
        until(lambda: server.get("/health").status == 200)
    assert [answer.status for answer in seen] == [503, 503, 404]
    assert seen[0].error["code"] == "starting" == seen[1].error["code"]


def starting(build: Any) -> Any:
    """A server that is looked at before its engine is there."""
    from http_harness import serving_engine

    return serving_engine(build, waits=False)


@pytest.mark.timeout(180)
def test_many_faults_never_end_the_server(serve: Any) -> None:
    """Faults at random steps under load: every request is answered, and the text stays right."""
    import random

    draw = random.Random(3)
    with serve(supervisor_options=QUICK) as server:
        expected = server.complete("control").json["choices"]
        stop = threading.Event()

        def spoil() -> None:
            while not stop.is_set():
                failing_steps(server.engine, draw.randint(1, 3))
                time.sleep(0.03)

        thread = threading.Thread(target=spoil)
        thread.start()
        with ThreadPoolExecutor(8) as pool:
            answers = list(
                pool.map(lambda i: server.complete(f"{i}", stream=i % 3 == 0), range(120))
            )
        stop.set()
        thread.join()
        assert {answer.status for answer in answers} <= {200, 500, 503}
        until(lambda: server.serving.supervisor.state == "running")
        # Steps that were to fail may be left, nobody knows how many, and engines to be built anew.
        until(lambda: server.complete("control").status == 200)
        assert server.complete("control").json["choices"] == expected
        server.check_idle()
