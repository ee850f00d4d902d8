"""Which instruction sets compute: one level for floats, one for bytes.

Flags say what a processor can run, not what it runs fast: some split wide registers in two, some
lower their frequency for them.  So the kernels of every level are timed for a few milliseconds, and
the answer is kept in a file, for choosing again could choose differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Protocol

from chairlift.kernels.cpu.arithmetic_file import (
    ArithmeticRecord,
    ArithmeticSubject,
    Rates,
    arithmetic_path,
    read_arithmetic,
    write_arithmetic,
)

KINDS = ("floats", "bytes")
MARGIN = 1.05
"""A narrower level must be so many times as fast as the wider one to take its place."""

Source = Literal["widest", "forced", "only", "stored", "measured"]


class MeasurableLibrary(Protocol):
    """What a choice asks of the library."""

    @property
    def path(self) -> Path: ...

    @property
    def processor(self) -> str:
        """Equal texts, equal processors; "" if it is unknown."""
        ...

    def levels(self, kind: str) -> tuple[str, ...]:
        """Levels that this machine can run, widest first."""
        ...

    def measure_levels(self, kind: str) -> dict[str, float]:
        """1e9 multiply-adds per second of one thread at each level, widest first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """What was chosen, and why."""

    isa: str
    """As `NativeLibrary.set_isa` takes it."""
    source: Source
    """widest: nobody chose; forced: by the environment; only: there is no choice; stored: measured
    at an earlier start; measured: now."""
    levels: Mapping[str, str] = field(default_factory=dict)
    """Level by kind; empty if it was forced."""
    rates: Rates = field(default_factory=dict)
    """What was measured; empty if nothing was."""
    measured_at: str = ""
    """UTC, to the second."""
    path: Path | None = None
    """File that keeps the choice; None: it is not kept."""


def choose_level(rates: Mapping[str, float]) -> str:
    """The widest level, unless a narrower one is clearly faster; `rates` has the widest first."""
    levels = iter(rates)
    chosen = next(levels)
    for level in levels:
        if rates[level] > MARGIN * rates[chosen]:
            chosen = level
    return chosen


def choose_arithmetic(library: MeasurableLibrary, folder: Path | None) -> Arithmetic:
    """The choice that `folder` keeps for this processor and library; else measure, and keep it.

    Without a folder, or with one that cannot be written, every start measures.
    """
    levels = {kind: library.levels(kind) for kind in KINDS}
    if all(len(names) == 1 for names in levels.values()):
        return _arithmetic("only", {kind: names[0] for kind, names in levels.items()})
    subject = ArithmeticSubject.of(library.path, library.processor)
    path = None if folder is None else arithmetic_path(folder, subject)
    stored = None if path is None else read_arithmetic(path, subject, levels)
    if stored is not None:
        return _from_record("stored", stored, path)
    rates = {kind: library.measure_levels(kind) for kind in KINDS}
    record = ArithmeticRecord(
        levels={kind: choose_level(rates[kind]) for kind in KINDS},
        rates=rates,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    is_kept = path is not None and write_arithmetic(path, subject, record)
    return _from_record("measured", record, path if is_kept else None)


def _from_record(source: Source, record: ArithmeticRecord, path: Path | None) -> Arithmetic:
    return _arithmetic(source, record.levels, record.rates, record.measured_at, path)


def _arithmetic(
    source: Source,
    levels: Mapping[str, str],
    rates: Rates | None = None,
    measured_at: str = "",
    path: Path | None = None,
) -> Arithmetic:
    return Arithmetic(
        isa="+".join(levels[kind] for kind in KINDS),
        source=source,
        levels=levels,
        rates=rates or {},
        measured_at=measured_at,
        path=path,
    )
