"""What `chairlift bench serve` itself costs: its CPU time against a server that only pretends.

    python benchmarks/load_generator.py [--streams 128] [--tokens-per-s 2000] [--seconds 20]

The server, a process of its own, sends a chunk to every stream at the same moment, as a batch
does.  With aiohttp installed, a client made of aiohttp and nothing else is measured as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import Coroutine
from multiprocessing.connection import Connection
from typing import Any

from chairlift.bench.serve.load_config import LoadConfig
from chairlift.bench.serve.load_session import measure_server

CHUNK = json.dumps(
    {
        "id": "cmpl-0123456789abcdef",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "pretended",
        "choices": [{"index": 0, "text": " word", "logprobs": None, "finish_reason": None}],
        "usage": None,
    },
    separators=(",", ":"),
)
HEAD = (
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    "transfer-encoding: chunked\r\n\r\n"
)


def framed(event: str) -> bytes:
    data = f"data: {event}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


class PretendedServer:
    """One chunk to each stream at every tick."""

    def __init__(self, tick_s: float) -> None:
        self.tick_s = tick_s
        self.streams: dict[asyncio.StreamWriter, tuple[int, int]] = {}

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await self.head(reader):
            if head.startswith(b"GET"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                continue
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            count = json.loads(await reader.readexactly(length)).get("max_tokens", 1)
            self.streams[writer] = (count, count)
            writer.write(HEAD.encode())
        writer.close()

    async def head(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""

    async def run(self, port: Connection) -> None:
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        chunk, due_s = framed(CHUNK), time.monotonic()
        while True:
            due_s = max(due_s + self.tick_s, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())
            for writer, (left, count) in list(self.streams.items()):
                writer.write(chunk if left > 1 else chunk + last_chunks(count))
                if left > 1:
                    self.streams[writer] = (left - 1, count)
                else:
                    del self.streams[writer]


def last_chunks(count: int) -> bytes:
    end = CHUNK.replace('" word"', '""').replace('"finish_reason":null', '"finish_reason":"length"')
    usage = {"prompt_tokens": 8, "completion_tokens": count, "total_tokens": 8 + count}
    return (
        framed(end)
        + framed(json.dumps({"choices": [], "usage": usage}))
        + framed("[DONE]")
        + b"0\r\n\r\n"
    )


def serve(tick_s: float, port: Connection) -> None:
    asyncio.run(PretendedServer(tick_s).run(port))


async def with_aiohttp(url: str, num_requests: int, streams: int, num_tokens: int) -> int:
    """The least that a client on aiohttp does; returns the chunks that it saw."""
    import aiohttp

    left = iter(range(num_requests))
    times: list[float] = []

    async def client(session: aiohttp.ClientSession) -> None:
        body = {"prompt": "a", "max_tokens": num_tokens, "stream": True}
        for _ in left:
            async with session.post(url, json=body) as answer:
                async for line in answer.content:
                    if line.startswith(b"data: {") and json.loads(line[6:])["choices"]:
                        times.append(time.perf_counter())

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session) for _ in range(streams)))
    return len(times)


def on_best_loop(client: Coroutine[Any, Any, int]) -> int:
    """As the load generator does."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(client)
    return uvloop.run(client)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--tokens-per-s", type=float, default=2000.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--output-len", type=int, default=128)
    arguments = parser.parse_args()
    tick_s = arguments.streams / arguments.tokens_per_s
    rounds = max(1, round(arguments.seconds / tick_s / arguments.output_len))
    num_requests = rounds * arguments.streams
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(tick_s, there), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{here.recv()}"
    report = measure_server(
        LoadConfig(
            base_url=url,
            model="pretended",
            num_prompts=num_requests,
            max_concurrency=arguments.streams,
            input_len="16",
            output_len=str(arguments.output_len),
        )
    )
    print(report.text())
    client, chunks = report.run.client, report.metrics.total_output_tokens
    print(
        f"\nchairlift: {client.cpu_share:.2%} of a core, {1e6 * client.cpu_s / chunks:.1f} us/chunk"
    )
    try:
        start_s, start_cpu_s = time.monotonic(), time.process_time()
        seen = on_best_loop(
            with_aiohttp(
                f"{url}/v1/completions", num_requests, arguments.streams, arguments.output_len
            )
        )
        cpu_s = time.process_time() - start_cpu_s
        share = cpu_s / (time.monotonic() - start_s)
        print(f"aiohttp:   {share:.2%} of a core, {1e6 * cpu_s / seen:.1f} us/chunk")
    except ImportError:
        print("aiohttp is not installed")
    server.terminate()


if __name__ == "__main__":
    main()
