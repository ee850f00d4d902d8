"""How late the server's event loop is while bodies of 30 MB arrive.

    python benchmarks/event_loop_lag.py [--megabytes 30] [--rounds 10] [--busy] [-- FLAGS]

A server is started, and while bodies of several kinds are sent to it, one after the other, a second
connection asks for /ping every few milliseconds.  Its answers cost the loop next to nothing, so how
long they take is how late the loop is, and the client with it: an upper bound.  On a busy machine
look at the worst ping of the median round: what is the server's own fault happens in every round.
With --busy tokens are streamed all the time, by an engine that takes every core it can get.  FLAGS
are options of `chairlift serve`.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import random
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from rivals.served import served, split_flags

GOAL_MS = 20.0
PAUSE_S = 0.002
ENOUGH_PINGS = 1000
CHAT, TEXT, VECTORS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
PING = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"


def bodies(num_bytes: int) -> Iterator[tuple[str, str, bytes]]:
    """(what it is, path, bytes)."""
    draw = random.Random(0)
    words = " ".join(draw.choices(("lift", "snow", "chair", "a", "mountain,"), k=num_bytes // 5))
    texts = {
        "one word": "a" * num_bytes,
        "spaces": " " * num_bytes,
        "words": words[:num_bytes],
        "base64": base64.b64encode(draw.randbytes(num_bytes * 3 // 4)).decode(),
        "escapes": "\n" * (num_bytes // 2),
        "emoji": "\U0001f600" * (num_bytes // 12),
    }
    for name, text in texts.items():
        yield name, TEXT, encoded(prompt=text)
        yield name, CHAT, encoded(messages=[{"role": "user", "content": text}])
    yield "token ids", TEXT, encoded(prompt=[draw.randrange(40_000) for _ in range(num_bytes // 7)])
    yield "250000 token ids", TEXT, encoded(prompt=[5] * 250_000)
    lists = [[draw.randrange(40_000) for _ in range(200)] for _ in range(1000)]
    yield "1000 lists of ids", TEXT, encoded(prompt=lists, max_tokens=10**6)
    yield "1000 lists of ids", VECTORS, encoded(input=lists, dimensions=1)
    yield "250000 ids", "/detokenize", encoded(tokens=lists[0] * 1250)
    prompts = [words[: num_bytes // 1024]] * 100  # tokenized, and then found not to fit
    yield "100 prompts", TEXT, encoded(prompt=prompts, max_tokens=10**6)
    messages = [{"role": "user", "content": words[: num_bytes // 4096]}] * 4000
    yield "4000 messages", CHAT, encoded(messages=messages)
    yield "small objects", CHAT, encoded(messages=[{}] * (num_bytes // 4))
    yield "a context of text", CHAT, encoded(messages=[{"role": "user", "content": words[:25_000]}])


def encoded(**fields: object) -> bytes:
    return json.dumps({"model": "model", "max_tokens": 1, **fields}).encode()


def post(port: int, path: str, data: bytes) -> int:
    """Send a body; returns the status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request("POST", path, data, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def keep_streaming(port: int, is_over: threading.Event) -> None:
    """One answer after the other."""
    data = encoded(prompt="Once upon a time", stream=True, ignore_eos=True, temperature=1)
    data = data.replace(b'"max_tokens": 1', b'"max_tokens": 500')
    while not is_over.is_set():
        post(port, TEXT, data)


def measure(port: int, work: Callable[[], int]) -> tuple[list[float], int]:
    """Milliseconds of every ping while `work` runs, and what it returned."""
    times_ms: list[float] = []
    is_over = threading.Event()

    def ping() -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=600) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not is_over.is_set():
                begin_s = time.perf_counter()
                connection.sendall(PING)
                connection.recv(4096)
                times_ms.append((time.perf_counter() - begin_s) * 1e3)
                time.sleep(PAUSE_S)

    thread = threading.Thread(target=ping)
    thread.start()
    try:
        status = work()
    finally:
        is_over.set()
        thread.join()
    return times_ms, status


def share(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def main() -> None:
    words, flags = split_flags(sys.argv[1:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--busy", action="store_true")
    asked = parser.parse_args(words)

    def command(port: int) -> list[object]:
        serve = [sys.executable, "-m", "chairlift", "serve", "--port", port, "--no-access-log"]
        return [*serve, "--served-model-name", "model", *flags]

    with served(command) as base_url:
        port = int(base_url.rpartition(":")[2])
        is_over = threading.Event()
        streaming = threading.Thread(target=keep_streaming, args=(port, is_over))
        if asked.busy:
            streaming.start()
        try:
            report(port, int(asked.megabytes * 1e6), asked.rounds)
        finally:
            is_over.set()
            if asked.busy:
                streaming.join()


def report(port: int, num_bytes: int, rounds: int) -> None:
    print(f"goal: p99 below {GOAL_MS:.0f} ms\n")
    print("| body | path | status | pings | p50 ms | p99 ms | worst of the median round, ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")

    def nothing() -> int:
        time.sleep(0.3)
        return 0

    print_row("(none)", "", *rounds_of(rounds, port, nothing))
    every: list[list[float]] = []
    for name, path, data in bodies(num_bytes):
        found, status = rounds_of(rounds, port, lambda: post(port, path, data))  # noqa: B023
        print_row(name, path, found, status)
        every += found
    print_row("all", "", every, 0)


def rounds_of(rounds: int, port: int, work: Callable[[], int]) -> tuple[list[list[float]], int]:
    """Milliseconds of all pings, by round."""
    found: list[list[float]] = []
    status = 0
    while len(found) < rounds and sum(map(len, found)) < ENOUGH_PINGS:
        times_ms, status = measure(port, work)
        found.append(times_ms)
    return found, status


def print_row(name: str, path: str, found: list[list[float]], status: int) -> None:
    times_ms = [time_ms for times_ms in found for time_ms in times_ms]
    p50, p99 = share(times_ms, 0.5), share(times_ms, 0.99)
    worst = statistics.median(max(times_ms) for times_ms in found if times_ms)
    print(
        f"| {name} | {path} | {status or ''} | {len(times_ms)} | {p50:.1f} | {p99:.1f} |"
        f" {worst:.1f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
