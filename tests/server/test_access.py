"""Who may come in: keys, hosts, origins, TLS, and what may be reached without any."""

from __future__ import annotations

import http.client
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from chairlift.errors import ConfigError
from chairlift.server.auth import read_keys
from chairlift.server.http_server import open_socket
from chairlift.server.server_config import ServerConfig
from http_harness import MODEL, RunningServer

KEY, OTHER = "sk-correct-horse", "sk-battery-staple"
GUARDED = [
    ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("GET", "/v1/models"),
    ("POST", "/v1/embeddings"),
    ("GET", f"/v1/models/{MODEL}"), ("POST", "/tokenize"), ("POST", "/detokenize"),
    ("GET", "/tokenizer_info"), ("GET", "/version"), ("GET", "/openapi.json"), ("GET", "/metrics"),
    ("GET", "/"), ("GET", "/nothing"), ("POST", "/invocations"), ("GET", "/docs"),
]  # fmt: skip
AROUND = [
    "/v1//models", "//v1/models", "/V1/models", "/%761/models", "/v1/../metrics", "/v1/models;x",
    "/v1/models/", "/v1/%2e%2e/v1/models", "/health/../v1/models", "/health/v1/models",
    "/ready//../v1/models", "/v1/models%00", "/%2fv1/models", "/health;/v1/models", "/ping/",
    "/health?x=/v1/models", "http://localhost/v1/models", "/v1/models#health", "/./v1/models",
]  # fmt: skip


@pytest.fixture(scope="module")
def guarded(build_tiny: Any) -> Any:
    from http_harness import serving_engine

    with serving_engine(build_tiny, api_key=(KEY, OTHER)) as running:
        yield running


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_every_path_is_guarded(guarded: RunningServer) -> None:
    for method, path in GUARDED:
        for body in (None, {"model": MODEL, "prompt": "a"}):
            answer = guarded.call(method, path, body)
            assert answer.status == 401, path
            assert answer.error["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "x-request-id" in answer.headers


@pytest.mark.parametrize("path", AROUND)
def test_no_way_around_the_guard(guarded: RunningServer, path: str) -> None:
    answer = guarded.get(path)
    if path.split("?")[0].rstrip("/") in ("/ping", "/health"):
        assert answer.status == 200 and b"tiny" not in answer.body
    else:
        assert answer.status in (401, 404), path


@pytest.mark.parametrize("path", ["/health", "/ready", "/ping"])
def test_public_paths(guarded: RunningServer, path: str) -> None:
    assert guarded.get(path).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Basic c2stY29ycmVjdC1ob3JzZQ=="},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Bearer {KEY[:-1]}"},
        {"authorization": f"Bearer {KEY.upper()}"},
        {"authorization": "Bearer ' OR 1=1--"},
        {"authorization": "Bearer sk-\xe4\xf6\xfc"},
        {"authorization": KEY},
        {"authorization": f"Bearer {'x' * 50_000}"},
        {"x-api-key": "wrong"},
        {"api-key": KEY},
        {"authorization": "Bearer wrong", "x-api-key": KEY},
    ],
)
def test_wrong_keys(guarded: RunningServer, headers: dict[str, str]) -> None:
    assert guarded.get("/v1/models", headers=headers).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        bearer(KEY),
        bearer(OTHER),
        {"authorization": f"bearer {KEY}"},
        {"authorization": f"BEARER   {KEY}  "},
        {"x-api-key": OTHER},
    ],
)
def test_right_keys(guarded: RunningServer, headers: dict[str, str]) -> None:
    assert guarded.get("/v1/models", headers=headers).status == 200
    assert guarded.complete(headers=headers).status == 200


def test_key_is_asked_for_before_anything_is_read(guarded: RunningServer) -> None:
    answer = guarded.post("/v1/completions", b"{", headers=bearer("wrong"))
    assert answer.status == 401


