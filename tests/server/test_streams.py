"""Streams under odd conditions: waiting, slow readers, and text that comes in awkward pieces."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chairlift.server import sse
from http_harness import RunningServer, events_of, request_bytes, until
from server_gate import Gate

TEXTS = [
    "plain words and more",
    "emoji 😀👩‍👩‍👧‍👦🇨🇿 end",
    "日本語のテキストと漢字",
    "ภาษาไทยไม่มีช่องว่าง",
    "e\u0301\u0302 a\u0308\u0323 n\u0303",
    "Příliš žluťoučký kůň",
    "مرحبا بالعالم",
    "tabs\tand\r\nlines\n\n",
]


def token_forcing(server: RunningServer, text: str) -> dict[str, Any]:
    """Options that make the model say nearly this text's bytes, in some order it likes."""
    ids = server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json["tokens"]
    return {"allowed_token_ids": sorted(set(ids))}


def streamed_text(events: list[Any]) -> str:
    return "".join(
        choice["delta"].get("content", "") for event in events[:-1] for choice in event["choices"]
    )


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    text=st.sampled_from(TEXTS),
    seed=st.integers(0, 2**31),
    num_tokens=st.integers(1, 40),
    stop=st.lists(st.sampled_from(["😀", "ไ", "日", "e\u0301", "an", "ab", "\n", "ků", "x"]),
                  max_size=4, unique=True),
    include=st.booleans(),
)  # fmt: skip
def test_streamed_text_equals_the_whole(
    server: RunningServer, text: str, seed: int, num_tokens: int, stop: list[str], include: bool
) -> None:
    """With characters of several tokens and stop strings across tokens."""
    options = {
        "seed": seed,
        "temperature": 1.0,
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "stop": stop,
        "include_stop_str_in_output": include,
        **token_forcing(server, text),
    }
    whole = server.chat("hi", **options).json["choices"][0]
    events = server.chat("hi", stream=True, **options).events
    assert streamed_text(events) == whole["message"]["content"]
    last = events[-2]["choices"][0]
    assert last["finish_reason"] == whole["finish_reason"]
    assert last["stop_reason"] == whole["stop_reason"]
    for event in events[:-2]:
        delta = event["choices"][0]["delta"]["content"]
        assert delta or "role" in event["choices"][0]["delta"]
        if not include:
            assert not any(one in delta for one in stop)


def test_control_characters_survive_the_encoding() -> None:
    for text in ("\x00\x1f\x7f\u2028\u2029", '"\\/', "\ud7ff\ue000\U0010ffff", ""):
        assert json.loads(sse.json_string(text)) == text


def test_waiting_stream_gets_comments(serve: Any) -> None:
    """And its first byte is a success: the request is accepted."""
    with serve(ping_interval=0.2) as server:
        gate = Gate(server.engine)
        with server.connect() as connection:
            fields = {"model": "tiny", "prompt": "abc", "max_tokens": 3, "stream": True}
            data = request_bytes(
                "/v1/completions", {**fields, "ignore_eos": True}, headers="Connection: close\r\n"
            )
            connection.sendall(data)
            received = b""
            while received.count(b": ping\n\n") < 3:
                received += connection.recv(4096)
            assert b"data:" not in received and received.startswith(b"HTTP/1.1 200")
            gate.open()
            while part := connection.recv(65_536):
                received += part
        body = dechunked(received)
        events = events_of(body)
        assert events[-1] == "[DONE]" and events[-2]["choices"][0]["finish_reason"] == "length"
        assert body.startswith(b": ping\n\n: ping\n\n: ping\n\n")


def test_error_before_the_first_token_has_a_status(serve: Any) -> None:
    with serve() as server:
        gate = Gate(server.engine)
        gate.fault = RuntimeError("for the test")
        gate.open()
        answer = server.chat(stream=True)
        assert answer.status == 503 and answer.error["code"] == "engine_restarting"


def test_error_after_the_first_token_is_an_event(serve: Any) -> None:
    with serve() as server:
        gate = Gate(server.engine)
        with server.connect() as connection:
            fields = {"model": "tiny", "prompt": "abc", "max_tokens": 50, "stream": True}
            data = {**fields, "ignore_eos": True, "logprobs": 0}  # so that each token is an event
            connection.sendall(
                request_bytes("/v1/completions", data, headers="Connection: close\r\n")
            )
            gate.let(3)
            received = b""
            while b"data: " not in received:
                received += connection.recv(4096)
            gate.fault = RuntimeError("for the test")
            gate.open()
            while part := connection.recv(65_536):
                received += part
        *_, failure, done = events_of(dechunked(received))
        assert done == "[DONE]"
        assert failure["error"]["code"] == "engine_restarting"
        assert set(failure["error"]) == {"message", "type", "param", "code"}
        assert received.endswith(b"0\r\n\r\n")


