"""Server-sent events from bytes that come in pieces of any size: the `data` of each event."""

from __future__ import annotations

MAX_EVENT_BYTES = 16 * 1024 * 1024


class EventStreamError(Exception):
    """An event that is too long."""


class EventStream:
    """Feed it the body of an answer.  Comments and fields other than `data` are passed over."""

    def __init__(self) -> None:
        self._buffer = b""
        self._is_first = True

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that these bytes complete.  Raises `EventStreamError`."""
        buffer = self._buffer + data if self._buffer else data
        if self._is_first:
            if len(buffer) < 3 and b"\xef\xbb\xbf".startswith(buffer):
                self._buffer = buffer  # may become a byte order mark
                return []
            buffer = buffer.removeprefix(b"\xef\xbb\xbf")
            self._is_first = False
        held = b""
        if b"\r" in buffer:
            if buffer.endswith(b"\r"):  # may be half of a line end
                buffer, held = buffer[:-1], b"\r"
            buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, rest = buffer.split(b"\n\n")
        self._buffer = rest + held
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise EventStreamError(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        events = [_data_of(block) for block in blocks]
        return [event for event in events if event is not None]


def _data_of(block: bytes) -> bytes | None:
    """The lines of data joined; None if there are none."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines) if lines else None
