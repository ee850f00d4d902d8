"""How long from `chairlift serve` to the first token: a process is started, asked until it answers,
and ended, several times over; the model is cached, and so are the files.

    python benchmarks/startup.py [--rounds 7] [-- FLAGS]

FLAGS are options of `chairlift serve`.  The client opens a connection as soon as there is somebody
to take it, and asks for one streamed token as soon as the server says that it is ready.  Alone on
the machine the median counts; on a busy one look at the least, and at the processor's time.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from rivals.served import STOP_SECONDS, free_port, split_flags

GOAL_S = 3.0
LIMIT_S = 120.0
POLL_S = 0.01
BODY = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "stream": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Seconds since the process was started, and what it took of the processor until then."""

    listening_s: float
    ready_s: float
    first_token_s: float
    cpu_s: float


def measure(flags: list[str]) -> Start:
    """Start a server, wait for its first token, end it."""
    port = free_port()
    command = [sys.executable, "-m", "chairlift", "serve", "--port", str(port), *flags]
    command += ["--served-model-name", "model", "--no-access-log"]
    with tempfile.TemporaryFile("w+") as log:
        started_s = time.perf_counter()
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            listening_s = wait_for(server, port, "/health", (200, 503)) - started_s
            ready_s = wait_for(server, port, "/health", (200,)) - started_s
            first_token_s = first_token(port) - started_s
            return Start(
                listening_s=listening_s,
                ready_s=ready_s,
                first_token_s=first_token_s,
                cpu_s=cpu_seconds(server.pid),
            )
        except BaseException:
            log.seek(0)
            print(log.read()[-3000:])
            raise
        finally:
            server.terminate()
            server.wait(STOP_SECONDS)


def wait_for(
    server: subprocess.Popen[bytes], port: int, path: str, statuses: tuple[int, ...]
) -> float:
    """When a GET was answered with one of these."""
    deadline_s = time.perf_counter() + LIMIT_S
    while server.poll() is None and time.perf_counter() < deadline_s:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        try:
            connection.request("GET", path)
            if connection.getresponse().status in statuses:
                return time.perf_counter()
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(POLL_S)
    raise RuntimeError(f"the server did not start (code {server.poll()})")


def first_token(port: int) -> float:
    """When the first event with text has come."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    data = json.dumps({**BODY, "model": "model"})
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/chat/completions", data, headers)
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(answer.read()[:300])
    while not answer.readline().startswith(b"data:"):
        pass
    arrived_s = time.perf_counter()
    connection.close()
    return arrived_s


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far (proc(5), fields 14 and 15 of stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    words, flags = split_flags(sys.argv[1:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args(words)
    measure(flags)  # reads the files into memory
    starts = [measure(flags) for _ in range(asked.rounds)]
    print(f"chairlift serve {' '.join(flags)}; goal for the first token: {GOAL_S:.1f} s\n")
    print("| seconds from the start | median | least | most |")
    print("| --- | --- | --- | --- |")
    for label, values in (
        ("listening", [start.listening_s for start in starts]),
        ("ready", [start.ready_s for start in starts]),
        ("first token", [start.first_token_s for start in starts]),
        ("processor time until then", [start.cpu_s for start in starts]),
    ):
        middle = statistics.median(values)
        print(f"| {label} | {middle:.2f} | {min(values):.2f} | {max(values):.2f} |")


if __name__ == "__main__":
    main()
