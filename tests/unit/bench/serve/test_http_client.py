"""The HTTP client against a server that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from chairlift.bench.serve import http_connection
from chairlift.bench.serve.endpoint import parse_endpoint
from chairlift.bench.serve.http_answer import HttpError
from chairlift.bench.serve.http_client import HttpClient, allow_open_connections
from chairlift.bench.serve.http_connection import ConnectionLostError
from chairlift.bench.serve.server_contact import PlainAnswer
from chairlift.bench.serve.streamed_answer import StreamedAnswer
from scripted_server import Exchange, Script, ScriptedServer, head_of, piece, serving, tokens

PATH = "/v1/completions"
BODY = b'{"max_tokens":3}'


def client_of(server: ScriptedServer, timeout_s: float = 20.0) -> HttpClient:
    endpoint = parse_endpoint(server.base_url, PATH)
    return HttpClient(endpoint, {"authorization": "Bearer k"}, timeout_s=timeout_s)


async def one(script: Script, timeout_s: float = 20.0) -> StreamedAnswer:
    """The answer to one request."""
    with serving(script) as server:
        client, answer = client_of(server, timeout_s), StreamedAnswer()
        await client.post(PATH, BODY, answer)
        client.close()
        return answer


async def test_a_connection_serves_many_requests() -> None:
    with serving(tokens()) as server:
        client = client_of(server)
        for _ in range(5):
            answer = StreamedAnswer()
            await client.post(PATH, BODY, answer, "id-7")
            assert answer.failure() is None and len(answer.text_times_s) == 3
        client.close()
        assert server.num_connections == 1
        head = server.seen[-1].headers
        assert head["x-request-id"] == "id-7" and head["authorization"] == "Bearer k"
        assert head["content-type"] == "application/json" and server.seen[-1].raw_body == BODY


async def test_requests_at_once_have_connections_of_their_own() -> None:
    with serving(tokens(gap_s=0.01)) as server:
        client = client_of(server)
        await asyncio.gather(*(client.post(PATH, BODY, StreamedAnswer()) for _ in range(8)))
        client.close()
        assert server.num_connections == 8


async def test_every_byte_in_a_packet_of_its_own() -> None:
    answer = await one(tokens(split_at=1))
    assert answer.failure() is None and len(answer.text_times_s) == 3
    assert answer.usage == {"prompt_tokens": 7, "completion_tokens": 3}


async def test_a_body_that_ends_with_the_connection() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.write(head_of(200, {"content-type": "text/event-stream"}))
        await exchange.write(b'data: {"choices":[{"text":"a","finish_reason":"stop"}]}\r\n\r\n')
        exchange.writer.close()

    assert (await one(script)).failure() is None


async def test_a_closed_idle_connection_is_replaced() -> None:
    """The server closes it just when it is used again."""

    async def script(exchange: Exchange) -> None:
        if exchange.index == 1:
            exchange.drop()
        else:
            await tokens()(exchange)

    with serving(script) as server:
        client = client_of(server)
        for _ in range(2):
            answer = StreamedAnswer()
            await client.post(PATH, BODY, answer)
            assert answer.failure() is None
        client.close()
        assert len(server.seen) == 3 and server.num_connections == 2


async def test_a_new_connection_that_is_dropped_is_not_tried_again() -> None:
    async def script(exchange: Exchange) -> None:
        exchange.drop()

    with serving(script) as server:
        with pytest.raises(ConnectionLostError):
            await client_of(server).post(PATH, BODY, StreamedAnswer())
        assert len(server.seen) == 1


async def test_a_drop_in_mid_stream_is_not_tried_again() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start_stream()
        await exchange.event(piece("a"))
        if exchange.index == 0:
            await exchange.end_stream()
        else:
            await asyncio.sleep(0.05)
            exchange.drop()

    with serving(script) as server:
        client = client_of(server)
        await client.post(PATH, BODY, StreamedAnswer())
        answer = StreamedAnswer()
        with pytest.raises(ConnectionLostError) as caught:
            await client.post(PATH, BODY, answer)
        assert caught.value.had_answer and len(answer.text_times_s) == 1
        assert len(server.seen) == 2


async def test_a_connection_that_may_not_be_kept_is_not_kept() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.answer({}, 200, connection="close")

    with serving(script) as server:
        client = client_of(server)
        for _ in range(2):
            await client.post(PATH, BODY, PlainAnswer())
        assert server.num_connections == 2


async def test_a_body_that_does_not_end_after_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "LATE_END_S", 0.05)

    async def script(exchange: Exchange) -> None:
        await exchange.start_stream()
        await exchange.event(piece("a", "stop"))
        await exchange.event("[DONE]")
        await asyncio.sleep(30)

    with serving(script) as server:
        client, answer = client_of(server), StreamedAnswer()
        async with asyncio.timeout(10):
            await client.post(PATH, BODY, answer)
        assert answer.failure() is None


async def silent(exchange: Exchange) -> None:
    await asyncio.sleep(30)


async def test_a_silent_server_times_out_and_the_connection_is_closed() -> None:
    with serving(silent) as server:
        client = client_of(server, timeout_s=0.1)
        with pytest.raises(TimeoutError):
            await client.post(PATH, BODY, StreamedAnswer())
        with contextlib.suppress(TimeoutError):
            await client.post(PATH, BODY, StreamedAnswer())
        assert server.num_connections == 2  # the first one was not used again


def raw(data: bytes) -> Callable[[Exchange], object]:
    async def script(exchange: Exchange) -> None:
        await exchange.write(data)
        await asyncio.sleep(0.05)
        exchange.drop()

    return script


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"SSH-2.0-x\r\n\r\n", HttpError),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", HttpError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", ConnectionLostError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nabc", HttpError),
        (b"HTTP/1.1 2", ConnectionLostError),
    ],
)
async def test_bytes_that_are_no_answer(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        await one(raw(data))  # type: ignore[arg-type]


async def test_nobody_listens() -> None:
    with serving(tokens()) as server:
        client = client_of(server)
    with pytest.raises(OSError):
        await client.post(PATH, BODY, StreamedAnswer())


def test_open_files_are_allowed_as_far_as_they_may() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert allow_open_connections(300) == 300
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 364
        if before[1] != resource.RLIM_INFINITY:
            assert allow_open_connections(before[1] + 1) == before[1] - 64
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
