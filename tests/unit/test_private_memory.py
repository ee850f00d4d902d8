"""Private memory is zero, costs nothing until it is written, and asks for huge pages."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from chairlift.private_memory import map_private

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def flags_of(address: int) -> list[str]:
    """The system's flags (two letters each) of the mapping that holds `address`."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if "-" in first:
            begin, end = (int(part, 16) for part in first.split("-"))
            found = begin <= address < end
        elif found and first == "VmFlags:":
            return line.split()[1:]
    return []


def test_it_is_zero_and_can_be_written() -> None:
    memory = np.frombuffer(map_private(100_000), np.uint8)
    assert memory.shape == (100_000,) and not memory.any()
    memory[:] = 7
    assert (memory == 7).all()


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="this system has no huge pages to ask for")
def test_it_asks_for_huge_pages() -> None:
    memory = np.frombuffer(map_private(8 << 20), np.uint8)
    assert "hg" in flags_of(memory.ctypes.data + memory.nbytes // 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_does_not_write_to_the_parent_s() -> None:
    memory = np.frombuffer(map_private(mmap.PAGESIZE), np.uint8)
    child = os.fork()
    if child == 0:
        memory[0] = 1
        os._exit(0)
    os.waitpid(child, 0)
    assert memory[0] == 0


def test_too_much_is_refused() -> None:
    with pytest.raises((OSError, OverflowError)):
        map_private(1 << 62)
