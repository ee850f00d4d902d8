"""What a request names is never looked up, connected to, opened or run, in any dialect.

A server process of its own, watched by the interpreter's audit hooks and, in a network namespace
with a loopback device only, by the kernel's counters.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lone_network

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
OPTIONS = ("--threads", "1", "--kv-cache-memory", "16MiB", "--swap-space", "0")
OWN_PROGRAM = "'-m', 'chairlift.grammar.trial_process'"
"""Where grammars are tried; watched like the server."""
START = ("--served-model-name", "tiny", "--store", "memory", "--no-access-log")

FETCHING_SERVER = """
import http.server, json, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        url = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            urllib.request.urlopen(url, timeout=0.2).close()
        except Exception:
            pass
        self.send_response(400); self.end_headers()
http.server.HTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
"""
"""What a careless server does with a URL."""


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that could be read."""
    path = tmp_path_factory.mktemp("secret") / "passwd"
    path.write_text("secret")
    return path


def urls(secret: Path) -> list[str]:
    return [
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.1:{port}/x.png",
        "http://ok.example\\@127.0.0.1:{port}/",
        "http://ok.example@127.0.0.1:{port}/",
        "http://[fd00:ec2::254]/",
        "https://model.example/x.png",
        "ftp://127.0.0.1:{port}/x",
        "file:///etc/passwd",
        f"file://{secret}",
        str(secret),
    ]


def refused(url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Requests that ask for something to be fetched."""
    for kind in ("image_url", "video_url", "audio_url", "input_audio", "file"):
        part = {"type": kind, kind: {"url": url, "data": url, "file_data": url}}
        yield CHAT, {"messages": [{"role": "user", "content": [part]}]}
    yield (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": url}]}]},
    )
    said = {"messages": [{"role": "user", "content": "x"}]}
    yield CHAT, {**said, "prompt_embeds": url}
    yield CHAT, {**said, "chat_template": url}
    schema = {"type": "object", "properties": {"a": {"$ref": url}}}
    function = {"type": "function", "function": {"name": "f", "parameters": schema}}
    yield CHAT, {**said, "tools": [function]}
    response_format = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    yield CHAT, {**said, "response_format": response_format}
    yield TEXT, {"prompt_embeds": url}
    yield TEXT, {"prompt": "x", "prompt_embeds": [url]}
    for part in (
        {"type": "input_image", "image_url": url},
        {"type": "input_file", "file_url": url},
        {"type": "input_audio", "input_audio": {"data": url}},
    ):
        yield RESPONSES, {"input": [{"role": "user", "content": [part]}]}
    mcp = {"type": "mcp", "server_label": "x", "server_url": url, "require_approval": "never"}
    yield RESPONSES, {"input": "x", "tools": [mcp]}
    for kind in ("image", "document"):
        block = {"type": kind, "source": {"type": "url", "url": url}}
        yield "/v1/messages", {"messages": [{"role": "user", "content": [block]}]}
    message = {"role": "user", "content": "x", "images": [url]}
    yield "/api/chat", {"messages": [message], "stream": False}
    yield "/api/generate", {"prompt": "x", "images": [url], "stream": False}
    yield "/v1/embeddings", {"input": [{"image_url": url}]}
    yield "/api/embed", {"input": [{"image_url": url}]}


def served(url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Requests in which a URL is text like any other."""
    yield TEXT, {"prompt": f"Fetch {url}", "user": url}
    yield CHAT, {"messages": [{"role": "user", "content": f"![]({url})", "name": "x"}]}
    yield "/v1/embeddings", {"input": url}


def watched(
    is_alone: bool, command: list[str], secret: Path, calls: list[tuple[str, str]]
) -> dict[str, Any]:
    """The report of `lone_network`, or a skip with its reason."""
    order = {
        "is_alone": is_alone,
        "command": [sys.executable, *command],
        "watched_file": str(secret),
        "calls": calls,
    }
    done = subprocess.run(
        [sys.executable, lone_network.__file__],
        input=json.dumps(order),
        capture_output=True,
        text=True,
    )
    if done.returncode == lone_network.NOT_PERMITTED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_alone", [True, False], ids=["loopback only", "network as it is"])
def test_no_request_makes_the_server_reach_out(
    tiny_folder: Callable[[str], Path], secret: Path, is_alone: bool
) -> None:
    requests = [(400, *request) for url in urls(secret) for request in refused(url)]
    requests += [(200, *request) for url in urls(secret) for request in served(url)]
    calls = [
        (path, json.dumps({"model": "tiny", "max_tokens": 2, **body})) for _, path, body in requests
    ]
    command = ["-m", "chairlift", "serve", str(tiny_folder("llama3")), *OPTIONS, *START]
    report = watched(is_alone, [*command, "--port", "{port}"], secret, calls)
    for (expected, path, body), (status, text) in zip(requests, report["answers"], strict=True):
        assert status == expected, (path, body, text)
    assert [line for line in report["events"] if OWN_PROGRAM not in line] == []
    assert report["num_visitors"] == 0
    if is_alone:
        assert len(report["counts"]) >= 3 and not any(report["counts"].values()), report["counts"]


@pytest.mark.timeout(300)
def test_a_server_that_fetches_would_be_caught(secret: Path) -> None:
    """By every instrument, for every URL that can be fetched at all."""
    for url, event, count in (
        ("http://169.254.169.254/", "socket.connect", "Ip.OutNoRoutes"),
        ("http://127.0.0.1:{port}/x.png", "socket.connect", "Tcp.ActiveOpens"),
        (f"file://{secret}", "open", None),
    ):
        report = watched(True, ["-c", FETCHING_SERVER], secret, [("/", json.dumps(url))])
        assert any(line.startswith(event) for line in report["events"]), report
        if count is not None:
            assert report["counts"][count] > 0
        assert report["num_visitors"] == (count == "Tcp.ActiveOpens")
