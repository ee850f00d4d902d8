"""`chairlift serve` as a process: start, signals, exit codes."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from http_harness import Answer, events_of, read_all, request_bytes, until

Serve = Callable[..., Any]
OPTIONS = ("--threads", "1", "--kv-cache-memory", "16MiB", "--swap-space", "0")
START_S = 60.0
ENDLESS = {"max_tokens": 200, "n": 64, "temperature": 1}
"""One after the other: it takes longer than any of these tests."""


class Process:
    """A server process and its log."""

    def __init__(self, process: subprocess.Popen[str], port: int, log: list[str]) -> None:
        self.process, self.port, self.log = process, port, log

    def call(self, method: str, path: str, body: Any = None, timeout_s: float = 60) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            headers = {"content-type": "application/json"}
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, named, response.read())
        finally:
            connection.close()

    def complete(self, **options: Any) -> Answer:
        body = {"model": "tiny", "prompt": "abc", "max_tokens": 8, "ignore_eos": True}
        return self.call("POST", "/v1/completions", {**body, **options})

    def is_ready(self) -> bool:
        with suppress(OSError):
            return self.call("GET", "/health").status == 200
        return False

    def num_requests(self) -> int:
        """Running and waiting."""
        found = re.findall(
            rb"^chairlift:num_requests_(?:running|waiting)(?:{.*})? (.+)$",
            self.call("GET", "/metrics").body,
            re.MULTILINE,
        )
        assert len(found) == 2
        return int(sum(map(float, found)))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 30) -> int:
        return self.process.wait(timeout_s)


@pytest.fixture
def serve_process(tiny_folder: Callable[[str], Path]) -> Serve:
    """`with serve_process("--flag") as process` -> a ready server over the tiny model."""

    @contextmanager
    def start(*options: str, **popen: Any) -> Iterator[Process]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [
            sys.executable, "-m", "chairlift", "serve", str(tiny_folder("llama3")),
            "--port", str(port), "--served-model-name", "tiny", *OPTIONS, *options,
        ]  # fmt: skip
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **popen)
        log: list[str] = []
        assert process.stderr is not None
        reader = threading.Thread(target=log.extend, args=(process.stderr,))
        reader.start()
        running = Process(process, port, log)
        try:
            until(lambda: running.is_ready() or process.poll() is not None, START_S)
            assert process.poll() is None, log
            yield running
        finally:
            process.kill()
            process.wait()
            reader.join()
            process.stderr.close()

    return start


@pytest.mark.timeout(180)
def test_sigterm_lets_all_streams_end(serve_process: Serve) -> None:
    with serve_process("--max-num-seqs", "2", "--shutdown-timeout", "600") as server:
        answers: list[Answer] = []
        threads = [
            threading.Thread(
                target=lambda: answers.append(server.complete(stream=True, max_tokens=200))
            )
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        until(lambda: len(answers) + server.num_requests() >= 20)
        server.signal(signal.SIGTERM)
        refused: list[Answer] = []
        with suppress(OSError):
            until(lambda: server.call("GET", "/health").status == 503)
            refused = [server.complete(), server.call("GET", "/ready")]
        for thread in threads:
            thread.join()
        assert server.wait() == 0
        assert len(answers) == 20
        for answer in answers:
            *chunks, done = events_of(answer.body)
            assert done == "[DONE]" and chunks[-1]["choices"][0]["finish_reason"] == "length"
        for answer in refused:
            assert answer.status == 503 and answer.error["code"] == "draining"
            assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.timeout(180)
def test_requests_that_do_not_end_in_time_are_told(serve_process: Serve) -> None:
    options = ("--shutdown-timeout", "0.2", "--max-num-seqs", "128", "--kernels", "reference")
    with serve_process(*options) as server:
        body = {"model": "tiny", "prompt": "abc", "ignore_eos": True, "stream": True, **ENDLESS}
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as streaming:
            headers = "Connection: close\r\n"
            streaming.sendall(request_bytes("/v1/completions", body, headers=headers))
            streamed = b""
            while b"data: " not in streamed:
                streamed += streaming.recv(65_536)
            before = server.num_requests()
            with ThreadPoolExecutor(1) as pool:
                whole = pool.submit(server.complete, **ENDLESS)
                until(lambda: server.num_requests() > before)
                server.signal(signal.SIGTERM)
                streamed += read_all(streaming)
            assert server.wait() == 0
        answer = whole.result()
        assert answer.status == 503 and answer.error["code"] == "draining"
        assert streamed.startswith(b"HTTP/1.1 200 ")
        assert 0 < streamed.index(b'"draining"') < streamed.index(b"[DONE]")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_server_ends_at_once(serve_process: Serve, number: int) -> None:
    with serve_process() as server:
        assert server.complete().status == 200
        keeping = socket.create_connection(("127.0.0.1", server.port))
        server.signal(number)
        assert server.wait(10) == 0
        keeping.close()
        assert not any("Traceback" in line for line in server.log)


@pytest.mark.timeout(180)
def test_threads_hand_over_the_lock_soon(serve_process: Serve, tmp_path: Path) -> None:
    told = "atexit.register(lambda: print(sys.getswitchinterval(), file=sys.stderr))"
    (tmp_path / "sitecustomize.py").write_text(f"import atexit, sys\n{told}")
    with serve_process(env={**os.environ, "PYTHONPATH": str(tmp_path)}) as server:
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    assert 0 < float(server.log[-1]) <= 0.001


@pytest.mark.timeout(180)
def test_second_signal_ends_it_whatever_it_does(serve_process: Serve) -> None:
    with serve_process("--shutdown-timeout", "60", "--max-num-seqs", "1") as server:
        thread = threading.Thread(
            target=lambda: suppress_call(lambda: server.complete(**ENDLESS, stream=True))
        )
        thread.start()
        until(lambda: server.num_requests() >= 1)
        server.signal(signal.SIGINT)
        until(lambda: any("shutting down" in line for line in server.log))
        server.signal(signal.SIGINT)
        assert server.wait(5) == 128 + signal.SIGINT
        thread.join()


def suppress_call(call: Callable[[], Any]) -> None:
    with suppress(OSError, http.client.HTTPException):
        call()


@pytest.mark.timeout(180)
def test_hangup_and_pause_change_nothing(serve_process: Serve) -> None:
    with serve_process() as server:
        expected = server.complete(temperature=0).json["choices"]
        server.signal(signal.SIGHUP)
        server.signal(signal.SIGSTOP)
        time.sleep(30 if os.environ.get("CHAIRLIFT_FULL") else 0.5)
        server.signal(signal.SIGCONT)
        assert server.complete(temperature=0).json["choices"] == expected


@pytest.mark.timeout(180)
def test_few_file_descriptors(serve_process: Serve) -> None:
    """More clients than descriptors: some are refused, and afterwards all is as before."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    with serve_process(preexec_fn=limit) as server:
        sockets = []
        for _ in range(120):
            with suppress(OSError):
                sockets.append(socket.create_connection(("127.0.0.1", server.port), timeout=5))
        refused = 0
        for connection in sockets[-20:]:
            connection.settimeout(2)
            with suppress(OSError):
                refused += b"503" in connection.recv(1000)
        assert refused > 0
        for connection in sockets:
            connection.close()
        until(lambda: server.is_ready())
        assert server.complete().status == 200


