"""`chairlift serve` with about as much memory as it needs, and with less, down to far too little.

It serves what it would serve anyhow, or ends at once with one line that says so: no traceback, and
nothing that hangs.
"""

from __future__ import annotations

import http.client
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from http_harness import until

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="limits and needs are those of Linux"
)
MIB = 2**20
START_S = 120.0
FIXED = ("--kv-cache-memory", "16MiB", "--swap-space", "0")
COMMON = ("--threads", "1", "--store", "memory", "--no-access-log", "--served-model-name", "tiny")
SHARES = (1.1, 1.0, 0.9, 0.8, 0.75, 0.7, 0.65, 0.6, 0.5) if os.environ.get("CHAIRLIFT_FULL") else (
    1.1, 0.75, 0.6
)  # fmt: skip
"""Of the need.  With less than half of it not even numpy loads, and says so itself."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of a server."""

    text: str | None
    """Of an answer; None if it never was ready."""
    code: int | None
    """With which it ended by itself; None if it had to be ended."""
    log: list[str]
    needs: dict[str, int]
    """Lines of /proc/PID/status in bytes, taken after the answer."""

    def check(self, expected: str) -> None:
        """It has served, or has ended cleanly."""
        assert not any("Traceback" in line for line in self.log), self.log
        if self.text is not None:
            assert self.text == expected and self.code is None
        else:
            assert self.code == 2, self.log
            errors = [line for line in self.log if line.startswith("error: ")]
            assert errors == self.log[-1:] and "memory" in errors[0], self.log


