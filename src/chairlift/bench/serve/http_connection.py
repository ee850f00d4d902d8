"""One connection to the server: a request out, its answer in, again and again."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol, cast

from chairlift.bench.serve.event_stream import EventStreamError
from chairlift.bench.serve.http_answer import AnswerHead, AnswerReader, HttpError

LATE_END_S = 0.5
"""How long the end of a body may come after the end of the answer that is in it."""


class ConnectionLostError(Exception):
    """The connection broke.  `had_answer` if a part of the answer had come."""

    def __init__(self, message: str, *, had_answer: bool) -> None:
        super().__init__(message)
        self.had_answer = had_answer


class Receiver(Protocol):
    """Takes an answer as it comes."""

    @property
    def has_all(self) -> bool:
        """Whatever may still come of the body does not matter."""
        ...

    def on_head(self, head: AnswerHead, now_s: float) -> None: ...

    def on_body(self, data: bytes, now_s: float) -> None: ...


class HttpConnection(asyncio.Protocol):
    """Made by `loop.create_connection`; `ask` may be called when the last call has ended."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = AnswerReader()
        self._receiver: Receiver | None = None
        self._answered: asyncio.Future[None] | None = None
        self._late_end: asyncio.TimerHandle | None = None
        self.is_open = False
        self.num_answers = 0
        """Answers that came whole."""

    async def ask(self, request: bytes, receiver: Receiver) -> None:
        """Send a request; return when the receiver has the whole answer.

        Raises `ConnectionLostError` and `HttpError`; after either, and when cancelled, the
        connection is closed.
        """
        assert self._transport is not None and self._answered is None
        self._reader, self._receiver = AnswerReader(), receiver
        self._answered = self._loop.create_future()
        try:
            if not self.is_open:
                raise ConnectionLostError("the connection was closed", had_answer=False)
            self._transport.write(request)
            await self._answered
            self.num_answers += 1
        except BaseException:
            self.close()
            raise
        finally:
            self._receiver = self._answered = None

    def close(self) -> None:
        """At once: what has not been sent is not sent any more."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._receiver is None:  # nobody has asked
            self.close()
            return
        now_s = time.monotonic()  # a loop's own time may stand still while it works
        reader, is_new = self._reader, self._reader.head is None
        try:
            body = reader.feed(data)
            if is_new and reader.head is not None:
                self._receiver.on_head(reader.head, now_s)
            if body:
                self._receiver.on_body(body, now_s)
        except (HttpError, EventStreamError) as error:
            self._finish(error)
            return
        if reader.is_complete:
            assert reader.head is not None
            if not reader.head.is_persistent:
                self.close()
            self._finish(None)
        elif self._receiver.has_all and self._late_end is None:
            self._late_end = self._loop.call_later(LATE_END_S, self._give_up_on_end)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._answered is None:
            return
        try:
            if exc is not None:
                raise HttpError(f"the connection broke: {exc}")
            self._reader.end_of_input()
        except HttpError as error:
            had_answer = self._reader.head is not None
            self._finish(ConnectionLostError(str(error), had_answer=had_answer))
        else:
            self._finish(None)

    def _give_up_on_end(self) -> None:
        self.close()
        self._finish(None)

    def _finish(self, error: Exception | None) -> None:
        if self._late_end is not None:
            self._late_end.cancel()
            self._late_end = None
        if self._answered is None or self._answered.done():
            return
        if error is None:
            self._answered.set_result(None)
        else:
            self._answered.set_exception(error)
