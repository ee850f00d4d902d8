"""One HTTP request as the server sees it, from its first byte to the line in the log."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.types import Scope

from chairlift.outputs import RequestOutput
from chairlift.server.wire import OPENAI, Wire

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_NAMED_FIELDS = 32
_KEY = "chairlift.exchange"


@dataclass(slots=True)
class Exchange:
    """What middleware and endpoints share about a request."""

    request_id: str
    """The client's own, if it is presentable; not unique."""
    method: str
    path: str
    client: str
    headers: dict[bytes, bytes]
    """The first of each name."""
    wire: Wire = OPENAI
    """The dialect that its answer is written in."""
    started_s: float = field(default_factory=time.monotonic)
    key_name: str = ""
    """Whose API key it came with; empty without keys."""
    endpoint: str = ""
    """The route's name, for metrics; empty if there is none."""
    ignored: list[str] = field(default_factory=list)
    """Fields that changed nothing."""
    added_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """For the answer, whatever it will be."""
    outputs: Collection[RequestOutput] = ()
    """What the engine has given so far."""
    is_body_pending: bool = True
    """Its body, if it has one, has not been read to the end."""
    status: int = 0
    error_code: str | None = None
    has_response_started: bool = False
    abort_connection: Callable[[], None] = lambda: None
    """Cut the line without waiting for what is still to be sent."""

    @classmethod
    def from_scope(cls, scope: Scope) -> Exchange:
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, value)
        asked_id = headers.get(b"x-request-id", b"")
        is_presentable = _REQUEST_ID.fullmatch(asked_id) is not None
        client = scope.get("client") or ("", 0)
        return cls(
            request_id=asked_id.decode("ascii") if is_presentable else new_id("req"),
            method=scope["method"],
            path=scope["path"],
            client=client[0],
            headers=headers,
            abort_connection=scope.get("chairlift.abort_connection", _do_nothing),
        )

    @property
    def duration_s(self) -> float:
        return time.monotonic() - self.started_s

    def response_headers(self) -> list[tuple[bytes, bytes]]:
        """Headers that every answer carries."""
        headers = [
            (b"x-request-id", self.request_id.encode("ascii")),
            (b"openai-processing-ms", b"%d" % round(self.duration_s * 1e3)),
            *self.added_headers,
        ]
        if self.ignored:
            headers.append((b"x-chairlift-ignored", _header_list(self.ignored)))
        return headers


def exchange_of(scope: Scope) -> Exchange:
    return cast(Exchange, scope[_KEY])


def attach(scope: Scope, exchange: Exchange) -> None:
    cast(dict[str, Any], scope)[_KEY] = exchange


def new_id(prefix: str) -> str:
    """A name nobody else has."""
    return f"{prefix}-{secrets.token_hex(12)}"


def _header_list(names: Sequence[str]) -> bytes:
    """Names of the client's, made harmless."""
    shown = [
        name if _PLAIN_NAME.fullmatch(name) else "(unprintable)"
        for name in names[:_MAX_NAMED_FIELDS]
    ]
    if len(names) > _MAX_NAMED_FIELDS:
        shown.append("...")
    return ", ".join(shown).encode("ascii")


def _do_nothing() -> None:
    return
