from __future__ import annotations

import os
from pathlib import Path

import pytest

from ninfer.engine import detect_hardware
from ninfer.errors import UnsupportedError

MIB = 2**20
MEMINFO = "MemTotal:       4096 kB\nMemFree:   100 kB\nMemAvailable:   3072 kB\nHugePages_Total:    0\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", MEMINFO)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


def test_memory_of_a_machine_without_limits(root: Path) -> None:
    hardware = detect_hardware(root)
    assert (hardware.available_bytes, hardware.total_bytes) == (3 * MIB, 4 * MIB)
    assert hardware.cpus == len(os.sched_getaffinity(0))
    assert not hardware.huge_pages


def test_a_control_group_limit_counts_without_its_reclaimable_cache(root: Path) -> None:
    write(root, "sys/fs/cgroup/memory.max", f"{2 * MIB}\n")
    write(root, "sys/fs/cgroup/memory.current", f"{MIB}\n")
    stat = f"anon {MIB // 2}\ninactive_file {MIB // 4}\nactive_file {MIB // 8}\nshmem {MIB // 8}\n"
    write(root, "sys/fs/cgroup/memory.stat", stat)
    hardware = detect_hardware(root)
    assert (hardware.available_bytes, hardware.total_bytes) == (2 * MIB - MIB + MIB // 4 + MIB // 8, 2 * MIB)


def test_a_control_group_of_version_1(root: Path) -> None:
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{2 * MIB}\n")
    write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", f"{3 * MIB}\n")
    write(root, "sys/fs/cgroup/memory/memory.stat", "total_inactive_file 0\n")
    assert detect_hardware(root).available_bytes == 0


def test_a_control_group_without_a_limit(root: Path) -> None:
    write(root, "sys/fs/cgroup/memory.max", "max\n")
    write(root, "sys/fs/cgroup/memory.current", f"{MIB}\n")
    write(root, "sys/fs/cgroup/memory.stat", "anon 0\n")
    assert detect_hardware(root).available_bytes == 3 * MIB


@pytest.mark.parametrize(
    ("text", "huge"),
    [("[always] madvise never", True), ("always [madvise] never", True), ("always madvise [never]", False)],
)
def test_transparent_huge_pages(root: Path, text: str, huge: bool) -> None:
    write(root, "sys/kernel/mm/transparent_hugepage/enabled", text)
    assert detect_hardware(root).huge_pages is huge


def test_a_system_that_tells_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="how much memory"):
        detect_hardware(tmp_path)


def test_this_machine() -> None:
    hardware = detect_hardware()
    assert 0 < hardware.available_bytes <= hardware.total_bytes
    assert hardware.cpus >= 1
    assert hardware.isas[0] == "scalar"
    assert set(hardware.to_dict()) == {"available_bytes", "total_bytes", "cpus", "huge_pages", "isas"}
