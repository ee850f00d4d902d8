"""Memory of this process that is really there, as the operating system counts it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chairlift.machine import PROC
from chairlift.runner.memory import MemoryPlan


def peak_resident_bytes(proc: Path = PROC) -> int:
    """The most that was resident at once since the process began.

    0 where the system does not tell.
    """
    try:
        for line in (proc / "self" / "status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "VmHWM":
                return int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return _peak_without_proc()


def _peak_without_proc() -> int:
    try:
        import resource
    except ImportError:  # pragma: no cover  (Windows)
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What was planned beside what was there.  Bytes."""

    weights_bytes: int
    kv_planned_bytes: int
    kv_used_bytes: int
    """In blocks that held something at once; pages that were never written take no memory.  All of
    them where they were taken at the start."""
    peak_loading_bytes: int
    """The most until the model was loaded."""
    peak_bytes: int
    """The most ever."""

    @property
    def other_bytes(self) -> int:
        """Beside weights and the part of the KV cache that was used."""
        return self.peak_bytes - self.weights_bytes - self.kv_used_bytes

    def to_json(self) -> dict[str, Any]:
        return {
            "weights_bytes": self.weights_bytes,
            "kv_planned_bytes": self.kv_planned_bytes,
            "kv_used_bytes": self.kv_used_bytes,
            "peak_loading_bytes": self.peak_loading_bytes,
            "peak_bytes": self.peak_bytes,
            "other_bytes": self.other_bytes,
        }


def memory_use(plan: MemoryPlan, *, most_used_blocks: int, peak_loading_bytes: int) -> MemoryUse:
    """Look at the process as it is now."""
    return MemoryUse(
        weights_bytes=plan.weights_bytes,
        kv_planned_bytes=plan.kv_bytes,
        kv_used_bytes=(
            plan.kv_bytes if plan.is_preallocated else most_used_blocks * plan.block_bytes
        ),
        peak_loading_bytes=peak_loading_bytes,
        peak_bytes=peak_resident_bytes(),
    )
