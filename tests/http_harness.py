"""A real server in a thread of the test process, and a client that hides nothing."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from chairlift.engine.engine import Engine
from chairlift.engine.supervisor import EngineSupervisor
from chairlift.server.http_server import HttpServer
from chairlift.server.server_config import ServerConfig
from chairlift.server.serving import Serving

MODEL = "tiny"
WAIT_S = 20.0
ANSWER_S = 120.0
"""Longer than a machine may be stopped while a request is under way."""


@dataclass(slots=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error of an answer that must be one, in the shape that it must have."""
        assert self.status >= 400, self.body
        assert self.headers["content-type"] == "application/json"
        error: dict[str, Any] = self.json["error"]
        assert list(self.json) == ["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str) and isinstance(error["type"], str)
        assert all(error[key] is None or isinstance(error[key], str) for key in ("param", "code"))
        assert "Traceback" not in error["message"] and " at 0x" not in error["message"]
        return error

    @property
    def events(self) -> list[Any]:
        """The data of a stream's events; `[DONE]` stays a text, comments are left out."""
        return events_of(self.body)


def events_of(body: bytes) -> list[Any]:
    found = []
    assert body.endswith(b"\n\n"), body[-100:]
    for block in body.decode("utf-8").split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        assert block.startswith("data: ") and "\n" not in block, block
        data = block.removeprefix("data: ")
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


@dataclass(slots=True)
class RunningServer:
    """A server under test."""

    serving: Serving
    server: HttpServer
    port: int
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    engines: list[Engine] = field(default_factory=list)
    """All that were built; the last one works."""

    @property
    def engine(self) -> Engine:
        return self.engines[-1]

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        timeout_s: float = ANSWER_S,
    ) -> Answer:
        """One request on a connection of its own.  A body that is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            data = body
            sent = dict(headers or {})
            if body is not None and not isinstance(body, bytes):
                data = json.dumps(body).encode()
                sent.setdefault("content-type", "application/json")
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            return Answer(
                response.status,
                {name.lower(): value for name, value in response.getheaders()},
                response.read(),
            )
        finally:
            connection.close()

    def get(self, path: str, **named: Any) -> Answer:
        return self.call("GET", path, **named)

    def post(self, path: str, body: Any, **named: Any) -> Answer:
        return self.call("POST", path, body, **named)

    def chat(self, text: str = "hi", **options: Any) -> Answer:
        """A chat completion of few tokens."""
        headers = options.pop("headers", None)
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 8}
        return self.post("/v1/chat/completions", {**body, **options}, headers=headers)

    def complete(self, prompt: Any = "abc", **options: Any) -> Answer:
        """A text completion of few tokens."""
        headers = options.pop("headers", None)
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0}
        return self.post("/v1/completions", {**body, **options}, headers=headers)

    def raw(self, data: bytes, *, timeout_s: float = WAIT_S, shut: bool = False) -> bytes:
        """Send bytes and read until the server closes, or for a while."""
        with self.connect(timeout_s) as connection:
            with suppress(ConnectionError):
                connection.sendall(data)
                if shut:
                    connection.shutdown(socket.SHUT_WR)
            return read_all(connection)

    def connect(self, timeout_s: float = WAIT_S) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)

    def in_loop(self, function: Callable[[], Any]) -> Any:
        """Run something in the server's event loop."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(WAIT_S)

    def is_idle(self) -> bool:
        """Nothing is left of any request: no queue entry, no block, no stream, no task."""
        scheduler = self.engine.scheduler
        return (
            not scheduler.has_requests
            and not self.engine.has_unfinished_requests
            and scheduler.kv.num_free_blocks == scheduler.kv.pool.num_usable_blocks
            and self.serving.lifecycle.num_in_flight == 0
            and len(self.serving.sweeper) == 0
            and getattr(self.serving.admission, "num_waiting", 0) == 0
        )

    def check_idle(self) -> None:
        """Raises AssertionError unless all that was taken has been given back."""
        until(self.is_idle)
        self.engine.scheduler.check_integrity()


def scrape(
    server: RunningServer, headers: dict[str, str] | None = None
) -> dict[str, dict[tuple[str, ...], float]]:
    """Sample name -> label values (sorted by label) -> value."""
    answer = server.get("/metrics", headers=headers)
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain")
    samples: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        assert family.documentation, family.name
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            samples.setdefault(sample.name, {})[labels] = sample.value
    return samples


def read_all(connection: socket.socket) -> bytes:
    """Until the other side closes or is silent for too long."""
    parts = []
    with suppress(ConnectionError, TimeoutError):
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


def until(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> float:
    """Wait for something to become true; how long it took.

    A pause of the whole process, such as a stopped machine, counts for little.
    """
    waited_s, last_s = 0.0, time.monotonic()
    while not condition():
        assert waited_s < timeout_s, "waited in vain"
        time.sleep(0.001)
        now_s = time.monotonic()
        waited_s += min(0.25, now_s - last_s)
        last_s = now_s
    return waited_s


def request_bytes(path: str, body: Any, *, headers: str = "", method: str = "POST") -> bytes:
    """A request as it goes over the wire."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n{headers}\r\n"
    )
    return head.encode() + data


@contextmanager
def serving_engine(
    build: Callable[[], Engine],
    *,
    supervisor_options: dict[str, Any] | None = None,
    serving_options: dict[str, Any] | None = None,
    waits: bool = True,
    **options: Any,
) -> Iterator[RunningServer]:
    """A server over engines that `build` makes, on a free port, until the block is left.

    `waits`: until the engine is there.
    """
    engines: list[Engine] = []

    def build_and_keep() -> Engine:
        engines.append(build())
        return engines[-1]

    config = ServerConfig(
        **{
            "port": 0,
            "served_model_name": (MODEL,),
            "access_log": False,
            "store": "memory",
            **options,
        }
    )
    supervisor = EngineSupervisor(build_and_keep, **(supervisor_options or {}))
    serving = Serving(config, supervisor, **(serving_options or {}))
    server = HttpServer(serving)
    loops: list[asyncio.AbstractEventLoop] = []
    is_running = threading.Event()

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        is_running.set()
        await server.serve_in_loop()

    def run() -> None:
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(main())

    address = server.listener.getsockname()
    port = address[1] if config.uds is None else 0
    thread = threading.Thread(target=run, name="server-under-test")
    thread.start()
    is_running.wait(WAIT_S)
    running = RunningServer(serving, server, port, loops[0], thread, engines)
    try:
        assert not waits or supervisor.wait_until("running", "dead", timeout_s=60)
        assert supervisor.failure is None, supervisor.failure
        until(lambda: server.started)
        yield running
    finally:
        with suppress(RuntimeError):
            loops[0].call_soon_threadsafe(server.stop)
        thread.join(60)
        assert not thread.is_alive(), "the server did not end"
