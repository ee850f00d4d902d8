"""uvicorn's HTTP/1.1 protocol with limits on what a connection may cost before a request is read.

The parser itself bounds neither the size of a header nor the time it takes to arrive.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from chairlift.server.errors import INVALID_REQUEST, ApiError, unavailable

MAX_HEADER_BYTES = 64 * 1024
MAX_HEADER_LINES = 100
HEADER_TIMEOUT_S = 15.0
MAX_DROPPED_BYTES = 64 * 2**20
DROP_TIMEOUT_S = 15.0
"""How much of a body that is answered already may still come, and for how long."""
MAX_CHUNKS = 65_536
"""Of a body: each costs the event loop more than its bytes do."""
CLOSE_TIMEOUT_S = 5.0
"""How long a closed connection may take to deliver what is still to be sent."""

_REASONS = {
    400: b"Bad Request",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
    503: b"Service Unavailable",
}


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    max_connections = 4096
    """Of all instances of a class; the server makes a subclass of its own."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._is_in_header = True
        self._num_header_bytes = 0
        self._num_dropped = 0
        self._timer: asyncio.TimerHandle | None = None
        """For a header, or for the rest of a body that nobody wants."""

    # -- the connection ----------------------------------------------------------------------
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse(unavailable("too_many_connections", "too many open connections", 1))
            return
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        # After a reset as well: the timer would keep the last request in memory.
        self._unset_keepalive_if_required()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_later()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_in_header:
            if self._num_header_bytes > MAX_HEADER_BYTES:  # all of it header, and still no end
                self._refuse_header()
                return
            self._num_header_bytes += len(data)
            if self._timer is None:
                self._start_header_timer()
        super().data_received(data)

    # -- the parser's callbacks --------------------------------------------------------------
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_header = True
        self._size_of_headers = self._num_chunks = 0
        self.scope["chairlift.abort_connection"] = self.transport.abort  # type: ignore[typeddict-unknown-key]

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if len(self.headers) >= MAX_HEADER_LINES:
            raise _HeaderTooLarge
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_header = False
        self._num_header_bytes = 0
        self._stop_timer()
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._num_chunks += 1
        if self._num_chunks > MAX_CHUNKS:
            raise _TooManyChunks

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None and self.cycle.response_complete:
            self._drop(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_dropped = 0
        self._stop_timer()
        super().on_message_complete()
        self._is_in_header = True
        self._num_header_bytes = 0

    def send_400_response(self, msg: str) -> None:
        """What the parser cannot read, or we do not want it to."""
        if self._is_too_large():
            self._refuse_header()
        else:
            self._refuse(ApiError(400, "this is not a valid HTTP request", type=INVALID_REQUEST))

    def _drop(self, num_bytes: int) -> None:
        """The rest of a body whose answer has been sent."""
        self._num_dropped += num_bytes
        if self._num_dropped > MAX_DROPPED_BYTES:
            self.transport.abort()
        elif self._timer is None:
            self._timer = self.loop.call_later(DROP_TIMEOUT_S, self.transport.abort)

    # -- limits ------------------------------------------------------------------------------
    def _count(self, num_bytes: int) -> None:
        self._size_of_headers += num_bytes
        if self._size_of_headers > MAX_HEADER_BYTES:
            raise _HeaderTooLarge

    def _is_too_large(self) -> bool:
        has_too_many = bool(self.headers) and len(self.headers) >= MAX_HEADER_LINES
        return self._is_in_header and (has_too_many or self._size_of_headers > MAX_HEADER_BYTES)

    _size_of_headers = _num_chunks = 0

    def _start_header_timer(self) -> None:
        self._timer = self.loop.call_later(HEADER_TIMEOUT_S, self._header_is_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _header_is_late(self) -> None:
        self._timer = None
        if not self.transport.is_closing() and self._is_in_header:
            self._refuse(ApiError(408, "the header did not arrive in time", code="request_timeout"))

    def _refuse_header(self) -> None:
        self._refuse(
            ApiError(
                431,
                f"the header has more than {MAX_HEADER_BYTES} bytes or {MAX_HEADER_LINES} lines",
                code="header_too_large",
            )
        )

    def _refuse(self, error: ApiError) -> None:
        """Answer without a request, and close."""
        if self.transport.is_closing():
            return
        body = error.body()
        head = b"HTTP/1.1 %d %s\r\n" % (error.status, _REASONS[error.status])
        head += b"".join(name + b": " + value + b"\r\n" for name, value in error.headers)
        head += b"content-type: application/json\r\nconnection: close\r\n"
        head += b"content-length: %d\r\n\r\n" % len(body)
        cycle = self.cycle
        is_next = cycle is None or cycle.response_complete
        if is_next or (cycle.more_body and not cycle.response_started):
            self.transport.write(head + body)
        self.transport.close()
        self._abort_later()

    def _abort_later(self) -> None:
        self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)


class _TooManyChunks(Exception):
    """Ends the parsing as well."""


class _HeaderTooLarge(Exception):
    """Ends the parsing; the answer is made where the parser's error arrives."""
