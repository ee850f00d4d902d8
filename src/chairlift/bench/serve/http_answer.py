"""Reads one HTTP/1.1 answer from bytes that come in pieces of any size.  Strict: what does not
follow the protocol is an error, not a guess.  Does no input and output of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MAX_HEAD_BYTES = 65_536
MAX_CHUNK_LINE_BYTES = 1_024
_NO_BODY = (204, 304)


class HttpError(Exception):
    """The server does not speak HTTP/1.1 as it should."""


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Status and headers; names in lower case, the last one of a name holds."""

    status: int
    headers: dict[str, str]
    is_persistent: bool
    """The connection can carry another request."""


class AnswerReader:
    """Feed it what comes; it returns the bytes of the body that are in it."""

    def __init__(self) -> None:
        self.head: AnswerHead | None = None
        self.is_complete = False
        self._buffer = b""
        self._left = 0  # bytes of the body or chunk still to come
        self._read: Callable[[list[bytes]], bool] = self._read_head
        self._ends_with_connection = False

    def feed(self, data: bytes) -> bytes:
        """Raises `HttpError`."""
        self._buffer = self._buffer + data if self._buffer else data
        body: list[bytes] = []
        while not self.is_complete and self._read(body):
            pass
        if self.is_complete and self._buffer:
            raise HttpError("bytes after the end of the answer")
        return body[0] if len(body) == 1 else b"".join(body)

    def end_of_input(self) -> None:
        """The server has closed the connection.  Raises `HttpError` if that was too early."""
        if self._ends_with_connection:
            self.is_complete = True
        elif not self.is_complete:
            raise HttpError("the connection was closed in the middle of an answer")

    # Each of these reads one element from the buffer and returns whether there was enough of it.

    def _read_head(self, body: list[bytes]) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end > MAX_HEAD_BYTES or (end < 0 and len(self._buffer) > MAX_HEAD_BYTES):
            raise HttpError(f"the head of the answer is longer than {MAX_HEAD_BYTES} bytes")
        if end < 0:
            return False
        head, self._buffer = parse_head(self._buffer[:end]), self._buffer[end + 4 :]
        if 100 <= head.status < 200:
            return True  # an interim answer; the real one follows
        self.head = head
        self._choose_framing(head)
        return True

    def _choose_framing(self, head: AnswerHead) -> None:
        coding = head.headers.get("transfer-encoding", "").lower()
        length = head.headers.get("content-length")
        if head.headers.get("content-encoding", "identity").lower() != "identity":
            raise HttpError("the answer is compressed, although that was not asked for")
        if head.status in _NO_BODY:
            self.is_complete = True
        elif coding:
            if coding != "chunked":
                raise HttpError(f"unknown transfer coding {coding!r}")
            self._read = self._read_chunk_size
        elif length is not None:
            if not (length.isascii() and length.isdigit()):
                raise HttpError(f"bad content length {length!r}")
            self._left = int(length)
            self._read = self._read_sized
            self.is_complete = self._left == 0
        else:
            self._ends_with_connection = True
            self._read = self._read_rest

    def _read_sized(self, body: list[bytes]) -> bool:
        self._take(body)
        self.is_complete = self._left == 0
        return False

    def _read_rest(self, body: list[bytes]) -> bool:
        body.append(self._buffer)
        self._buffer = b""
        return False

    def _read_chunk_size(self, body: list[bytes]) -> bool:
        line = self._take_line()
        if line is None:
            return False
        digits = line.partition(b";")[0].strip()
        # int() would also take signs, underscores and a prefix.
        if not digits or len(digits) > 16 or digits.strip(b"0123456789abcdefABCDEF"):
            raise HttpError(f"bad chunk size {line[:32]!r}")
        self._left = int(digits, 16)
        self._read = self._read_chunk if self._left else self._read_trailer
        return True

    def _read_chunk(self, body: list[bytes]) -> bool:
        self._take(body)
        if self._left or len(self._buffer) < 2:
            return False
        if not self._buffer.startswith(b"\r\n"):
            raise HttpError("a chunk is longer than it said")
        self._buffer = self._buffer[2:]
        self._read = self._read_chunk_size
        return True

    def _read_trailer(self, body: list[bytes]) -> bool:
        line = self._take_line()
        if line is None:
            return False
        self.is_complete = not line
        return True

    def _take(self, body: list[bytes]) -> None:
        """Up to `_left` bytes from the buffer into the body."""
        if self._left and self._buffer:
            piece = self._buffer[: self._left]
            self._buffer = self._buffer[self._left :]
            self._left -= len(piece)
            body.append(piece)

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end > MAX_CHUNK_LINE_BYTES or (end < 0 and len(self._buffer) > MAX_CHUNK_LINE_BYTES):
            raise HttpError(f"a line between chunks is longer than {MAX_CHUNK_LINE_BYTES} bytes")
        if end < 0:
            return None
        line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
        return line


def parse_head(data: bytes) -> AnswerHead:
    """Status line and headers, without the empty line.  Raises `HttpError`."""
    first, *lines = data.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest[:3]
    is_status = len(code) == 3 and code.isascii() and code.isdigit() and rest[3:4] in ("", " ")
    if version not in ("HTTP/1.0", "HTTP/1.1") or not is_status:
        raise HttpError(f"not an answer in HTTP/1.1: {first[:60]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise HttpError(f"bad header line {line[:60]!r}")
        headers[name.lower()] = value.strip()
    connection = headers.get("connection", "").lower()
    is_persistent = "keep-alive" in connection or version == "HTTP/1.1"
    return AnswerHead(int(code), headers, is_persistent and "close" not in connection)
