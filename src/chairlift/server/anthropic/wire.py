"""How answers look on the line in Anthropic's dialect: named events, and errors by their type."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from chairlift.server.errors import ApiError
from chairlift.server.sse import HEADERS

OVERLOADED = 529
"""In place of 503: its clients have a class of their own for it, and try again."""
_TYPES: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
)


class AnthropicWire:
    """Server-sent events with names; `message_stop` is the last."""

    stream_headers: Sequence[tuple[bytes, bytes]] = HEADERS
    more_body_types: Collection[bytes] = ()
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'
    end = b""

    def error(self, error: ApiError) -> tuple[int, bytes]:
        status = OVERLOADED if error.status == 503 else error.status
        return status, _body(error)

    def error_event(self, error: ApiError) -> bytes:
        return named_event("error", _body(error))


def named_event(name: str, data: bytes) -> bytes:
    """One event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode("ascii"), data)


def _body(error: ApiError) -> bytes:
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    detail = {"type": kind, "message": error.message}
    return json.dumps({"type": "error", "error": detail}).encode("ascii")
