"""A server process that is there for as long as it is measured."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

START_SECONDS = 600  # vLLM compiles
STOP_SECONDS = 60


def split_flags(words: list[str]) -> tuple[list[str], list[str]]:
    """Own words, and behind `--` those of the server."""
    if "--" not in words:
        return words, []
    return words[: words.index("--")], words[words.index("--") + 1 :]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def served(
    command_for: Callable[[int], Sequence[object]], env: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Start `command_for(port)`; yields the base URL when /health answers.

    Whatever the server has printed is printed when something goes wrong.
    """
    port = free_port()
    words = [str(word) for word in command_for(port)]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(
            words, env={**os.environ, **(env or {})}, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            wait_until_healthy(server, port)
            yield f"http://127.0.0.1:{port}"
        except BaseException:
            log.seek(0)
            print(f"{' '.join(words)}:\n{log.read()[-3000:]}")
            raise
        finally:
            server.terminate()
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def wait_until_healthy(server: subprocess.Popen[str], port: int) -> None:
    """Raises RuntimeError if the server ends, or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"the server did not start (code {server.poll()})")
