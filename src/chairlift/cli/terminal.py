"""How text goes out: plain when piped, and on a terminal without control codes from a model."""

from __future__ import annotations

import sys
from typing import TextIO

_CONTROL = {code: None for code in [*range(32), *range(127, 160)] if code not in (9, 10)}


def show(text: str, *, end: str = "\n", stream: TextIO | None = None) -> None:
    """Print and flush.  A terminal gets no escape codes out of generated text."""
    stream = stream or sys.stdout
    if stream.isatty():
        text = text.translate(_CONTROL)
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding) + end)
    stream.flush()


def note(text: str) -> None:
    """A line for the person, not for the program that reads the output."""
    show(text, stream=sys.stderr)


def note_load() -> None:
    """Tell if the machine is busy with something else."""
    from chairlift.bench.machine_load import load_note

    line = load_note()
    if line is not None:
        note(line)


def show_log(*, quiet: bool) -> None:
    """Show the engine's log lines: decisions and their reasons, or warnings only."""
    import logging

    from chairlift.log import configure_logging

    configure_logging(logging.WARNING if quiet else logging.INFO, force=True)


def size_text(num_bytes: float) -> str:
    """Bytes for a person: "93.8 MiB"."""
    for unit in ("bytes", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} bytes" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"
