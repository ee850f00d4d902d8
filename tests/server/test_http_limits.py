"""Attacks on the level of bytes: the answer is an error in JSON or a closed line, never a hang."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from contextlib import suppress
from typing import Any

import pytest

from chairlift.server import http_protocol, json_body
from http_harness import RunningServer, read_all, request_bytes, until

BODY = {"model": "tiny", "prompt": "abc", "max_tokens": 1}
GOOD = request_bytes("/v1/completions", BODY, headers="Connection: close\r\n")
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


def status_of(data: bytes) -> int:
    """Of the first answer, which must have an error in JSON unless it is a success; 0: none."""
    if not data:
        return 0
    head, _, body = data.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    if status >= 400:
        assert b"application/json" in head, head
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    return status


@pytest.fixture(autouse=True)
def control(server: RunningServer) -> Any:
    """After every attack the server answers as before."""
    before = server.complete("control").json["choices"]
    yield
    assert server.complete("control").json["choices"] == before
    server.check_idle()


ATTACKS = {
    "header of 100 kB": (HEAD + b"X: " + b"a" * 100_000 + b"\r\n\r\n", {431}),
    "url of 100 kB": (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", {431}),
    "10000 header lines": (HEAD + b"A: b\r\n" * 10_000 + b"\r\n", {431}),
    "200 header lines": (HEAD + b"A: b\r\n" * 200 + b"\r\n", {431}),
    "key of a megabyte": (HEAD + b"Authorization: Bearer " + b"a" * 10**6 + b"\r\n\r\n", {431}),
    "obsolete folding": (HEAD + b"A: b\r\n c\r\n\r\n", {400}),
    "length twice": (HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nabc", {400}),
    "length and chunks": (
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        {400},
    ),
    "negative length": (HEAD + b"Content-Length: -1\r\n\r\n", {400}),
    "huge length": (HEAD + b"Content-Length: 1000000000000000000\r\n\r\nx", {413}),
    "length beyond 64 bits": (HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n", {400}),
    "huge chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nabc", {400}),
    "wrong chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc", {400}),
    "HTTP/0.9": (b"GET /health\r\n\r\n", {200, 400}),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}),
    "TLS hello": (bytes([22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]) + b"x" * 50, {400}),
    "noise": (bytes((7 * i * i + 3 * i) % 256 for i in range(65_536)), {400, 431}),
    "connect": (b"CONNECT other:443 HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 405}),
    "unknown verb": (b"BREW /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 405}),
    "websocket": (
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade, close\r\n"
        b"Upgrade: websocket\r\n\r\n",
        {200, 400},
    ),
    "path that is no text": (
        b"GET /v1/\xff\xfe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        {400, 404},
    ),
    "escaped path": (
        b"GET /%00%ff%0d%0a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        {404},
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_on_bytes(server: RunningServer, name: str) -> None:
    data, allowed = ATTACKS[name]
    answer = server.raw(data, timeout_s=3)
    assert status_of(answer) in allowed, answer[:300]


def chunked(size: int, num_chunks: int) -> bytes:
    """A request whose body comes in chunks, spaces but for the last."""
    data = json.dumps(BODY).encode()
    head = HEAD + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    body = (b"%x\r\n" % size + b" " * size + b"\r\n") * num_chunks
    return head + b"Connection: close\r\n\r\n" + body + b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)


def test_many_small_chunks(server: RunningServer) -> None:
    """A few are a body like any other; a million would cost far more than their bytes."""
    assert status_of(server.raw(chunked(6, 10_000))) == 200
    assert status_of(server.raw(chunked(6, 1_000_000))) in (0, 400)
    with server.connect() as connection:  # answered before all have been sent
        connection.sendall(chunked(6, http_protocol.MAX_CHUNKS + 50)[:-200])
        assert status_of(read_all(connection)) == 400


def test_chunks_without_end_stop_at_the_cap(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "MAX_DROPPED_BYTES", 1_000_000)
    with serve(max_body_size=100_000) as server, server.connect() as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        sent = 0
        try:
            while sent < 100 * 100_000:
                connection.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")
                sent += 4096
        except (ConnectionError, TimeoutError):
            pass
        assert sent < 50 * 100_000, "it should have been cut off"
        answer = read_all(connection)
        assert not answer or status_of(answer) == 413


def test_body_above_the_cap(serve: Any) -> None:
    with serve(max_body_size=10_000) as server:
        answer = server.post("/v1/completions", {**BODY, "prompt": "a" * 20_000})
        assert answer.status == 413 and answer.error["code"] == "request_too_large"
        exact = json.dumps(BODY).encode()
        assert server.post("/v1/completions", exact + b" " * (10_000 - len(exact))).status == 200


def test_header_and_body_in_one_piece(server: RunningServer) -> None:
    """However the bytes are cut, a large body does not make a large header."""
    for num_bytes in (70_000, 300_000, 1_000_000):
        body = json.dumps(BODY).encode()
        data = request_bytes("/v1/completions", body + b" " * num_bytes)
        with server.connect() as connection:
            for _ in range(3):
                connection.sendall(data)
                assert connection.recv(65_536).startswith(b"HTTP/1.1 200")


def test_answer_can_be_read_while_the_body_is_still_sent(serve: Any) -> None:
    """Refused early, the rest of a body is read and dropped, and the connection goes on."""
    with serve(max_body_size=10_000) as server, server.connect() as connection:
        size = 2_000_000
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % size + b" " * 20_000)
        answer = connection.recv(65_536)
        assert status_of(answer) == 413 and b"connection: close" not in answer.lower()
        connection.sendall(b" " * (size - 20_000))
        connection.sendall(GOOD)
        assert status_of(read_all(connection)) == 200


def test_body_that_never_ends_after_its_answer(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "DROP_TIMEOUT_S", 0.3)
    with serve(max_body_size=10_000) as server, server.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: 2000000\r\n\r\n" + b" " * 20_000)
        with contextlib.suppress(ConnectionError):
            while connection.recv(65_536):
                connection.sendall(b" ")
        until(lambda: not server.server.server_state.connections)


def test_expecting_client_is_refused_before_it_sends(serve: Any) -> None:
    with serve(max_body_size=10_000) as server:
        data = HEAD + b"Expect: 100-continue\r\nContent-Length: 20000\r\n\r\n"
        assert status_of(server.raw(data, timeout_s=3)) == 413


def test_expecting_client_is_told_to_go_on(server: RunningServer) -> None:
    data = json.dumps(BODY).encode()
    head = HEAD + b"Connection: close\r\nExpect: 100-continue\r\n"
    with server.connect() as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(data))
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(data)
        assert status_of(read_all(connection)) == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Content-Type: text/plain", 415),
        ("Content-Type: application/x-www-form-urlencoded", 415),
        ("Content-Type: multipart/form-data; boundary=x", 415),
        ("Content-Type: application/json\r\nContent-Encoding: gzip", 415),
        ("Content-Type: application/json\r\nContent-Encoding: br, gzip", 415),
        ("Content-Type: application/json\r\nContent-Encoding: identity", 200),
        ("Content-Type: application/json; charset=utf-8", 200),
        ("Content-Type: APPLICATION/JSON", 200),
        ("X-Other: 1", 200),
    ],
)
def test_kinds_of_body(server: RunningServer, headers: str, status: int) -> None:
    data = json.dumps(BODY).encode()
    head = HEAD + f"{headers}\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    answer = server.raw(head + data)
    assert status_of(answer) == status
    if status == 415:
        assert b"unsupported_media_type" in answer


def test_slow_header_is_cut_off(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_TIMEOUT_S", 0.3)
    with serve() as server:
        sockets = [server.connect() for _ in range(500)]
        for letter in b"POST /v1/comp":
            for connection in sockets:
                with suppress(ConnectionError):
                    connection.sendall(bytes([letter]))
        assert server.complete().status == 200
        silent = server.connect()
        started = time.monotonic()
        for connection in [*sockets[:3], silent]:
            assert status_of(read_all(connection)) in (0, 408)
        assert time.monotonic() - started < 60
        for connection in [*sockets, silent]:
            connection.close()
        assert server.complete().status == 200


def test_slow_body_is_cut_off(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "IDLE_TIMEOUT_S", 0.3)
    with serve() as server:
        data = HEAD + b"Content-Length: 1000\r\n\r\n{"
        answer = server.raw(data)
        assert status_of(answer) == 408 and b"connection: close" in answer.lower()


def test_connections_are_bounded(serve: Any) -> None:
    with serve(max_connections=5) as server:
        sockets = [server.connect() for _ in range(5)]
        until(lambda: len(server.server.server_state.connections) == 5)
        refused = server.raw(b"")
        assert status_of(refused) == 503 and b"too_many_connections" in refused
        for connection in sockets:
            connection.close()
        until(lambda: not server.server.server_state.connections)
        assert server.complete().status == 200


def test_memory_of_bodies_is_bounded(serve: Any) -> None:
    """Half-sent bodies of many clients take no more than the budget; then it is given back."""
    with serve(max_body_size=100_000) as server:
        head = HEAD + b"Content-Length: 100000\r\n\r\n" + b"{" + b" " * 99_000
        sockets = []
        for _ in range(9):
            sockets.append(server.connect())
            sockets[-1].sendall(head)
        answers = [status_of(sockets[-1].recv(65_536))]
        assert answers == [429]
        assert server.serving.bodies.num_bytes <= 8 * 100_000
        for connection in sockets:
            connection.close()
        until(lambda: server.serving.bodies.num_bytes == 0)
        assert server.complete().status == 200


def test_pipelined_requests_are_answered_in_order(server: RunningServer) -> None:
    first = request_bytes("/v1/completions", {**BODY, "max_tokens": 3, "ignore_eos": True})
    answer = server.raw(first + GOOD)
    assert answer.count(b"HTTP/1.1 200") == 2


def test_connection_is_kept_after_an_error(server: RunningServer) -> None:
    bad = request_bytes("/v1/completions", b"{")
    answer = server.raw(bad + GOOD)
    assert answer.startswith(b"HTTP/1.1 400") and b"HTTP/1.1 200" in answer


def test_body_of_a_stream_ends_at_once(server: RunningServer) -> None:
    """A client that reads the end of the body within 0.1 s keeps its connection."""
    request = request_bytes("/v1/completions", {**BODY, "stream": True})
    with server.connect() as connection:
        connection.sendall(request)
        data = b""
        while b"[DONE]" not in data:
            data += connection.recv(65_536)
        if not data.endswith(b"0\r\n\r\n"):
            connection.settimeout(0.1)
            data += connection.recv(65_536)
        assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        connection.settimeout(20)
        connection.sendall(GOOD)
        assert status_of(read_all(connection)) == 200


def test_half_closed_connection_counts_as_gone(server: RunningServer) -> None:
    with server.connect() as connection:
        connection.sendall(request_bytes("/v1/completions", {**BODY, "max_tokens": 90}))
        connection.shutdown(socket.SHUT_WR)
        assert status_of(read_all(connection)) != 200
