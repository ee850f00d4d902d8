"""What this process may use of the machine: cores and memory inside affinity and cgroup limits.

Reads what the operating system says and decides nothing.  Everything is a plain number, in bytes
or cores; a limit that does not exist is None.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Limits that hold for this process."""

    num_cpus: int
    """Cores of the affinity mask, cut to the cgroup's quota."""
    total_memory_bytes: int
    """Memory of the machine, or the cgroup's limit if that is less."""
    free_memory_bytes: int
    """What can still be taken without swapping or hitting the limit."""
    memory_limit: str
    """Which of the two binds: "machine" or "cgroup"."""


def inspect_machine(*, proc: Path = PROC, cgroup_root: Path = CGROUP_ROOT) -> Machine:
    """Look at the machine as it is now."""
    total, available = _meminfo(proc)
    limit, used = _cgroup_memory(proc, cgroup_root)
    is_limited = limit is not None and limit < total
    free = available if limit is None else min(available, max(0, limit - used))
    return Machine(
        num_cpus=num_available_cpus(proc=proc, cgroup_root=cgroup_root),
        total_memory_bytes=limit if is_limited and limit is not None else total,
        free_memory_bytes=free,
        memory_limit="cgroup" if is_limited else "machine",
    )


def num_available_cpus(*, proc: Path = PROC, cgroup_root: Path = CGROUP_ROOT) -> int:
    """Cores that this process may run on at once: affinity mask and cgroup quota."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:  # pragma: no cover  (not on Linux)
        count = os.cpu_count() or 1
    quota = _cgroup_cpus(proc, cgroup_root)
    return count if quota is None else max(1, min(count, math.floor(quota + 1e-6)))


def _meminfo(proc: Path) -> tuple[int, int]:
    """Total and available memory."""
    values: dict[str, int] = {}
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            values[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):  # pragma: no cover  (not on Linux)
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total, total // 2
    total = values.get("MemTotal", 0)
    return total, values.get("MemAvailable", values.get("MemFree", total // 2))


def _cgroup_folders(proc: Path, root: Path, controller: str) -> list[Path]:
    """Folders from this process's own cgroup up to the root, version 2 or 1."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top = root
        elif controller in controllers.split(","):
            top = root / controller
        else:
            continue
        own = top / path.lstrip("/")
        return [own, *(parent for parent in own.parents if parent.is_relative_to(top))]
    return []


def _cgroup_memory(proc: Path, root: Path) -> tuple[int | None, int]:
    """The tightest memory limit on the way up, and what is used below it."""
    best: tuple[int | None, int] = (None, 0)
    for folder in _cgroup_folders(proc, root, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _number(folder / limit_name), _number(folder / used_name) or 0
            used -= min(used, _reclaimable(folder))
            if limit is not None and (best[0] is None or limit - used < best[0] - best[1]):
                best = (limit, used)
    return best


def _reclaimable(folder: Path) -> int:
    """File pages that count as used and are given back under pressure."""
    try:
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


def _cgroup_cpus(proc: Path, root: Path) -> float | None:
    """The smallest CPU quota on the way up, in cores."""
    quotas: list[float] = []
    for folder in _cgroup_folders(proc, root, "cpu"):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            quota_us = _number(folder / "cpu.cfs_quota_us")
            period_us = _number(folder / "cpu.cfs_period_us")
            if quota_us is not None and quota_us > 0 and period_us:
                quotas.append(quota_us / period_us)
            continue
        if quota != "max":
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
