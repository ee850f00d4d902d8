"""Limits of affinity, cgroups and memory, read from trees made for each test."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from chairlift.machine import (
    Machine,
    inspect_machine,
    microcode_version,
    num_available_cpus,
)

GIB = 2**30
V1_UNLIMITED = "9223372036854771712"


class Tree:
    """A /proc and a /sys/fs/cgroup in a folder."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroup = folder / "proc", folder / "cgroup"
        self.memory(16 * GIB, 12 * GIB)

    def memory(self, total: int, available: int) -> None:
        self.write(
            self.proc / "meminfo",
            f"MemTotal:  {total // 1024} kB\nMemFree: 1024 kB\n"
            f"MemAvailable:  {available // 1024} kB\nHugePages_Total:       0\n",
        )

    def membership(self, *lines: str) -> None:
        self.write(self.proc / "self" / "cgroup", "".join(f"{line}\n" for line in lines))

    def limits(self, folder: str, values: Mapping[str, object]) -> None:
        for name, value in values.items():
            self.write(self.cgroup / folder / name, f"{value}\n")

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def inspect(self) -> Machine:
        return inspect_machine(proc=self.proc, cgroup_root=self.cgroup)

    def num_cpus(self) -> int:
        return num_available_cpus(proc=self.proc, cgroup_root=self.cgroup)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def test_no_cgroup_at_all(tree: Tree) -> None:
    assert tree.inspect() == Machine(
        num_cpus=8,
        total_memory_bytes=16 * GIB,
        free_memory_bytes=12 * GIB,
        memory_limit="machine",
    )


def test_version_2_limit_of_the_own_group(tree: Tree) -> None:
    tree.membership("0::/a/b")
    tree.limits("a/b", {"memory.max": 4 * GIB, "memory.current": 1 * GIB})
    machine = tree.inspect()
    assert machine.total_memory_bytes == 4 * GIB
    assert machine.free_memory_bytes == 3 * GIB
    assert machine.memory_limit == "cgroup"


