"""`chairlift serve` with the default model, as a process that clients talk to."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_START_S = 180.0
_STOP_S = 60.0
_IDLE_S = 30.0
_READY = "ready: "
_HELD = ("num_requests_running", "num_requests_waiting", "num_requests_swapped")


class ChairliftProcess:
    """A server that runs, its address and its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, api_key: str) -> None:
        self._process = process
        self._log = log
        self.api_key = api_key
        self.url = self._wait_until_ready()

    def environment(self) -> dict[str, str]:
        """What a check reads: where the server is, and how to ask the offline engine."""
        return {
            "CHAIRLIFT_URL": self.url,
            "CHAIRLIFT_API_KEY": self.api_key,
            "CHAIRLIFT_PYTHON": sys.executable,
        }

    def check_unharmed(self) -> None:
        """Raises AssertionError unless it runs, holds nothing any more and logged no failure."""
        assert self._process.poll() is None, "the server has ended"
        deadline = time.monotonic() + _IDLE_S
        while held := self._held():
            assert time.monotonic() < deadline, f"the server still holds {held}"
            time.sleep(0.05)
        text = self._log.read_text(encoding="utf-8", errors="replace")
        assert "Traceback" not in text, f"the server's log has a traceback: {self._log}"

    def end(self) -> int:
        """SIGTERM; its exit code."""
        self._process.terminate()
        return self._process.wait(_STOP_S)

    def _held(self) -> dict[str, float]:
        """Gauges of requests that are not zero."""
        request = urllib.request.Request(self.url + "/metrics")
        if self.api_key:
            request.add_header("authorization", f"Bearer {self.api_key}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        gauges = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        found = {name: float(gauges[f"chairlift:{name}"]) for name in _HELD}
        return {name: value for name, value in found.items() if value}

    def _wait_until_ready(self) -> str:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines():
                if _READY in line:
                    return line.partition(_READY)[2].strip()
            time.sleep(0.05)
        raise RuntimeError(f"the server did not start:\n{self._log.read_text()[-2000:]}")


@contextmanager
def chairlift_process(options: Sequence[str], log: Path) -> Iterator[ChairliftProcess]:
    """A server on a free port, until the block is left; `log` gets what it prints.

    Raises RuntimeError if it does not start.
    """
    command = [sys.executable, "-m", "chairlift", "serve", "--port", "0", *options]
    state = str(log.parent.resolve())  # it keeps nothing among the user's own things
    api_key = options[options.index("--api-key") + 1] if "--api-key" in options else ""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "XDG_STATE_HOME": state},
        )  # fmt: skip
    try:
        yield ChairliftProcess(process, log, api_key)
    finally:
        process.kill()
        process.wait()
