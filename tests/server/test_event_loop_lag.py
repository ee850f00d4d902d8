"""Nothing that a client sends keeps the event loop from the others for long.

What counts is the processor's time of each piece of work in the loop, not the clock: a busy machine
changes nothing.  `benchmarks/event_loop_lag.py` measures what clients see.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from http_harness import RunningServer

LIMIT_S = 0.02
MEGABYTES = 30
CHAT, TEXT, VECTORS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


@pytest.fixture(autouse=True)
def what_other_tests_left() -> Iterator[None]:
    """Keeps the collector from walking through it in the middle of the server's work."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Processor's time of the longest pieces of work, by what they were; of server threads."""
    found: dict[str, float] = {}
    run = asyncio.Handle._run

    def timed(self: asyncio.Handle) -> Any:
        begin_s = time.thread_time()
        try:
            return run(self)
        finally:
            seconds = time.thread_time() - begin_s
            if threading.current_thread().name == "server-under-test":
                name = repr(self)[:120] if seconds > LIMIT_S else "short"
                found[name] = max(found.get(name, 0.0), seconds)

    monkeypatch.setattr(asyncio.Handle, "_run", timed)
    monkeypatch.setattr(uvicorn.Config, "get_loop_factory", lambda _: asyncio.SelectorEventLoop)
    return found


@contextmanager
def nothing_long(longest: dict[str, float]) -> Iterator[None]:
    longest.clear()
    yield
    assert longest, "nothing was timed"
    slow = {name: seconds for name, seconds in longest.items() if seconds > LIMIT_S}
    assert not slow
    print(f"{max(longest.values()) * 1e3:.1f} ms at most")


def encoded(**fields: Any) -> bytes:
    return json.dumps({"model": "tiny", "max_tokens": 1, **fields}).encode()


def bodies(server: RunningServer) -> Iterator[tuple[str, str, bytes]]:
    size = MEGABYTES * 10**6
    for name, text in (
        ("one word", "a" * size),
        ("words", "a lift, " * (size // 8)),
        ("escapes", "\n" * (size // 2)),
    ):
        yield name, TEXT, encoded(prompt=text)
        yield name, CHAT, encoded(messages=[{"role": "user", "content": text}])
    limit = server.serving.engine()[1].max_prompt_chars
    fitting = min(limit, size // 1024) * "a"
    yield "many prompts", TEXT, encoded(prompt=[fitting] * (size // 2 // len(fitting) % 1000))
    yield "token ids", TEXT, encoded(prompt=[5] * 250_000)
    yield "lists of ids", TEXT, encoded(prompt=[[5] * 200] * 1000, max_tokens=10**6)
    yield "many texts", VECTORS, encoded(input=[fitting] * 2048)
    yield "lists of ids", VECTORS, encoded(input=[[5] * 100] * 1000)
    yield "small objects", CHAT, encoded(messages=[{}] * (size // 4))
    yield "messages", CHAT, encoded(messages=[{"role": "user", "content": "x" * 60}] * 4000)
    yield "ids", "/detokenize", encoded(tokens=[5] * 250_000)


def test_large_bodies_leave_the_event_loop_to_others(serve: Any, longest: dict[str, float]) -> None:
    with serve() as server:
        for name, path, data in bodies(server):
            headers = {"content-type": "application/json"}
            with nothing_long(longest):
                assert server.post(path, data, headers=headers).status in (200, 400), name


def test_large_answers_leave_the_event_loop_to_others(
    serve: Any, longest: dict[str, float]
) -> None:
    with serve() as server, nothing_long(longest):
        fields = {"max_tokens": 100, "ignore_eos": True, "logprobs": 20, "n": 8, "temperature": 1}
        assert server.complete("abc", **fields).status == 200
        assert server.complete("abc", stream=True, **fields).status == 200


def test_thousands_of_vectors_leave_the_event_loop_to_others(
    serve: Any, longest: dict[str, float]
) -> None:
    with serve() as server, nothing_long(longest):
        inputs = [[2 + i % 250, 2 + i // 250] for i in range(2048)]
        for encoding in ("float", "base64"):
            fields = {"model": "tiny", "input": inputs, "encoding_format": encoding}
            answer = server.post(VECTORS, fields)
            assert answer.status == 200 and len(answer.json["data"]) == 2048
