"""Keeps a choice of instruction sets: one small JSON file per processor and library.

Whatever a file holds, it is believed only if it is about this very processor and library and makes
sense; anything else is as good as no file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chairlift._version import __version__
from chairlift.machine import microcode_version

FOLDER = "arithmetic"
MAX_BYTES = 1 << 16

Rates = Mapping[str, Mapping[str, float]]
"""1e9 multiply-adds per second of one thread, by kind and level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArithmeticSubject:
    """What a measurement is true of."""

    processor: str
    microcode: str
    version: str
    library: str
    """Digest of the library's file: another build may be faster elsewhere."""

    @classmethod
    def of(cls, library: Path, processor: str) -> ArithmeticSubject:
        """This machine and the library in that file."""
        return cls(
            processor=processor,
            microcode=microcode_version(),
            version=__version__,
            library=_digest(library.read_bytes()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArithmeticRecord:
    """What was measured and chosen."""

    levels: Mapping[str, str]
    rates: Rates
    measured_at: str


def arithmetic_path(folder: Path, subject: ArithmeticSubject) -> Path:
    """The file for `subject` in the cache folder."""
    return folder / FOLDER / f"{_digest(json.dumps(asdict(subject)).encode())}.json"


def read_arithmetic(
    path: Path, subject: ArithmeticSubject, levels: Mapping[str, tuple[str, ...]]
) -> ArithmeticRecord | None:
    """The record in the file, or None if there is none that can be believed."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(MAX_BYTES))
        return _believed(content, subject, levels)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _believed(
    content: dict[str, Any], subject: ArithmeticSubject, levels: Mapping[str, tuple[str, ...]]
) -> ArithmeticRecord | None:
    """Raises KeyError or TypeError if `content` is of another form."""
    chosen = {kind: content["levels"][kind] for kind in levels}
    rates = {
        kind: {name: float(content["rates"][kind][name]) for name in names}
        for kind, names in levels.items()
    }
    is_known = all(chosen[kind] in names for kind, names in levels.items())
    if content["subject"] != asdict(subject) or not is_known:
        return None
    return ArithmeticRecord(levels=chosen, rates=rates, measured_at=str(content["measured_at"]))


def write_arithmetic(path: Path, subject: ArithmeticSubject, record: ArithmeticRecord) -> bool:
    """Put the record there, whole or not at all.  False if the folder cannot be written."""
    own = path.with_name(f"{path.name}.{os.getpid()}")
    content = {"subject": asdict(subject), **asdict(record)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        os.replace(own, path)
    except OSError:
        with suppress(OSError):
            own.unlink()
        return False
    return True


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
