"""A thread starts or its start fails; it never waits for one that died of having no memory."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chairlift.thread_start import start_thread

WITHOUT_ROOM = """
import resource, threading
from pathlib import Path
from chairlift.thread_start import start_thread

size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 12 * 2**20,) * 2)  # a stack, and little more
thread = threading.Thread(target=print, args=("it ran",), name="rider")
try:
    start_thread(thread)
except MemoryError as error:
    print(error, thread.is_alive())
"""


def test_a_thread_runs() -> None:
    ran = threading.Event()
    thread = threading.Thread(target=ran.set)
    start_thread(thread)
    thread.join()
    assert ran.is_set()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits are those of Linux")
def test_without_room_it_is_not_even_begun() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ROOM], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "no memory for the thread 'rider' False\n", done.stderr
