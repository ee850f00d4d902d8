"""A clock of the machine and one that moves only when told."""

from __future__ import annotations

import time

import pytest

from chairlift.clock import ManualClock, WallClock


def test_the_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(start_s=5.0)
    assert clock.now() == clock.now() == 5.0
    clock.sleep(1.5)
    clock.advance(0.25)
    clock.advance(0.0)
    assert clock.now() == 6.75


def test_the_manual_clock_cannot_go_back() -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-0.1)
    assert clock.now() == 0.0


def test_the_manual_clock_does_not_wait() -> None:
    start = time.monotonic()
    ManualClock().sleep(3600)
    assert time.monotonic() - start < 1


def test_the_wall_clock_is_the_machines_monotonic_one() -> None:
    clock = WallClock()
    before = clock.now()
    clock.sleep(0.01)
    assert 0.01 <= clock.now() - before < 5
    assert abs(clock.now() - time.monotonic()) < 1


def test_a_wait_that_is_over_already_is_none() -> None:
    """A deadline that has passed gives a negative duration."""
    WallClock().sleep(-1.0)