def test_different_keys_share_no_cached_prompt(guarded: RunningServer) -> None:
    def cached(key: str) -> int:
        body = {"prompt": [9] * 100, "headers": bearer(key)}
        usage = guarded.complete(body["prompt"], headers=bearer(key)).json["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached(KEY) == 0 and cached(KEY) > 0
    assert cached(OTHER) == 0


def test_same_salt_shares_and_another_does_not(server: RunningServer) -> None:
    def cached(salt: str | None) -> int:
        usage = server.complete([11] * 80, cache_salt=salt).json["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached("a") == 0 and cached("a") > 0 and cached("b") == 0 and cached(None) == 0


def test_key_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# comment\n\nalice {KEY}\n{OTHER}\n")
    keys = read_keys(ServerConfig(api_key=("third-key",), api_key_file=str(file)))
    owners = [
        keys.owner({b"authorization": b"Bearer " + key.encode()})
        for key in (KEY, OTHER, "third-key")
    ]
    assert owners == ["alice", "key-3", "key-1"]


@pytest.mark.parametrize("text", ["", "# nothing\n", "a b c\n", "k\u00e4y\n", "same\nsame\n"])
def test_bad_key_files(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        read_keys(ServerConfig(api_key_file=str(file)))
    with pytest.raises(ConfigError, match="cannot read"):
        read_keys(ServerConfig(api_key_file=str(tmp_path / "missing")))


@pytest.mark.parametrize(
    ("options", "is_allowed"),
    [
        ({}, True),
        ({"host": "localhost"}, True),
        ({"host": "127.0.0.2"}, True),
        ({"host": "::1"}, True),
        ({"host": "0.0.0.0"}, False),
        ({"host": "::"}, False),
        ({"host": "192.168.0.7"}, False),
        ({"host": "example.org"}, False),
        ({"host": "0.0.0.0", "api_key": (KEY,)}, True),
        ({"host": "0.0.0.0", "insecure": True}, True),
        ({"uds": "/tmp/x.sock", "host": "0.0.0.0"}, True),
    ],
)
def test_exposure_needs_a_key(options: dict[str, Any], is_allowed: bool) -> None:
    config = ServerConfig(**options)
    if is_allowed:
        config.check_exposure()
    else:
        with pytest.raises(ConfigError, match="insecure"):
            config.check_exposure()


@pytest.mark.parametrize("keys", [("",), ("a b",), ("\u00e4",), ("a\n",), ("same", "same")])
def test_useless_keys_are_refused(keys: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        read_keys(ServerConfig(api_key=keys))


# -- hosts and origins -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("localhost:8000", 200), ("LOCALHOST", 200), ("127.0.0.1:1", 200),
        ("[::1]:8000", 200), ("evil.example", 403), ("evil.example:8000", 403),
        ("localhost.evil.example", 403), ("127.0.0.1.evil.example", 403), ("", 403),
    ],
)  # fmt: skip
def test_hosts_on_loopback(server: RunningServer, host: str, status: int) -> None:
    answer = server.get("/v1/models", headers={"host": host})
    assert answer.status == status
    if status == 403:
        assert answer.error["code"] == "host_not_allowed"


def test_another_host_may_be_allowed(serve: Any) -> None:
    with serve(allowed_host=("models.example",)) as server:
        assert server.get("/v1/models", headers={"host": "models.example:80"}).status == 200
        assert server.get("/v1/models", headers={"host": "other.example"}).status == 403


def test_foreign_pages_may_not_call(server: RunningServer) -> None:
    answer = server.complete(headers={"origin": "https://evil.example"})
    assert answer.status == 403 and answer.error["code"] == "origin_not_allowed"
    reading = server.get("/v1/models", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in reading.headers
    own = f"http://127.0.0.1:{server.port}"
    assert server.complete(headers={"origin": own}).status == 200
    preflight = server.call("OPTIONS", "/v1/completions", headers={
        "origin": "https://evil.example", "access-control-request-method": "POST"})  # fmt: skip
    assert "access-control-allow-origin" not in preflight.headers


def test_listed_origins_may_call(serve: Any) -> None:
    page = "https://page.example"
    with serve(cors_origin=(page,), api_key=(KEY,)) as server:
        preflight = server.call(
            "OPTIONS",
            "/v1/completions",
            headers={
                "origin": page,
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization, content-type",
            },
        )
        assert preflight.status == 204
        assert preflight.headers["access-control-allow-origin"] == page
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in preflight.headers
        answer = server.complete(headers={"origin": page, **bearer(KEY)})
        assert answer.status == 200 and answer.headers["access-control-allow-origin"] == page
        assert answer.headers["vary"] == "Origin"
        refused = server.complete(headers={"origin": page})
        assert refused.status == 401 and refused.headers["access-control-allow-origin"] == page
        other = server.complete(headers={"origin": "https://x.example", **bearer(KEY)})
        assert other.status == 403


# -- TLS and sockets ---------------------------------------------------------------------------
@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key, chain = folder / "key.pem", folder / "chain.pem"
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes a certificate, is not installed")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", chain,
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, chain


def test_tls(serve: Any, certificate: tuple[Path, Path]) -> None:
    key, chain = certificate
    with serve(ssl_keyfile=str(key), ssl_certfile=str(chain)) as server:
        trusted = ssl.create_default_context(cafile=str(chain))
        connection = http.client.HTTPSConnection("localhost", server.port, context=trusted)
        connection.request("GET", "/v1/models")
        assert connection.getresponse().status == 200
        connection.close()
        assert b"200" not in server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")


def test_tls_that_cannot_work_is_told_at_start(tmp_path: Path, serve: Any) -> None:
    with pytest.raises(ConfigError, match="together"):
        ServerConfig(ssl_keyfile="x")
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    for path in (str(bad), str(tmp_path / "missing")):
        with (
            pytest.raises(ConfigError, match="certificate"),
            serve(ssl_keyfile=path, ssl_certfile=path),
        ):
            pass


def test_port_in_use_is_told_at_start(server: RunningServer) -> None:
    with pytest.raises(ConfigError, match="cannot listen"):
        open_socket(ServerConfig(port=server.port))


def test_unix_socket_is_for_this_user_only(serve: Any, tmp_path: Path) -> None:
    import socket

    path = tmp_path / "s.sock"
    with serve(uds=str(path)):
        assert path.stat().st_mode & 0o077 == 0
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(str(path))
            connection.sendall(
                b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            )
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