def test_version_2_limit_of_a_parent(tree: Tree) -> None:
    tree.membership("0::/a/b/c")
    tree.limits("a/b/c", {"memory.max": "max", "memory.current": 0})
    tree.limits("a", {"memory.max": 2 * GIB, "memory.current": GIB // 2})
    machine = tree.inspect()
    assert (machine.total_memory_bytes, machine.free_memory_bytes) == (2 * GIB, 3 * GIB // 2)


def test_version_2_inside_a_container_the_own_group_is_the_root(tree: Tree) -> None:
    tree.membership("0::/")
    tree.limits("", {"memory.max": 2 * GIB, "memory.current": GIB, "cpu.max": "200000 100000"})
    machine = tree.inspect()
    assert (machine.total_memory_bytes, machine.free_memory_bytes) == (2 * GIB, GIB)
    assert machine.num_cpus == 2


def test_nested_limits_the_smallest_is_the_total_and_the_fullest_bounds_what_is_free(
    tree: Tree,
) -> None:
    """A neighbour may fill the parent although the own group is empty."""
    tree.membership("0::/a/b")
    tree.limits("a/b", {"memory.max": 4 * GIB, "memory.current": 0})
    tree.limits("a", {"memory.max": 10 * GIB, "memory.current": 9 * GIB})
    machine = tree.inspect()
    assert (machine.total_memory_bytes, machine.free_memory_bytes) == (4 * GIB, 1 * GIB)


def test_version_2_max_everywhere(tree: Tree) -> None:
    tree.membership("0::/a")
    tree.limits("a", {"memory.max": "max", "memory.high": "max", "cpu.max": "max 100000"})
    machine = tree.inspect()
    assert machine.memory_limit == "machine" and machine.num_cpus == 8


def test_version_2_memory_high_is_a_limit_too(tree: Tree) -> None:
    tree.membership("0::/a")
    tree.limits("a", {"memory.max": "max", "memory.high": 3 * GIB, "memory.current": GIB})
    assert tree.inspect().free_memory_bytes == 2 * GIB


def test_file_pages_count_as_free(tree: Tree) -> None:
    """A model file that was read before must not shrink the KV cache."""
    tree.membership("0::/a")
    tree.limits("a", {"memory.max": 4 * GIB, "memory.current": 3 * GIB})
    stat = f"anon {GIB}\ninactive_file {GIB}\nactive_file {GIB // 2}\nshmem 0"
    tree.limits("a", {"memory.stat": stat})
    assert tree.inspect().free_memory_bytes == 4 * GIB - 3 * GIB + 3 * GIB // 2


def test_version_1_limit_with_children_in_the_statistics(tree: Tree) -> None:
    tree.membership("5:cpu,cpuacct:/docker/x", "4:memory:/docker/x", "0::/")
    tree.limits(
        "memory/docker/x",
        {
            "memory.limit_in_bytes": 4 * GIB,
            "memory.usage_in_bytes": 2 * GIB,
            "memory.stat": f"inactive_file 0\ntotal_inactive_file {GIB}\ntotal_active_file 0",
        },
    )
    tree.limits("memory", {"memory.limit_in_bytes": V1_UNLIMITED})
    machine = tree.inspect()
    assert (machine.total_memory_bytes, machine.free_memory_bytes) == (4 * GIB, 3 * GIB)


def test_version_1_unlimited_is_a_huge_number(tree: Tree) -> None:
    tree.membership("4:memory:/a")
    tree.limits("memory/a", {"memory.limit_in_bytes": V1_UNLIMITED, "memory.usage_in_bytes": 1})
    assert tree.inspect().memory_limit == "machine"


def test_version_1_inside_a_container_the_hosts_path_does_not_exist(tree: Tree) -> None:
    """The own limits are then those of the mount's root."""
    tree.membership("4:memory:/docker/0123abc")
    tree.limits("memory", {"memory.limit_in_bytes": 2 * GIB, "memory.usage_in_bytes": GIB})
    assert tree.inspect().free_memory_bytes == GIB


def test_the_version_1_line_wins_wherever_it_stands(tree: Tree) -> None:
    tree.membership("0::/a", "4:memory:/a")
    tree.limits("a", {"memory.max": GIB, "memory.current": 0})
    tree.limits("memory/a", {"memory.limit_in_bytes": 2 * GIB, "memory.usage_in_bytes": 0})
    assert tree.inspect().free_memory_bytes == 2 * GIB


def test_more_used_than_the_limit_leaves_nothing(tree: Tree) -> None:
    tree.membership("0::/a")
    tree.limits("a", {"memory.max": GIB, "memory.current": 2 * GIB})
    assert tree.inspect().free_memory_bytes == 0


def test_a_limit_above_the_machine_does_not_bind(tree: Tree) -> None:
    tree.membership("0::/a")
    tree.limits("a", {"memory.max": 64 * GIB, "memory.current": GIB})
    machine = tree.inspect()
    assert (machine.total_memory_bytes, machine.free_memory_bytes) == (16 * GIB, 12 * GIB)
    assert machine.memory_limit == "machine"


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("150000 100000", 1),  # a second thread would be stopped half of the time
        ("200000 100000", 2),
        ("50000 100000", 1),
        ("1600000 100000", 8),
        ("max 100000", 8),
        ("nonsense", 8),
        ("100000 0", 8),
        ("many 100000", 8),
    ],
)
def test_version_2_cpu_quota(tree: Tree, quota: str, expected: int) -> None:
    tree.membership("0::/a")
    tree.limits("a", {"cpu.max": quota})
    assert tree.num_cpus() == expected


def test_the_smallest_quota_on_the_way_up_holds(tree: Tree) -> None:
    tree.membership("0::/a/b")
    tree.limits("a/b", {"cpu.max": "600000 100000"})
    tree.limits("a", {"cpu.max": "300000 100000"})
    assert tree.num_cpus() == 3


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("quota", "expected"), [(250_000, 2), (-1, 8)])
def test_version_1_cpu_quota(tree: Tree, mount: str, quota: int, expected: int) -> None:
    tree.membership("5:cpu,cpuacct:/a")
    tree.limits(f"{mount}/a", {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": 100_000})
    assert tree.num_cpus() == expected


def test_affinity_bounds_the_cores(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    tree.membership("0::/a")
    tree.limits("a", {"cpu.max": "400000 100000"})
    assert tree.num_cpus() == 2


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("processor\t: 0\nmicrocode\t: 0xa1\n\nprocessor\t: 1\nmicrocode\t: 0xb2\n", "0xa1"),
        ("processor\t: 0\nmodel name\t: any\n", ""),
        ("", ""),
    ],
)
def test_microcode_is_that_of_the_first_core(tmp_path: Path, text: str, version: str) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert microcode_version(proc=tmp_path) == version
    assert microcode_version(proc=tmp_path / "absent") == ""


OWN_LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max data size             {data}            unlimited            bytes
Max address space         {space}            unlimited            bytes
"""


@pytest.mark.parametrize(
    ("space", "data", "total", "free"),
    [
        (4 * GIB, "unlimited", 4 * GIB, 3 * GIB),
        ("unlimited", 2 * GIB, 2 * GIB, 2 * GIB - GIB // 2),
        (4 * GIB, 3 * GIB, 3 * GIB, 3 * GIB - GIB // 2),
        (GIB // 2, "unlimited", GIB // 2, 0),
    ],
)
def test_limits_of_the_process_itself(
    tree: Tree, space: object, data: object, total: int, free: int
) -> None:
    page = mmap.PAGESIZE
    tree.write(tree.proc / "self" / "limits", OWN_LIMITS.format(space=space, data=data))
    sizes = (GIB // page, 7000, 3000, 1, 0, GIB // 2 // page, 0)
    tree.write(tree.proc / "self" / "statm", " ".join(map(str, sizes)))
    machine = tree.inspect()
    assert machine.memory_limit == "process"
    assert (machine.total_memory_bytes, machine.free_memory_bytes) == (total, free)
    assert machine.own_memory_bytes == 4000 * page


def test_the_smallest_of_group_and_process_binds(tree: Tree) -> None:
    tree.write(tree.proc / "self" / "limits", OWN_LIMITS.format(space=4 * GIB, data="unlimited"))
    tree.write(tree.proc / "self" / "statm", "0 0 0 0 0 0 0")
    tree.membership("0::/a")
    tree.limits("a", {"memory.max": 2 * GIB, "memory.current": GIB})
    machine = tree.inspect()
    assert machine.memory_limit == "cgroup" and machine.free_memory_bytes == GIB


def test_this_machine_as_it_is() -> None:
    machine = inspect_machine()
    assert machine.num_cpus >= 1
    assert 0 < machine.free_memory_bytes <= machine.total_memory_bytes
