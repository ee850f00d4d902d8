"""What the threads of this machine reach at best, measured beside what is compared with it.

Clocks and neighbours come and go, so a limit is only good for the second in which it was measured:
whoever compares with one measures it again, in turns with the work itself.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from chairlift.errors import ConfigError
from chairlift.kernels.cpu.library import LibraryUnavailableError, NativeLibrary, load_library
from chairlift.kernels.weight_memory import WeightMemory

LimitName = Literal["int8 dot", "fp32 FMA", "memory read"]

UNITS: dict[LimitName, str] = {
    "int8 dot": "GMAC/s",
    "fp32 FMA": "GMAC/s",
    "memory read": "GB/s",
}

_BUFFER_BYTES = 64 << 20
_WINDOW_BYTES = 16 << 20
_PIECE_BYTES = 4096
_NUM_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What cannot be done without, whatever the code: the amounts that limits are rates of."""

    int8_products: float = 0.0
    """Products of two bytes that are added up."""
    fp32_macs: float = 0.0
    """Multiply-adds of float32."""
    read_bytes: float = 0.0
    """From memory: what no cache can still hold since the last step."""

    def amounts(self) -> dict[LimitName, float]:
        """In the order in which a tie is broken."""
        return {
            "int8 dot": self.int8_products,
            "fp32 FMA": self.fp32_macs,
            "memory read": self.read_bytes,
        }


Rates = dict[LimitName, float]
"""1e9 a second."""


def bound_of(work: Work, rates: Rates) -> tuple[LimitName, float]:
    """The limit that allows the least, and the seconds that it asks for.

    Arithmetic and reading overlap at best, so the longest time counts, not their sum.
    """
    seconds = {
        name: amount / (rates[name] * 1e9) for name, amount in work.amounts().items() if amount
    }
    name = max(seconds, key=lambda name: seconds[name])
    return name, seconds[name]


def median_rates(many: Iterable[Rates]) -> Rates:
    """Of each limit, over all measurements that have it."""
    values: dict[LimitName, list[float]] = {}
    for rates in many:
        for name, rate in rates.items():
            values.setdefault(name, []).append(rate)
    return {name: statistics.median(found) for name, found in values.items()}


def highest_rates(many: Iterable[Rates]) -> Rates:
    """Of each limit, over all measurements that have it."""
    highest: Rates = {}
    for rates in many:
        for name, rate in rates.items():
            highest[name] = max(rate, highest.get(name, 0.0))
    return highest


class Limits(Protocol):
    """Whoever can measure them."""

    def int8_dot(self) -> float: ...

    def fp32_fma(self) -> float: ...

    def memory_read(self) -> float: ...


class LimitMeter:
    """Measures with `num_threads` threads of the native library.

    Raises:
        ConfigError: the library cannot be used here.
    """

    def __init__(self, num_threads: int) -> None:
        self.library = native_library()
        self.num_threads = num_threads
        self.pool: ctypes.c_void_p = self.library.create_pool(num_threads)
        self._buffer = WeightMemory().take(_BUFFER_BYTES)
        self._buffer[:] = 1  # or every page would be the system's page of zeros
        pieces = np.arange(_BUFFER_BYTES // _PIECE_BYTES, dtype=np.int32)
        self._windows = pieces.reshape(_BUFFER_BYTES // _WINDOW_BYTES, -1)
        self._next_window = 0

    def int8_dot(self) -> float:
        """1e9 products of bytes per second from registers, all threads at once."""
        rate: float = self.library.functions.chairlift_measure_int8_dot(self.pool)
        return rate

    def fp32_fma(self) -> float:
        """1e9 float32 multiply-adds per second from registers, all threads at once."""
        measure = self.library.functions.chairlift_measure_fma
        with ThreadPoolExecutor(self.num_threads) as threads:
            return sum(threads.map(lambda _: float(measure()), range(self.num_threads)))

    def memory_read(self) -> float:
        """1e9 bytes per second at which all threads read memory in order.

        They read windows of a buffer, another one each time, so that caches do not help.
        """
        return max(self._read_window() for _ in range(_NUM_ATTEMPTS))

    def _read_window(self) -> float:
        pieces = self._windows[self._next_window]
        self._next_window = (self._next_window + 1) % len(self._windows)
        rate: float = self.library.functions.chairlift_measure_read(
            self.pool,
            self._buffer.ctypes.data,
            _PIECE_BYTES,
            _PIECE_BYTES,
            pieces.ctypes.data,
            len(pieces),
        )
        return rate


def native_library() -> NativeLibrary:
    """Raises `ConfigError` where there is none to measure."""
    try:
        return load_library()
    except LibraryUnavailableError as error:
        raise ConfigError(f"there is no native library to measure: {error}") from None
