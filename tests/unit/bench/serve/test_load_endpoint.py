"""Addresses of servers."""

from __future__ import annotations

import pytest

from chairlift.bench.serve.endpoint import parse_endpoint
from chairlift.errors import ConfigError


@pytest.mark.parametrize(
    ("base_url", "path", "url"),
    [
        ("http://127.0.0.1:8000", "/v1/completions", "http://127.0.0.1:8000/v1/completions"),
        ("http://h:1/", "/v1/chat/completions", "http://h:1/v1/chat/completions"),
        ("http://h/v1", "/v1/completions", "http://h/v1/completions"),
        ("http://h/v1/", "/v1/completions", "http://h/v1/completions"),
        ("https://h/a/b", "/v1/completions", "https://h/a/b/v1/completions"),
        ("http://[::1]:9", "/v1/completions", "http://[::1]:9/v1/completions"),
        ("http://h/v1", "/completions", "http://h/v1/completions"),
    ],
)
def test_address_and_path_make_a_url(base_url: str, path: str, url: str) -> None:
    assert parse_endpoint(base_url, path).url == url


def test_ports_and_kinds() -> None:
    plain = parse_endpoint("http://h", "/v1/completions")
    chat = parse_endpoint("https://h", "/v1/chat/completions")
    assert (plain.port, plain.is_chat, plain.authority) == (80, False, "h")
    assert (chat.port, chat.is_chat, chat.authority) == (443, True, "h")


@pytest.mark.parametrize(
    "base_url",
    ["", "h:80", "ftp://h", "http://", "http://h:x", "http://h:99999", "http://u@h", "http://h?a=1",
     "http://h/a b", "http://h/\r\nx"],
)  # fmt: skip
def test_a_bad_address_names_the_field(base_url: str) -> None:
    with pytest.raises(ConfigError, match="base_url takes") as caught:
        parse_endpoint(base_url, "/v1/completions")
    assert caught.value.field == "base_url"


@pytest.mark.parametrize("path", ["", "v1/completions", "/v1/embeddings", "/v1/ completions"])
def test_a_bad_path_names_the_field(path: str) -> None:
    with pytest.raises(ConfigError, match="endpoint takes") as caught:
        parse_endpoint("http://h", path)
    assert caught.value.field == "endpoint"
