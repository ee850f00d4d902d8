"""Says so when others use the machine: then a measurement is of them, too."""

from __future__ import annotations

import os

from chairlift.machine import inspect_machine

_BUSY = 0.5
"""Processes that wait or run, per core."""


def load_note() -> str | None:
    """One line if the processors have been busy for the last minute; None otherwise."""
    if not hasattr(os, "getloadavg"):  # pragma: no cover  (Windows)
        return None
    load, num_cpus = os.getloadavg()[0], inspect_machine().num_cpus
    return note_of(load, num_cpus)


def note_of(load: float, num_cpus: int) -> str | None:
    """`load`: processes that wanted to run in the last minute, on average."""
    if load <= _BUSY * num_cpus:
        return None
    return (
        f"load average {load:.1f} on {num_cpus} cores: other processes use this machine, and the"
        " figures are not its own; measure again when it is quiet"
    )
