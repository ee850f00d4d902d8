"""Writes step records to a file, one JSON line per step."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from chairlift.errors import ConfigError
from chairlift.events import StepRecord


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
        self._file.write(record.to_json() + "\n")

    def close(self) -> None:
        self._file.close()
