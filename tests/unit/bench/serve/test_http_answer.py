"""HTTP/1.1 answers: any split gives the same, and what breaks the protocol is an error."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.bench.serve.http_answer import (
    MAX_CHUNK_LINE_BYTES,
    MAX_HEAD_BYTES,
    AnswerReader,
    HttpError,
)

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def read(*pieces: bytes) -> tuple[AnswerReader, bytes]:
    reader = AnswerReader()
    return reader, b"".join(reader.feed(piece) for piece in pieces)


def every_byte(data: bytes) -> list[bytes]:
    size = 1 if len(data) < 2000 else 500
    return [data[i : i + size] for i in range(0, len(data), size)]


ANSWERS = {
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
    "no body": (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "chunks": (CHUNKED + b"5\r\nhello\r\n3;a=b\r\nyou\r\n0\r\n\r\n", b"helloyou"),
    "long chunk": (CHUNKED + b"1F4\r\n" + b"x" * 500 + b"\r\n0\r\n\r\n", b"x" * 500),
    "trailer": (CHUNKED + b"1\r\nx\r\n0\r\nA: b\r\nC: d\r\n\r\n", b"x"),
    "line ends in chunks": (CHUNKED + b"4\r\n\r\n\r\n\r\n0\r\n\r\n", b"\r\n\r\n"),
    "interim": (b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"1\r\nx\r\n0\r\n\r\n", b"x"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_whole_and_byte_by_byte(name: str) -> None:
    data, body = ANSWERS[name]
    for pieces in ([data], every_byte(data)):
        reader, found = read(*pieces)
        assert found == body and reader.is_complete


@settings(deadline=None, derandomize=True)
@given(st.lists(st.binary(min_size=1, max_size=30), max_size=6), st.data())
def test_any_chunks_in_any_packets(chunks: list[bytes], data: st.DataObject) -> None:
    whole = CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=12)))
    edges = [0, *cuts, len(whole)]
    reader, found = read(*(whole[a:b] for a, b in zip(edges, edges[1:], strict=False)))
    assert found == b"".join(chunks) and reader.is_complete


def test_a_body_without_length_ends_with_the_connection() -> None:
    reader, found = read(b"HTTP/1.1 200 OK\r\n\r\nabc", b"def")
    assert found == b"abcdef" and not reader.is_complete
    reader.end_of_input()
    assert reader.is_complete


@pytest.mark.parametrize("cut", [1, 20, len(CHUNKED), len(CHUNKED) + 4])
def test_a_connection_that_closes_too_early_is_an_error(cut: int) -> None:
    reader, _ = read((CHUNKED + b"5\r\nhello\r\n0\r\n\r\n")[:cut])
    with pytest.raises(HttpError, match="in the middle"):
        reader.end_of_input()


@pytest.mark.parametrize(
    ("lines", "persistent"),
    [
        (b"HTTP/1.1 200 OK\r\n", True),
        (b"HTTP/1.1 200\r\n", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n", True),
    ],
)
def test_which_connections_can_be_used_again(lines: bytes, persistent: bool) -> None:
    reader, _ = read(lines + b"content-length: 0\r\n\r\n")
    assert reader.head is not None and reader.head.is_persistent is persistent


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab",
        CHUNKED + b"x\r\n",
        CHUNKED + b"-1\r\n",
        CHUNKED + b"0x1\r\n",
        CHUNKED + b"\r\n",
        CHUNKED + b"11111111111111111\r\n",
        CHUNKED + b"1\r\nab\r\n",
        CHUNKED + b"0\r\n\r\nmore",
        CHUNKED + b"1" * (MAX_CHUNK_LINE_BYTES + 2),
        b"HTTP/1.1 200 OK\r\n" + b"a" * (MAX_HEAD_BYTES + 1),
    ],
)
def test_what_breaks_the_protocol_is_an_error(data: bytes) -> None:
    for pieces in ([data], every_byte(data)):
        with pytest.raises(HttpError):
            read(*pieces)
