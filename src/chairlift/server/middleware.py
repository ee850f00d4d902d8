"""What every request passes before its endpoint, outermost first.

`Recorder` gives it a name, answers its errors and books it; `HostCheck` and `OriginCheck` keep
web pages of strangers out; `KeyCheck` asks for the key.  All guard every path, known or not.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chairlift.server.auth import PUBLIC_PATHS, KeyRing
from chairlift.server.errors import (
    CLIENT_CLOSED,
    ApiError,
    ClientClosed,
    forbidden,
    internal_error,
    method_not_allowed,
    not_found,
)
from chairlift.server.exchange import Exchange, attach, exchange_of
from chairlift.server.metrics_hooks import MetricsHooks
from chairlift.server.plain_answer import send_bytes, send_error
from chairlift.server.wire import Wire, wire_of

logger = logging.getLogger("chairlift")

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_SLASHES = re.compile("/{2,}")
_MAX_DROPPED_BYTES = 64 * 2**20
"""The rest of a body up to this is read and dropped: who still sends could not read our answer."""
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_NO_WIRES: Mapping[str, Wire] = MappingProxyType({})

LogLine = Callable[[Exchange], None]


class Recorder:
    """Names the request, turns whatever happens into an answer, and books how it ended."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: MetricsHooks,
        log_line: LogLine,
        wires: Mapping[str, Wire] = _NO_WIRES,
    ) -> None:
        """`wires`: dialects other than OpenAI's, by the paths below which they are spoken."""
        self._app = app
        self._wires = wires
        self._metrics = metrics
        self._log_line = log_line

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"there is no {scope['type']} here")
        scope["path"] = _plain_path(scope["path"])
        exchange = Exchange.from_scope(scope)
        exchange.wire = wire_of(exchange.path, self._wires)
        attach(scope, exchange)

        def send_named(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                exchange.has_response_started = True
                exchange.status = message["status"]
                headers = [*message.get("headers", ()), *exchange.response_headers()]
                message = {**message, "headers": headers}
            return send(message)

        try:
            await self._answer(scope, receive, send_named, exchange)
        finally:
            self._metrics.request_finished(exchange)
            self._log_line(exchange)
            exchange.outputs = ()  # an idle connection keeps its last exchange

    async def _answer(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> None:
        try:
            await self._app(scope, receive, send)
        except ClientClosed:
            exchange.status, exchange.error_code = CLIENT_CLOSED, "client_closed"
            exchange.abort_connection()
        except ApiError as error:
            await self._send_error(send, exchange, error)
        except HTTPException as error:
            await self._send_error(send, exchange, _of_router(error, exchange))
        except asyncio.CancelledError:
            exchange.status, exchange.error_code = CLIENT_CLOSED, "cancelled"
            raise
        except Exception:
            logger.exception("request %s failed", exchange.request_id)
            await self._send_error(send, exchange, internal_error(exchange.request_id))

    async def _send_error(self, send: Send, exchange: Exchange, error: ApiError) -> None:
        exchange.error_code = error.code
        self._metrics.request_rejected(exchange, error.code or f"status_{error.status}")
        if exchange.is_body_pending and _has_long_body(exchange):
            error.headers.append((b"connection", b"close"))  # rather than to read and drop it
        if exchange.has_response_started:
            exchange.abort_connection()
        elif error.status == 405 and exchange.method == "OPTIONS":
            await send_bytes(send, 204, b"", error.headers)
        else:
            await send_error(send, error, exchange.wire)


def _has_long_body(exchange: Exchange) -> bool:
    length = exchange.headers.get(b"content-length", b"0")
    return not (length.isdigit() and len(length) < 20 and int(length) <= _MAX_DROPPED_BYTES)


def _plain_path(path: str) -> str:
    """Without doubled and trailing slashes: redirecting would lose the body of a POST."""
    return _SLASHES.sub("/", path).rstrip("/") or "/"


def _of_router(error: HTTPException, exchange: Exchange) -> ApiError:
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return method_not_allowed(exchange.method[:20], allowed.encode("ascii"))
    return not_found("there is nothing under this path")


class HostCheck:
    """Refuses hosts that are not ours: a web page could point its own name at this machine."""

    def __init__(self, app: ASGIApp, *, allowed: Collection[str]) -> None:
        """`allowed`: names without a port; none at all accepts every host."""
        self._app = app
        self._allowed = frozenset(name.lower() for name in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = exchange_of(scope).headers.get(b"host")
        if self._allowed and host is not None and _host_name(host) not in self._allowed:
            raise forbidden("this server does not go by that host name", code="host_not_allowed")
        await self._app(scope, receive, send)


class OriginCheck:
    """CORS: web pages of other origins may call only if their origin is on the list."""

    def __init__(self, app: ASGIApp, *, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = frozenset(origin.encode("latin-1") for origin in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        origin = exchange.headers.get(b"origin")
        if origin is None:
            await self._app(scope, receive, send)
            return
        is_allowed = origin in self._allowed or b"*" in self._allowed
        is_preflight = (
            exchange.method == "OPTIONS" and b"access-control-request-method" in exchange.headers
        )
        if is_preflight and is_allowed:
            await send_bytes(send, 204, b"", _preflight_headers(exchange, origin))
        elif is_allowed:
            exchange.added_headers += _origin_headers(origin)
            await self._app(scope, receive, send)
        elif exchange.method in _SAFE_METHODS or _is_same_origin(exchange, origin):
            await self._app(scope, receive, send)  # without our headers a page cannot read it
        else:
            raise forbidden("this origin may not call the API", code="origin_not_allowed")


class KeyCheck:
    """Lets nobody pass without a key, but for a few public paths."""

    def __init__(
        self, app: ASGIApp, *, keys: KeyRing, public_paths: Collection[str] = PUBLIC_PATHS
    ) -> None:
        self._app = app
        self._keys = keys
        self._public_paths = frozenset(public_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in self._public_paths:
            exchange = exchange_of(scope)
            exchange.key_name = self._keys.owner(exchange.headers)
        await self._app(scope, receive, send)


def _host_name(host: bytes) -> str:
    """A Host header without its port."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text.partition("]")[0] + "]"
    return text.partition(":")[0]


def _is_same_origin(exchange: Exchange, origin: bytes) -> bool:
    """A page that this very server has served."""
    try:
        place = urlsplit(origin.decode("ascii")).netloc
    except ValueError:
        return False
    return bool(place) and place.encode("ascii") == exchange.headers.get(b"host")


def _origin_headers(origin: bytes) -> list[tuple[bytes, bytes]]:
    exposed = b"x-request-id, openai-processing-ms, x-chairlift-ignored, retry-after"
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", exposed),
        (b"vary", b"Origin"),
    ]


def _preflight_headers(exchange: Exchange, origin: bytes) -> list[tuple[bytes, bytes]]:
    asked = exchange.headers.get(b"access-control-request-headers", b"")
    return [
        *_origin_headers(origin),
        (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
        (b"access-control-allow-headers", asked or b"authorization, content-type"),
        (b"access-control-max-age", b"600"),
    ]
