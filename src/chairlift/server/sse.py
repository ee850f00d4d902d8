"""Server-sent events: the frames, and one streamed answer with what keeps it honest.

An answer starts with its first event or its first keep-alive comment, so that what goes wrong
before has a status of its own.  Its last events and the end of the body go out together.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

from starlette.types import Send

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_SWEEP_S = 0.25

json_string: Callable[[str], str] = json.encoder.encode_basestring
"""A text as JSON, letters as they are; runs in C."""


def event(data: bytes) -> bytes:
    """One event.  The space after the colon matters to some clients."""
    return b"data: " + data + b"\n\n"


class EventStream:
    """One streamed answer.  Belongs to the task that writes it."""

    def __init__(
        self,
        send: Send,
        *,
        nudge: Callable[[], None],
        headers: Sequence[tuple[bytes, bytes]] = HEADERS,
    ) -> None:
        """`nudge` makes the writing task write a comment."""
        self._send = send
        self._headers = headers
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._nudge = nudge
        self._last_write_s = self._loop.time()
        self._blocked_since_s: float | None = None
        self.is_started = False
        self.has_stalled = False
        """Its client did not read, and it was given up."""

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        """Send events; waits while the client does not read."""
        if not self.is_started:
            self.is_started = True
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": list(self._headers)}
            )
        self._last_write_s = self._blocked_since_s = self._loop.time()
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})
        self._blocked_since_s = None

    def sweep(self, now_s: float, *, ping_s: float, stall_s: float) -> None:
        """Nudge a writer that has been silent for long; give up one whose client does not read."""
        if self._blocked_since_s is not None:
            if now_s - self._blocked_since_s >= stall_s and not self.has_stalled:
                self.has_stalled = True
                assert self._task is not None
                self._task.cancel()
        elif now_s - self._last_write_s >= ping_s:
            self._last_write_s = now_s
            self._nudge()


class StreamSweeper:
    """Looks after all streams with one timer."""

    def __init__(self, *, ping_s: float, stall_s: float) -> None:
        self._ping_s = ping_s
        self._stall_s = stall_s
        self._streams: set[EventStream] = set()

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: EventStream) -> None:
        self._streams.add(stream)

    def remove(self, stream: EventStream) -> None:
        self._streams.discard(stream)

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._sweep(loop.time())

    def _sweep(self, now_s: float) -> None:
        for stream in tuple(self._streams):
            stream.sweep(now_s, ping_s=self._ping_s, stall_s=self._stall_s)
