"""Starts threads that live as long as an engine."""

from __future__ import annotations

import threading

from chairlift.private_memory import map_private

_ROOM_BYTES = 16 * 2**20
"""A stack, which is 8 MiB where nobody says otherwise, and what Python takes at once."""


def start_thread(thread: threading.Thread) -> None:
    """Start it.

    A thread that finds no memory at its very beginning ends without a word, and Python's `start()`
    waits for ever for it to say that it is there; so it is tried beforehand whether there is room.

    Raises:
        MemoryError: there is none.
        RuntimeError: the system grants no thread.
    """
    try:
        map_private(_ROOM_BYTES).close()
    except OSError as error:
        raise MemoryError(f"no memory for the thread {thread.name!r}") from error
    thread.start()