def serve_once(model: Path, *options: str, limit: Callable[[], None] = lambda: None) -> Outcome:
    """Start a server behind a limit, ask it once, and end it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "chairlift", "serve", str(model), "--port", str(port)]
    process = subprocess.Popen(
        [*command, *COMMON, *options], stderr=subprocess.PIPE, text=True, preexec_fn=limit
    )
    log: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=log.extend, args=(process.stderr,))
    reader.start()
    text, needs = None, dict[str, int]()
    try:
        until(lambda: process.poll() is not None or status_of(port) == 200, START_S)
        if process.poll() is None:
            text = answer_of(port)
            needs = needs_of(process.pid)
        code = process.poll()
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stderr.close()
    return Outcome(text=text, code=code, log=[line.rstrip() for line in log], needs=needs)


def status_of(port: int) -> int:
    with suppress(OSError):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status
        finally:
            connection.close()
    return 0


def answer_of(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        body = {"model": "tiny", "prompt": "abc", "max_tokens": 8, "ignore_eos": True}
        data = json.dumps({**body, "temperature": 0, "n": 1})
        connection.request("POST", "/v1/completions", data, {"content-type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        return str(answer["choices"][0]["text"])
    finally:
        connection.close()


def needs_of(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = (line.split() for line in lines if line.startswith("Vm"))
    return {name.rstrip(":"): int(number) * 1024 for name, number, *_ in found}


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Path:
    return tiny_folder("llama3")


@pytest.fixture(scope="module")
def unlimited(model: Path) -> Outcome:
    """What it says and needs where nothing is short."""
    outcome = serve_once(model, *FIXED)
    assert outcome.text
    return outcome


LIMITS = {"VmPeak": resource.RLIMIT_AS, "VmData": resource.RLIMIT_DATA}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("need", LIMITS)
def test_about_as_much_memory_as_it_needs(
    model: Path, unlimited: Outcome, need: str, share: float
) -> None:
    num_bytes = int(unlimited.needs[need] * share)

    def limit() -> None:
        resource.setrlimit(LIMITS[need], (num_bytes, num_bytes))

    outcome = serve_once(model, *FIXED, limit=limit)
    outcome.check(unlimited.text or "")
    if share < 0.65:
        assert outcome.text is None, "the limit was none"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("need", LIMITS)
def test_enough_memory_is_divided_by_the_limit_of_the_process(
    model: Path, unlimited: Outcome, need: str
) -> None:
    """Nobody says how large the KV cache may be, and it fits."""
    num_bytes = unlimited.needs[need] + 256 * MIB

    def limit() -> None:
        resource.setrlimit(LIMITS[need], (num_bytes, num_bytes))

    facts = facts_of(model, limit)
    assert facts["memory_limit"] == "process" and facts["total_memory_bytes"] == num_bytes
    assert facts["free_memory_bytes"] < num_bytes
    assert serve_once(model, limit=limit).text == unlimited.text


def facts_of(model: Path, limit: Callable[[], None]) -> dict[str, Any]:
    """What `chairlift info` says behind a limit."""
    command = [sys.executable, "-m", "chairlift", "info", str(model), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


# -- cgroups -----------------------------------------------------------------------------------
class MemoryGroup:
    """A memory cgroup below the one that the tests are in, version 1 or 2."""

    def __init__(self, folder: Path, *, limit: str, peak: str) -> None:
        self.folder, self._limit, self._peak = folder, limit, peak

    def set_limit(self, num_bytes: int) -> None:
        (self.folder / self._limit).write_text(str(num_bytes))

    def enter(self) -> None:
        """In a process that has just been started."""
        (self.folder / "cgroup.procs").write_text("0")

    @property
    def peak_bytes(self) -> int:
        return int((self.folder / self._peak).read_text())

    @property
    def num_processes(self) -> int:
        return len((self.folder / "cgroup.procs").read_text().split())


@contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """Raises OSError where the system does not permit one."""
    root = Path("/sys/fs/cgroup")
    paths = dict(
        (controllers, path)
        for _, controllers, path in (
            line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()
        )
    )
    if "memory" in paths:
        own, limit = root / "memory" / paths["memory"].lstrip("/"), "memory.limit_in_bytes"
        peak = "memory.max_usage_in_bytes"
    else:
        own, limit, peak = root / paths.get("", "/").lstrip("/"), "memory.max", "memory.peak"
    folder = own / f"chairlift-test-{os.getpid()}"
    folder.mkdir()
    try:
        if not all((folder / name).exists() for name in (limit, peak)):
            raise OSError("no memory controller for groups below this one")
        yield MemoryGroup(folder, limit=limit, peak=peak)
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text().split())
        folder.rmdir()


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    try:
        made = memory_group()
        group = made.__enter__()
    except (OSError, KeyError) as error:
        pytest.skip(f"no memory cgroup may be made here: {error}")
    try:
        yield group
    finally:
        made.__exit__(None, None, None)


@pytest.mark.timeout(900)
def test_a_memory_group_of_need_and_a_tenth(
    model: Path, unlimited: Outcome, group: MemoryGroup
) -> None:
    """Need, as the kernel counts it: with a tenth more nobody is killed, with all that the memory
    plan sets aside it serves."""
    group.set_limit(4096 * MIB)
    assert serve_once(model, *FIXED, limit=group.enter).text == unlimited.text
    need = group.peak_bytes
    assert need > 32 * MIB, "the server was not in the group"
    group.set_limit(need + need // 10)
    serve_once(model, *FIXED, limit=group.enter).check(unlimited.text or "")
    group.set_limit(need + 160 * MIB)
    assert serve_once(model, *FIXED, limit=group.enter).text == unlimited.text


@pytest.mark.timeout(900)
def test_the_kv_cache_is_chosen_inside_the_memory_group(
    model: Path, unlimited: Outcome, group: MemoryGroup
) -> None:
    """A server that may decide by itself stays inside, whatever the machine has."""
    limit = 640 * MIB
    group.set_limit(limit)
    facts = facts_of(model, group.enter)
    assert facts["memory_limit"] == "cgroup" and facts["total_memory_bytes"] == limit
    memory = facts["model"]["memory"]
    assert 0 < memory["num_blocks"] * memory["block_bytes"] < facts["free_memory_bytes"] < limit
    assert serve_once(model, limit=group.enter).text == unlimited.text
    assert group.peak_bytes <= limit
