"""Writes step records to a file, one JSON line per step.

A trace is an extra: a full disk ends the trace, with a warning, and not the engine.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TextIO

from chairlift.errors import ConfigError
from chairlift.events import StepRecord

logger = logging.getLogger("chairlift")


class StepLog:
    """An open trace file.  Lines are complete: each is flushed when it is written."""

    def __init__(self, path: str | Path) -> None:
        try:
            self._file: TextIO = Path(path).open("w", encoding="utf-8", buffering=1)  # noqa: SIM115
        except OSError as error:
            raise ConfigError(
                f"cannot write the trace {path}: {error.strerror}", field="trace"
            ) from None

    def write(self, record: StepRecord) -> None:
        """Add a line; nothing once the file is closed."""
        if self._file.closed:
            return
        try:
            self._file.write(record.to_json() + "\n")
        except OSError as error:
            logger.warning("the trace ends here: %s", error)
            self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the rest of a line that could not be written
            self._file.close()
