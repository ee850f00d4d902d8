"""Memory of this process alone, in huge pages where the system has them.

What a step reads is read once, from all over: with pages of 4 KiB the processor would have to look
up an address for each of them, which takes longer than reading it.
"""

from __future__ import annotations

import mmap
from contextlib import suppress


def map_private(num_bytes: int) -> mmap.mmap:
    """Zeros.  The system commits pages as they are first written.

    Raises:
        OSError: the system grants no such piece of address space.
        OverflowError: there is no such number of bytes.
    """
    memory = mmap.mmap(-1, num_bytes, **_private())
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _private() -> dict[str, int]:
    """Shared pages, the default, belong to a file system in memory, which has limits of its own
    and seldom huge pages."""
    if hasattr(mmap, "MAP_PRIVATE"):
        return {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
    return {}
