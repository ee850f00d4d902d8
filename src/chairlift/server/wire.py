"""How answers look on the line in one dialect of HTTP: streams, keep-alives, ends and errors.

Endpoints that speak OpenAI's use `OPENAI`.  A path of another dialect has a wire of its own, under
which every answer goes out, those to a wrong key or a bad body included.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from chairlift.server.errors import ApiError
from chairlift.server.sse import DONE, HEADERS, PING, event


class Wire(Protocol):
    """One dialect."""

    stream_headers: Sequence[tuple[bytes, bytes]]
    """Of a streamed answer."""
    ping: bytes
    """Written into a stream that has been silent for long; empty if the dialect has no such."""
    end: bytes
    """After the last event of a stream."""
    more_body_types: Collection[bytes]
    """What a body of JSON may also be called, besides JSON."""

    def error(self, error: ApiError) -> tuple[int, bytes]:
        """Status and body of an answer that is an error."""
        ...

    def error_event(self, error: ApiError) -> bytes:
        """An error in a stream that has begun; `end` follows it."""
        ...


class OpenAiWire:
    """Server-sent events without names, and the errors that OpenAI's clients read."""

    stream_headers: Sequence[tuple[bytes, bytes]] = HEADERS
    ping = PING
    end = DONE
    more_body_types: Collection[bytes] = ()

    def error(self, error: ApiError) -> tuple[int, bytes]:
        return error.status, error.body()

    def error_event(self, error: ApiError) -> bytes:
        return event(error.body())


OPENAI: Wire = OpenAiWire()


def wire_of(path: str, wires: Mapping[str, Wire]) -> Wire:
    """The wire of the longest of `wires`' paths at or above `path`; OpenAI's if there is none."""
    place = path
    while place:
        if place in wires:
            return wires[place]
        place = place.rpartition("/")[0]
    return OPENAI
