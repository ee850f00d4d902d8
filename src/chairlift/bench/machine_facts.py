"""What a result was measured on: version, processor, kernels, cores and memory, as plain data."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from chairlift._version import __version__
from chairlift.kernels.cpu.arithmetic import Arithmetic
from chairlift.kernels.cpu.library import LibraryUnavailableError, load_library
from chairlift.machine import PROC, inspect_machine

_NOTABLE_FEATURES = (
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
    "sve",
)


def machine_facts() -> dict[str, Any]:
    """Look at the machine as it is now.  Raises `ConfigError` if `CHAIRLIFT_ISA` is wrong."""
    machine = inspect_machine()
    processor, features = _processor(PROC)
    return {
        "chairlift": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor,
        "features": features,
        "kernels": kernel_facts(),
        "num_cpus": machine.num_cpus,
        "total_memory_bytes": machine.total_memory_bytes,
        "free_memory_bytes": machine.free_memory_bytes,
        "memory_limit": machine.memory_limit,
    }


def kernel_facts() -> dict[str, Any]:
    """The kernels that "auto" stands for here, with the reason if they are the slow ones."""
    try:
        library = load_library()
    except LibraryUnavailableError as error:
        return {"backend": "reference", "reason": str(error)}
    return {
        "backend": "native",
        "isa": library.isa,
        "available_isas": list(library.available_isas),
        "arithmetic": _arithmetic_facts(library.arithmetic),
        "library": str(library.path),
    }


def _arithmetic_facts(arithmetic: Arithmetic) -> dict[str, Any]:
    return {
        "source": arithmetic.source,
        "levels": dict(arithmetic.levels),
        "gmacs_per_thread": {kind: dict(rates) for kind, rates in arithmetic.rates.items()},
        "measured_at": arithmetic.measured_at or None,
        "stored_in": None if arithmetic.path is None else str(arithmetic.path),
    }


def _processor(proc: Path) -> tuple[str, list[str]]:
    """Name and notable instruction sets, as the operating system tells them."""
    values: dict[str, str] = {}
    try:
        for line in (proc / "cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            values.setdefault(name.strip(), value.strip())
    except OSError:  # not on Linux
        return platform.processor() or platform.machine(), []
    name = values.get("model name") or platform.processor() or platform.machine()
    flags = (values.get("flags") or values.get("Features") or "").split()
    return name, [feature for feature in _NOTABLE_FEATURES if feature in flags]
