"""A child of fork has none of its parent's threads, and may find locks as others left them."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

from chairlift.kernels.cpu.ops import NativeKernels
from chairlift.kernels.interface import FloatArray

NUM_CHILDREN = 15
PATIENCE_POLLS = 30_000
"""Of a millisecond each.  Counted, because a process may be paused for longer than any deadline."""

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def exit_code_of(child: int) -> int | None:
    """None if it hangs; it is ended then."""
    for _ in range(PATIENCE_POLLS):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended == child:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def compute(kernels: NativeKernels) -> FloatArray:
    matrix = np.arange(300 * 8, dtype=np.float32).reshape(300, 8)
    return kernels.linear(matrix[:20], kernels.prepare_linear([matrix], [None]))


def test_children_forked_while_threads_start_pools_and_use_them() -> None:
    shared = NativeKernels(2)
    expected = compute(shared)
    stop = threading.Event()

    def start_pools() -> None:
        while not stop.is_set():
            compute(NativeKernels(3))
            compute(shared)

    threads = [threading.Thread(target=start_pools) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        codes = []
        for _ in range(NUM_CHILDREN):
            child = os.fork()
            if child == 0:
                equal = all(
                    np.array_equal(compute(kernels), expected)
                    for kernels in (shared, NativeKernels(2))
                )
                os._exit(0 if equal else 1)
            codes.append(exit_code_of(child))
            if codes[-1] is None:
                break
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert codes == [0] * NUM_CHILDREN


def test_a_grandchild_computes_too() -> None:
    kernels = NativeKernels(2)
    expected = compute(kernels)

    def equal_here_and_below(depth: int) -> bool:
        equal = np.array_equal(compute(kernels), expected)
        if depth == 0:
            return equal
        child = os.fork()
        if child == 0:
            os._exit(0 if equal_here_and_below(depth - 1) else 1)
        return exit_code_of(child) == 0 and equal and np.array_equal(compute(kernels), expected)

    assert equal_here_and_below(2)
