"""A note when others use the machine."""

from __future__ import annotations

from chairlift.bench.machine_load import note_of


def test_a_busy_machine_is_named() -> None:
    assert note_of(0.9, 2) is None
    line = note_of(7.31, 2)
    assert line is not None and line.startswith("load average 7.3 on 2 cores")
