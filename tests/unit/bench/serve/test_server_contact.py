"""What is asked of a server before it is measured."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from chairlift.bench.serve.load_config import LoadConfig
from chairlift.bench.serve.load_session import measure_server
from chairlift.bench.serve.server_contact import ServerError
from chairlift.errors import ConfigError
from scripted_server import Exchange, ScriptedServer, serving, tokens

CHAT = "/v1/chat/completions"


def measure(server: ScriptedServer, notes: list[str] | None = None, **options: Any) -> Any:
    usual: dict[str, Any] = {"num_prompts": 2, "input_len": "100", "output_len": "1"}
    config = LoadConfig(base_url=server.base_url, **{**usual, **options})
    return measure_server(config, note=(notes if notes is not None else []).append)


def test_nobody_is_there() -> None:
    with serving(tokens()) as server:
        pass
    with pytest.raises(ServerError, match=f"no server is ready at {server.base_url}.*--wait-ready"):
        measure(server)


def test_wait_ready_waits_for_a_server_that_starts_late() -> None:
    """It listens late, and then is unhealthy for a while."""
    with serving(tokens()) as server, socket.socket() as late:
        asked = []

        async def route(exchange: Exchange) -> None:
            if exchange.path == "/health":
                asked.append(exchange)
                await exchange.answer({}, 503 if len(asked) < 3 else 200)
            else:
                await ScriptedServer.route(server, exchange)

        server.route = route  # type: ignore[method-assign]
        late.bind(("127.0.0.1", 0))
        port, inner = late.getsockname()[1], server.base_url
        late.close()
        relay = threading.Thread(target=_relay_later, args=(port, inner), daemon=True)
        relay.start()
        server.base_url = f"http://127.0.0.1:{port}"
        report = measure(server, wait_ready=30.0, max_concurrency=1)
        assert len(report.metrics.completed) == 2 and len(asked) == 3


def _relay_later(port: int, inner: str) -> None:
    """After a moment, pass on whatever comes to `port`."""
    time.sleep(0.3)
    host, _, inner_port = inner.removeprefix("http://").partition(":")
    with socket.create_server(("127.0.0.1", port)) as listening:
        while True:
            outer, _ = listening.accept()
            behind = socket.create_connection((host, int(inner_port)))
            for source, target in ((outer, behind), (behind, outer)):
                threading.Thread(target=_pump, args=(source, target), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    finally:
        target.close()


def test_a_server_that_stays_unhealthy_is_named_with_its_answer() -> None:
    with serving(tokens()) as server:

        async def route(exchange: Exchange) -> None:
            await exchange.answer({}, 503)

        server.route = route  # type: ignore[method-assign]
        with pytest.raises(ServerError, match="/health answers 503"):
            measure(server)


def test_no_model_is_listed() -> None:
    with serving(tokens()) as server:
        server.routes["/v1/models"] = lambda body: {"data": []}
        with pytest.raises(ConfigError, match="lists no model") as caught:
            measure(server)
    assert caught.value.field == "model"


def test_ids_where_the_server_takes_them() -> None:
    with serving(tokens()) as server:
        assert measure(server, token_ids="7-9").prompt_form == "ids"
        for exchange in server.measured:
            assert len(exchange.body["prompt"]) == 100
            assert set(exchange.body["prompt"]) <= {7, 8, 9}


async def no_ids(exchange: Exchange) -> None:
    if isinstance(exchange.body.get("prompt"), list):
        await exchange.answer({"error": {"message": "prompt must be a string"}}, 400)
    else:
        words = len(exchange.body["prompt"].split())
        await tokens(num_prompt_tokens=2 * words + 5)(exchange)


def test_text_where_it_does_not_with_a_note_and_about_the_length() -> None:
    notes: list[str] = []
    with serving(no_ids) as server:
        report = measure(server, notes)
        assert report.prompt_form == "text"
        assert report.metrics.total_input_tokens / 2 == pytest.approx(100, abs=3)
    assert any("prompts are text" in note and "must be a string" in note for note in notes)


def test_ids_on_demand_are_not_replaced() -> None:
    with serving(no_ids) as server, pytest.raises(ServerError, match="must be a string"):
        measure(server, prompt_form="ids")


def test_tokenize_is_used_where_it_is() -> None:
    """Three tokens a word there; what the answers say is not looked at."""
    with serving(
        tokens(), tokenize=lambda body: {"count": 3 * len(body["prompt"].split())}
    ) as server:
        measure(server, prompt_form="text")
        assert len(server.measured[0].body["prompt"].split()) == pytest.approx(33, abs=1)
        assert len(server.seen) == 1 + 2


def test_a_chat_is_calibrated_with_its_template() -> None:
    def count(body: dict[str, Any]) -> dict[str, int]:
        return {"count": len(body["messages"][0]["content"].split()) + 40}

    with serving(tokens(), tokenize=count) as server:
        assert measure(server, endpoint=CHAT).prompt_form == "text"
        content = server.measured[0].body["messages"][0]["content"]
        assert len(content.split()) == 60


def test_warm_ups_are_sent_and_not_measured() -> None:
    with serving(tokens()) as server:
        report = measure(server, num_warmups=3, max_concurrency=2)
        assert len(report.run.records) == 2
        warmups = [e for e in server.seen if e.headers["x-request-id"] == "warmup"]
        assert len(warmups) == 3
        assert not {e.raw_body for e in warmups} & {e.raw_body for e in server.measured}


def test_a_failing_warm_up_ends_it() -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.headers["x-request-id"] == "warmup":
            await exchange.answer({"error": {"message": "too cold"}}, 500)
        else:
            await tokens()(exchange)

    with serving(script) as server, pytest.raises(ServerError, match="too cold"):
        measure(server, num_warmups=2)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and self-signed certificate in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes a certificate, is not installed")
    path: Path = tmp_path_factory.mktemp("certificate") / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", path, "-out",
         path.with_suffix(".crt"), "-days", "2", "-subj", "/CN=bench",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    path.write_text(path.read_text() + path.with_suffix(".crt").read_text())
    return path


def test_https_only_with_a_certificate_that_is_trusted(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with serving(tokens(), tls=tls) as server:
        assert server.base_url.startswith("https://")
        with pytest.raises(ServerError, match="certificate verify failed"):
            measure(server)
        assert not server.seen
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert len(measure(server).metrics.completed) == 2