def test_first_chunk_comes_with_the_first_token(serve: Any) -> None:
    with serve() as server:
        gate = Gate(server.engine)
        with server.connect() as connection:
            fields = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
            data = {**fields, "max_tokens": 5, "stream": True}
            connection.sendall(request_bytes("/v1/chat/completions", data))
            until(lambda: bool(server.engine.scheduler.requests))
            connection.settimeout(0.3)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            gate.let(1)
            connection.settimeout(20)
            received = b""
            while b"\n\n" not in received:
                received += connection.recv(4096)
            assert b'"role":"assistant"' in received
            gate.open()


def test_reader_that_never_reads_is_given_up(serve: Any) -> None:
    """It holds no block and no memory for long, and others notice nothing."""
    with serve(slow_client_timeout=1.0, engine={"num_blocks": 2000}) as server:
        limit = server.get("/v1/models").json["data"][0]["max_model_len"]
        fields = {
            "model": "tiny", "prompt": "abc", "max_tokens": limit - 10, "stream": True,
            "ignore_eos": True, "logprobs": 20, "n": 4, "temperature": 1.0,
        }  # fmt: skip
        sockets = []
        for _ in range(8):
            connection = server.connect()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(request_bytes("/v1/completions", fields))
            sockets.append(connection)
        until(lambda: server.engine.has_unfinished_requests)
        assert server.complete().status == 200
        until(server.is_idle, timeout_s=60)
        server.check_idle()
        for connection in sockets:
            connection.close()


@pytest.mark.timeout(600)
def test_readers_that_never_read_hold_little_memory(serve: Any) -> None:
    """Many at once, each owed far more than it may hold, and others are served meanwhile."""
    num_readers = 200 if os.environ.get("CHAIRLIFT_FULL") else 20
    with serve(slow_client_timeout=300.0, engine={"num_blocks": 4000}) as server:
        expected = server.complete("control").json["choices"]
        fields = {
            "model": "tiny", "prompt": "abc", "max_tokens": 120, "stream": True,
            "ignore_eos": True, "logprobs": 20, "n": 8, "temperature": 1.0,
        }  # fmt: skip
        owed = len(server.complete(**{**fields, "prompt": "abc"}).body)
        gate = Gate(server.engine)
        sockets = []
        for _ in range(num_readers):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(request_bytes("/v1/completions", fields))
            sockets.append(connection)
        until(lambda: server.serving.lifecycle.num_in_flight == num_readers, timeout_s=60)
        gate.open()
        until(lambda: not server.engine.has_unfinished_requests, timeout_s=400)

        def held() -> list[int]:
            connections = server.server.server_state.connections
            return [one.transport.get_write_buffer_size() for one in connections]

        assert server.complete("control").json["choices"] == expected
        most = max(server.in_loop(held))
        print(f"{most} bytes held at most for a reader that is owed {owed}")
        assert most < owed / 2 and owed > 500_000
        for connection in sockets:
            connection.close()
        until(lambda: not server.server.server_state.connections)
        server.check_idle()


def test_reader_that_pauses_gets_everything(server: RunningServer) -> None:
    """What came meanwhile is joined into fewer chunks, and nothing is lost."""
    fields = {
        "model": "tiny", "prompt": "abc", "max_tokens": 100, "stream": True, "ignore_eos": True,
        "temperature": 0, "logprobs": 20,
    }  # fmt: skip
    whole = server.complete("abc", max_tokens=100, ignore_eos=True).json["choices"][0]["text"]
    with server.connect() as connection:
        connection.sendall(
            request_bytes("/v1/completions", fields, headers="Connection: close\r\n")
        )
        time.sleep(0.5)
        received = b""
        while part := connection.recv(512):
            received += part
            if len(received) < 20_000:
                time.sleep(0.002)
    events = events_of(dechunked(received))
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == whole


def dechunked(answer: bytes) -> bytes:
    """The body of a chunked answer."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower(), head
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body, rest = body + rest[:length], rest[length + 2 :]
        if length == 0:
            return body
    raise AssertionError("the body has no end")
