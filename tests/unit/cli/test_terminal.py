"""What reaches a terminal, and what a pipe."""

from __future__ import annotations

import io

import pytest

from chairlift.cli.terminal import show, size_text


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_no_control_codes() -> None:
    terminal = _Terminal()
    show("a\x1b[31mb\x07\tc\nd\x9bé", stream=terminal)
    assert terminal.getvalue() == "a[31mb\tc\ndé\n"


def test_a_pipe_gets_the_text_as_it_is() -> None:
    pipe = io.StringIO()
    show("a\x1b[31mb", end="", stream=pipe)
    assert pipe.getvalue() == "a\x1b[31mb"


def test_what_the_stream_cannot_encode_is_replaced() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="latin-1", newline="\n")
    show("é→", stream=stream)
    assert raw.getvalue() == b"\xe9?\n"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (2**20, "1.0 MiB"),
        (2**41, "2048.0 GiB"),
    ],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert size_text(num_bytes) == text
