"""A program: a server is asked things, and every try of its to reach beyond its own port is told.

    python lone_network.py <order.json >report.json

The order: `{"is_alone": bool, "command": [...], "watched_file": path, "calls": [[path, body]]}`.
If `is_alone`, server and client share a network namespace of their own with nothing but a loopback
device; exit code NOT_PERMITTED where the system does not allow it.  In the command, Python's own,
`{port}` becomes the port to serve on, and in bodies that of a listener which nobody should visit.

The report: `{"answers": [[status, text]], "events": [...], "counts": {...}, "num_visitors": int}`.
Events are what the interpreter's audit hooks saw in the server: names looked up, sockets connected,
programs started, and any opening of the watched file.  Counts are the namespace's, from the kernel,
which sees native code too: what the calls added beside their own connections.

Standard library only, and no thread before the namespace is entered.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

NOT_PERMITTED = 77
START_S = 120.0
_NEW_USER, _NEW_NET = 0x1000_0000, 0x4000_0000
_SET_FLAGS, _IS_UP = 0x8914, 1
_COUNTED = {"Tcp": ["ActiveOpens"], "Udp": ["OutDatagrams"], "Ip": ["OutNoRoutes"]}

WATCH = """
import os, sys

NAMES = {
    "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr",
    "socket.sendto", "socket.sendmsg", "urllib.Request", "http.client.connect",
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork",
}
FILE = os.environ["WATCHED_FILE"]
EVENTS = os.open(os.environ["WATCHED_EVENTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def watch(event, arguments):
    if event in NAMES or (event == "open" and arguments[0] in (FILE, FILE.encode())):
        os.write(EVENTS, f"{event} {arguments!r}\\n".encode())

sys.addaudithook(watch)
"""
"""The server's `sitecustomize`: there before its first own line."""


def main() -> None:
    order = json.load(sys.stdin)
    if order["is_alone"]:
        try:
            enter_network()
        except OSError as error:
            print(f"no network namespace: {error.strerror}", file=sys.stderr)
            sys.exit(NOT_PERMITTED)
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as bait:
        json.dump(run(order, Path(folder), bait), sys.stdout)


def enter_network() -> None:
    """A namespace with a loopback device only, for this process and those it starts."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "unshare"):
        raise OSError(errno.ENOSYS, "this system has none")
    unshare = library.unshare
    user, group = os.getuid(), os.getgid()
    if unshare(_NEW_NET) != 0:
        if unshare(_NEW_USER | _NEW_NET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh", b"lo", _IS_UP))


def run(order: dict[str, Any], folder: Path, bait: socket.socket) -> dict[str, Any]:
    (folder / "sitecustomize.py").write_text(WATCH)
    events = folder / "events"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    watched = {
        "PYTHONPATH": os.pathsep.join(paths),
        "WATCHED_FILE": order["watched_file"],
        "WATCHED_EVENTS": str(events),
    }
    command = [part.replace("{port}", str(port)) for part in order["command"]]
    with open(folder / "log", "w+b") as log:
        server = subprocess.Popen(command, stderr=log, env={**os.environ, **watched})
        try:
            wait_until_ready(server, port, folder / "log")
            before = counts()
            answers = [
                post(port, path, text.replace("{port}", str(bait.getsockname()[1])))
                for path, text in order["calls"]
            ]
            after = counts()
        finally:
            server.kill()
            server.wait()
    added = {name: after[name] - before[name] for name in after}
    added["Tcp.ActiveOpens"] -= len(answers)
    return {
        "answers": answers,
        "events": events.read_text().splitlines(),
        "counts": added,
        "num_visitors": visitors(bait),
    }


def wait_until_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end_s = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < end_s:
        with suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                connection.close()
                return
        time.sleep(0.02)
    sys.exit(f"the server is not ready: {log.read_text()}")


def post(port: int, path: str, body: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def counts() -> dict[str, int]:
    """What the kernel has counted in this network namespace."""
    found = {}
    lines = Path("/proc/self/net/snmp").read_text().splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        group, *columns = names.split()
        row = dict(zip(columns, values.split()[1:], strict=True))
        for column in _COUNTED.get(group.rstrip(":"), ()):
            found[f"{group.rstrip(':')}.{column}"] = int(row[column])
    with suppress(OSError):  # where the system knows version 6
        for line in Path("/proc/self/net/snmp6").read_text().splitlines():
            name, value = line.split()
            if name in ("Ip6OutNoRoutes", "Udp6OutDatagrams"):
                found[name] = int(value)
    return found


def visitors(bait: socket.socket) -> int:
    """How many came to the listener."""
    bait.setblocking(False)
    number = 0
    with suppress(BlockingIOError):
        while True:
            bait.accept()[0].close()
            number += 1
    return number


if __name__ == "__main__":
    main()
