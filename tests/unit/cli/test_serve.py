"""`chairlift serve`: what is wrong with its options is one line, before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("/nothing/here.gguf",), "/nothing/here.gguf"),
        (("--host", "0.0.0.0"), "--insecure"),
        (("--port", "99999"), "port"),
        (("--api-key", ""), "api_key"),
        (("--api-key", "a b"), "API key"),
        (("--api-key-file", "/nothing"), "key file"),
        (("--ssl-keyfile", "x"), "together"),
        (("--ssl-keyfile", "/nothing", "--ssl-certfile", "/nothing"), "certificate"),
        (("--chat-template", "/nothing"), "chat template"),
        (("--chat-template", "{% for %}"), "template"),
        (("--log-format", "xml"), "log_format"),
        (("--max-queued-requests", "0"), "max_queued_requests"),
        (("--max-queued-tokens", "0"), "max_queued_tokens"),
        (("--max-body-size", "1"), "max_body_size"),
        (("--max-connections", "0"), "max_connections"),
        (("--request-timeout", "0"), "request_timeout"),
        (("--ping-interval", "-1"), "ping_interval"),
        (("--slow-client-timeout", "0"), "slow_client_timeout"),
        (("--shutdown-timeout", "-1"), "shutdown_timeout"),
        (("--step-timeout", "0"), "step_timeout"),
        (("--served-model-name", ""), "served_model_name"),
        (("--uds", "/nothing/at/all.sock"), "cannot listen"),
        (("one", "--model", "two"), "two models"),
        (("--max-model-len", "0"), "max_model_len"),
        (("--unheard-of",), "No such option"),
    ],
)
def test_mistakes_of_the_operator_are_one_line(
    cli: Cli, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = cli("serve", "--port", "0", *arguments)
    assert code == 2 and out == ""
    lines = [line for line in err.splitlines() if line.startswith("error:")]
    assert len(lines) == 1 and message in lines[0], err
    assert "Traceback" not in err


def test_help_tells_every_option(cli: Cli) -> None:
    code, out, _ = cli("serve", "--help")
    assert code == 0
    for flag in ("--api-key", "--max-queued-requests", "--kv-cache-memory", "--served-model-name"):
        assert flag in out