@pytest.mark.timeout(180)
def test_no_place_for_temporary_files(serve_process: Serve) -> None:
    places = {name: "/proc" for name in ("TMPDIR", "TEMP", "TMP")}
    with serve_process(env={**os.environ, **places}, cwd="/proc") as server:
        assert server.complete().status == 200


@pytest.mark.timeout(180)
def test_log_is_json_on_request(serve_process: Serve) -> None:
    with serve_process("--log-format", "json") as server:
        server.complete()
        until(lambda: any("/v1/completions" in line for line in server.log))
        entries = [json.loads(line) for line in server.log]
    entry = next(entry for entry in entries if entry.get("path") == "/v1/completions")
    assert entry["status"] == 200 and entry["completion_tokens"] == 8
    assert entry["request_id"].startswith("req-")


# -- kept responses ----------------------------------------------------------------------------
def respond(server: Process, **options: Any) -> Answer:
    body = {"model": "tiny", "input": "abc", "max_output_tokens": 8, "ignore_eos": True}
    return server.call("POST", "/v1/responses", {**body, **options})


def kept_rows(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return connection.execute("SELECT id, status FROM responses").fetchall()


@pytest.mark.timeout(300)
def test_a_killed_server_leaves_a_sound_store(serve_process: Serve, tmp_path: Path) -> None:
    path = tmp_path / "state" / "s.sqlite"
    options = ("--store", str(path), "--kernels", "reference")
    with serve_process(*options) as server:
        whole = respond(server).json
        streaming = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        body = {"model": "tiny", "input": "abc", "ignore_eos": True, "stream": True}
        streaming.sendall(request_bytes("/v1/responses", body))
        received = b""
        while b"output_text.delta" not in received:
            received += streaming.recv(65_536)
        running = respond(server, background=True, max_output_tokens=200).json
        server.signal(signal.SIGKILL)
        server.process.wait()
        with suppress(OSError):
            while part := streaming.recv(65_536):
                received += part
        streaming.close()
    cut_off = re.search(rb'"id":"(resp_[0-9a-f]+)"', received)
    assert cut_off is not None and b"response.completed" not in received
    assert {id for id, _ in kept_rows(path)} == {whole["id"], running["id"]}
    with serve_process(*options) as server:
        assert any("cut short" in line for line in server.log)
        assert server.call("GET", f"/v1/responses/{whole['id']}").json == whole
        failed = server.call("GET", f"/v1/responses/{running['id']}").json
        assert failed["status"] == "failed" and failed["error"]["code"] == "server_error"
        assert server.call("GET", f"/v1/responses/{cut_off[1].decode()}").status == 404
        follow = respond(server, previous_response_id=whole["id"])
        assert follow.status == 200
    assert len(kept_rows(path)) == 3


@pytest.mark.timeout(180)
@pytest.mark.parametrize("grace_s", ["600", "0.1"], ids=["patient", "hurried"])
def test_sigterm_waits_for_the_background(
    serve_process: Serve, tmp_path: Path, grace_s: str
) -> None:
    path = tmp_path / "s.sqlite"
    options = ("--store", str(path), "--shutdown-timeout", grace_s, "--max-num-seqs", "1")
    with serve_process(*options, "--kernels", "reference") as server:
        many = range(2 if grace_s == "600" else 40)
        ids = [respond(server, background=True, max_output_tokens=200).json["id"] for _ in many]
        server.signal(signal.SIGTERM)
        assert server.wait(120) == 0
        assert not any("Traceback" in line for line in server.log)
    kept = dict(kept_rows(path))
    assert set(kept) == set(ids)
    if grace_s == "600":
        assert set(kept.values()) == {"incomplete"}
    else:
        assert "failed" in kept.values() and set(kept.values()) <= {"failed", "incomplete"}


@pytest.mark.timeout(180)
def test_responses_are_kept_in_the_state_folder(serve_process: Serve, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with serve_process(env=environment) as server:
        id = respond(server).json["id"]
    assert kept_rows(tmp_path / "chairlift" / "store.sqlite") == [(id, "incomplete")]
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with serve_process(env={**environment, "XDG_STATE_HOME": str(blocked)}) as server:
        assert any("kept in memory" in line for line in server.log)
        kept = respond(server).json
        assert server.call("GET", f"/v1/responses/{kept['id']}").json == kept


@pytest.mark.timeout(300)
def test_a_store_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text("no database " * 1000)
    command = [sys.executable, "-m", "chairlift", "serve", "--port", "0", "--store", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "cannot use the store" in done.stderr and "not a database" in done.stderr
