"""What this process may use of the machine: cores and memory inside affinity and all limits.

Reads what the operating system says and decides nothing.  Everything is a plain number, in bytes
or cores; a limit that does not exist is None.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
from dataclasses import dataclass
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
PROC = Path("/proc")

_MEMORY_LIMITS = (
    ("memory.max", "memory.current"),
    ("memory.high", "memory.current"),  # above it the kernel slows a process down to a crawl
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)

_OWN_LIMITS = {"Max address space": 0, "Max data size": 5}
"""Limits of the process, by where `statm` has what counts for them, in pages."""
_PAGE_BYTES = mmap.PAGESIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Limits that hold for this process."""

    num_cpus: int
    """Cores of the affinity mask, cut to the cgroup's quota."""
    total_memory_bytes: int
    """Memory of the machine, or the limit of the cgroup or the process if that is less."""
    free_memory_bytes: int
    """What can still be taken without swapping or hitting the limit."""
    memory_limit: str
    """Which of the three binds: "machine", "cgroup" or "process"."""
    own_memory_bytes: int = 0
    """What this process has of its own already, and so is not free: without files it has mapped."""


def inspect_machine(*, proc: Path = PROC, cgroup_root: Path = CGROUP_ROOT) -> Machine:
    """Look at the machine as it is now."""
    total, available = _meminfo(proc)
    group_limit, group_left = _cgroup_memory(proc, cgroup_root)
    own_limit, own_left = _process_memory(proc)
    limits = {"machine": total, "cgroup": group_limit, "process": own_limit}
    binding = min(limits, key=lambda name: limits[name])  # the first of equals
    return Machine(
        num_cpus=num_available_cpus(proc=proc, cgroup_root=cgroup_root),
        total_memory_bytes=int(limits[binding]),
        free_memory_bytes=int(min(available, group_left, own_left)),
        memory_limit=binding,
        own_memory_bytes=_own_memory(proc),
    )


def num_available_cpus(*, proc: Path = PROC, cgroup_root: Path = CGROUP_ROOT) -> int:
    """Cores that this process may run on at once: affinity mask and cgroup quota."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:  # pragma: no cover  (not on Linux)
        count = os.cpu_count() or 1
    quota = _cgroup_cpus(proc, cgroup_root)
    return count if quota is None else max(1, min(count, math.floor(quota + 1e-6)))


def microcode_version(*, proc: Path = PROC) -> str:
    """What the system calls the processor's microcode; "" if it does not say."""
    try:
        with (proc / "cpuinfo").open("rb") as file:
            first_core = file.read(4096)  # all of it takes a while on a machine with many
    except OSError:
        return ""
    for line in first_core.splitlines():
        name, _, value = line.partition(b":")
        if name.strip() == b"microcode":
            return value.strip().decode("ascii", "replace")
    return ""


def _meminfo(proc: Path) -> tuple[int, int]:
    """Total and available memory."""
    values: dict[str, int] = {}
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            values[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return _memory_without_proc()
    total = values.get("MemTotal", 0)
    return total, values.get("MemAvailable", values.get("MemFree", total // 2))


def _memory_without_proc() -> tuple[int, int]:  # pragma: no cover  (not on Linux)
    """Total memory, and half of it as a guess at what is available."""
    if sys.platform == "win32":
        status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX; its first word is its size
        ctypes.windll.kernel32.GlobalMemoryStatusEx(status)
        return status[1], status[2]
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total, total // 2


def _cgroup_folders(proc: Path, root: Path, controller: str) -> list[Path]:
    """Folders from this process's own cgroup up to the root, version 1 or 2."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    unified: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            mounts = (root / controller, root / controllers)
            top = next((mount for mount in mounts if mount.is_dir()), mounts[0])
            return _up_from(top, path)
        if controllers == "":
            unified = _up_from(root, path)
    return unified


def _up_from(top: Path, path: str) -> list[Path]:
    own = top / path.lstrip("/")
    return [own, *(parent for parent in own.parents if parent.is_relative_to(top))]


def _cgroup_memory(proc: Path, root: Path) -> tuple[float, float]:
    """The smallest memory limit on the way up, and the least that is left below any of them."""
    smallest = least_left = math.inf
    for folder in _cgroup_folders(proc, root, "memory"):
        for limit_name, used_name in _MEMORY_LIMITS:
            limit, used = _number(folder / limit_name), _number(folder / used_name) or 0
            if limit is not None:
                used -= min(used, _reclaimable(folder))
                smallest = min(smallest, limit)
                least_left = min(least_left, max(0, limit - used))
    return smallest, least_left


def _own_memory(proc: Path) -> int:
    """Resident pages that belong to no file."""
    try:
        _, resident, shared, *_ = (proc / "self" / "statm").read_text().split()
        return max(0, int(resident) - int(shared)) * _PAGE_BYTES
    except (OSError, ValueError):
        return 0


def _process_memory(proc: Path) -> tuple[float, float]:
    """The smaller limit of the process itself (`ulimit -v`, `ulimit -d`), and the least left."""
    try:
        limits = (proc / "self" / "limits").read_text().splitlines()
        pages = (proc / "self" / "statm").read_text().split()
        used = {name: int(pages[place]) * _PAGE_BYTES for name, place in _OWN_LIMITS.items()}
    except (OSError, ValueError, IndexError):
        return math.inf, math.inf
    smallest = least_left = math.inf
    for line in limits:
        name, _, values = line.partition("  ")
        limit = values.split()[0] if values.split() else ""
        if name in used and limit.isdecimal():
            smallest = min(smallest, int(limit))
            least_left = min(least_left, max(0, int(limit) - used[name]))
    return smallest, least_left


def _reclaimable(folder: Path) -> int:
    """File pages that count as used and are given back under pressure."""
    values: dict[str, int] = {}
    try:
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            values[name] = int(value)
    except (OSError, ValueError):
        return 0
    # Version 1 counts what lies below a folder under names of its own.
    names = ("inactive_file", "active_file")
    return sum(values.get(f"total_{name}", values.get(name, 0)) for name in names)


def _cgroup_cpus(proc: Path, root: Path) -> float | None:
    """The smallest CPU quota on the way up, in cores."""
    quotas: list[float] = []
    for folder in _cgroup_folders(proc, root, "cpu"):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            quota = _text(folder / "cpu.cfs_quota_us")
            period = _text(folder / "cpu.cfs_period_us")
        # "max" in version 2 and -1 in version 1 are no quota.
        if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""


def _number(path: Path) -> int | None:
    """None where there is no file or no limit."""
    text = _text(path)
    return int(text) if text.isdecimal() else None
