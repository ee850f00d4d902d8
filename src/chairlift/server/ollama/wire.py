"""How answers look on the line in Ollama's dialect: a JSON object per line, errors in a word."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from chairlift.server.errors import ApiError

_HEADERS = [
    (b"content-type", b"application/x-ndjson"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class OllamaWire:
    """Lines of JSON; the last one says so itself.  There is no line that says nothing."""

    stream_headers: Sequence[tuple[bytes, bytes]] = _HEADERS
    more_body_types: Collection[bytes] = (b"application/x-www-form-urlencoded",)
    """As curl calls it unless told otherwise; Ollama's own examples do not tell it."""
    ping = b""
    end = b""

    def error(self, error: ApiError) -> tuple[int, bytes]:
        return error.status, _body(error)

    def error_event(self, error: ApiError) -> bytes:
        return _body(error) + b"\n"


def _body(error: ApiError) -> bytes:
    return json.dumps({"error": error.message}).encode("ascii")
