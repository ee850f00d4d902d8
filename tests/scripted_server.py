"""An OpenAI-compatible server that does what a test tells it to, in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass
class Exchange:
    """One request, and the way back."""

    method: str
    path: str
    headers: dict[str, str]
    raw_body: bytes
    writer: asyncio.StreamWriter
    index: int = 0
    """Counts the requests for completions, from 0."""
    split_at: int | None = None
    """Write so many bytes at a time, each in a packet of its own."""

    @property
    def body(self) -> Json:
        return json.loads(self.raw_body) if self.raw_body else {}

    async def write(self, data: bytes) -> None:
        size = self.split_at or max(1, len(data))
        for start in range(0, len(data), size):
            self.writer.write(data[start : start + size])
            await self.writer.drain()
            if self.split_at:
                await asyncio.sleep(0)

    async def answer(self, content: Any, status: int = 200, **headers: str) -> None:
        """JSON with a length."""
        data = json.dumps(content).encode()
        headers = {"content-type": "application/json", "content-length": str(len(data)), **headers}
        await self.write(head_of(status, headers) + data)

    async def start_stream(self) -> None:
        await self.write(
            head_of(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
        )

    async def event(self, content: Json | str, end: str = "\n\n") -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        await self.chunk(f"data: {text}{end}".encode())

    async def chunk(self, data: bytes) -> None:
        await self.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def end_stream(self, usage: Json | None = None) -> None:
        if usage is not None:
            await self.event({"choices": [], "usage": usage})
        await self.event("[DONE]")
        await self.write(b"0\r\n\r\n")

    def drop(self) -> None:
        self.writer.transport.abort()


def head_of(status: int, headers: dict[str, str]) -> bytes:
    lines = [
        f"HTTP/1.1 {status} Whatever",
        *(f"{n.replace('_', '-')}: {v}" for n, v in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def piece(text: str, finish_reason: str | None = None, *, chat: bool = False) -> Json:
    """A chunk with choices."""
    choice: Json = {"index": 0, "finish_reason": finish_reason}
    choice |= {"delta": {"content": text}} if chat else {"text": text}
    return {"id": "x", "model": "scripted", "choices": [choice], "usage": None}


Script = Callable[[Exchange], Awaitable[None]]


def tokens(
    count: int | None = None,
    *,
    first_s: float = 0.0,
    gap_s: float = 0.0,
    num_prompt_tokens: int = 7,
    has_usage: bool = True,
    cached: int | None = None,
    split_at: int | None = None,
) -> Script:
    """A stream of `count` tokens, or as many as the request asks for."""

    async def script(exchange: Exchange) -> None:
        exchange.split_at = split_at
        number = exchange.body["max_tokens"] if count is None else count
        await asyncio.sleep(first_s)
        await exchange.start_stream()
        is_chat = exchange.path.endswith("chat/completions")
        for index in range(number):
            if index:
                await asyncio.sleep(gap_s)
            await exchange.event(piece(f" w{index}", chat=is_chat))
        await exchange.event(piece("", "length", chat=is_chat))
        usage: Json = {"prompt_tokens": num_prompt_tokens, "completion_tokens": number}
        if cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        await exchange.end_stream(usage if has_usage else None)

    return script


@dataclass
class ScriptedServer:
    """`script` answers completions; `routes` answer other paths, with JSON; the rest is a 404."""

    script: Script
    routes: dict[str, Callable[[Json], Any]] = field(default_factory=dict)
    seen: list[Exchange] = field(default_factory=list)
    """Requests for completions."""
    num_connections: int = 0
    base_url: str = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while (exchange := await read_request(reader, writer)) is not None:
                await self.route(exchange)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def route(self, exchange: Exchange) -> None:
        if exchange.path.endswith("/completions"):
            exchange.index = len(self.seen)
            self.seen.append(exchange)
            await self.script(exchange)
        elif exchange.path in self.routes:
            content = self.routes[exchange.path](exchange.body)
            await exchange.answer(content)
        else:
            await exchange.answer({"error": {"message": "no such path"}}, 404)

    @property
    def measured(self) -> Sequence[Exchange]:
        """Without the requests that are sent before a measurement."""
        return [e for e in self.seen if e.headers["x-request-id"].startswith("bench-")]


async def read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Exchange | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = dict(line.split(": ", 1) for line in lines)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Exchange(method, path, headers, body, writer)


MODELS = {"/v1/models": lambda body: {"data": [{"id": "scripted"}]}}


@contextmanager
def serving(
    script: Script, *, tls: ssl.SSLContext | None = None, **routes: Callable[[Json], Any]
) -> Iterator[ScriptedServer]:
    """A server on a free port of this machine.  `tokenize=f` is the path /tokenize."""
    server = ScriptedServer(script, {**MODELS, **{f"/{name}": f for name, f in routes.items()}})
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    starting = asyncio.start_server(server.handle, "127.0.0.1", 0, ssl=tls)
    listening = asyncio.run_coroutine_threadsafe(starting, loop).result(10)
    host, port = listening.sockets[0].getsockname()
    server.base_url = f"{'https' if tls else 'http'}://{host}:{port}"
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(_stop(listening), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _stop(listening: asyncio.Server) -> None:
    listening.close()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
