"""One line on a terminal that says how far a command has come; nothing where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_CLEAR = "\r\x1b[2K"


class ProgressLine:
    """Call `clear` before anything else is printed, and `show` afterwards."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._total = total
        self._done = 0
        self._stream = stream
        self._is_shown = stream.isatty()

    def advance(self) -> None:
        """One of the parts is done."""
        self._done += 1

    def show(self, text: str) -> None:
        """How far it has come, and what is being done."""
        self._write(f"{_CLEAR}[{self._done}/{self._total}] {text}")

    def clear(self) -> None:
        self._write(_CLEAR)

    def _write(self, text: str) -> None:
        if self._is_shown:
            self._stream.write(text)
            self._stream.flush()


@contextmanager
def progress_line(total: int) -> Iterator[ProgressLine]:
    """A line for `total` parts on standard error, gone afterwards."""
    line = ProgressLine(total, sys.stderr)
    try:
        yield line
    finally:
        line.clear()
