"""A table in plain text."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two spaces apart, the first one to the left, the others to the right.

    A header may have two lines.
    """
    parts = [header.split("\n") for header in headers]
    height = max(len(part) for part in parts)
    head = [[""] * (height - len(part)) + part for part in parts]
    lines = [[part[line] for part in head] for line in range(height)]
    cells = [*lines, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    rule = ["-" * width for width in widths]
    return "\n".join(_line(row, widths) for row in [*lines, rule, *rows])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(row, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(t.rjust(w) for t, w in others)]).rstrip()
