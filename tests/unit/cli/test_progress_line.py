"""The progress line: on a terminal only, and gone when something else is printed."""

from __future__ import annotations

import io

from chairlift.cli.progress_line import ProgressLine, progress_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_written_where_nobody_watches() -> None:
    stream = io.StringIO()
    line = ProgressLine(2, stream)
    line.show("first")
    line.clear()
    assert stream.getvalue() == ""


def test_a_terminal_sees_how_far_it_is() -> None:
    stream = Terminal()
    line = ProgressLine(2, stream)
    line.show("first")
    line.advance()
    line.show("second")
    line.clear()
    assert stream.getvalue() == "\r\x1b[2K[0/2] first\r\x1b[2K[1/2] second\r\x1b[2K"


def test_the_line_goes_when_the_work_fails(monkeypatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    try:
        with progress_line(1) as line:
            line.show("first")
            raise RuntimeError
    except RuntimeError:
        pass
    assert stream.getvalue().endswith("\r\x1b[2K")
