"""Which machine and which versions a measurement was taken with; read from the operating system, nothing is guessed."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# CPU flags that decide which of our kernels or a peer's can run; the full list of a processor has over a hundred.
RELEVANT_FLAGS = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "i8mm", "bf16", "sve", "hypervisor",
)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """Facts of the machine: processor name, CPUs this process may use, memory, kernel, huge-page mode, CPU flags."""

    processor: str
    architecture: str
    num_cpus: int
    memory_bytes: int
    kernel: str
    transparent_huge_pages: str
    cpu_flags: tuple[str, ...]
    caches: tuple[str, ...]


def describe_machine(root: Path = Path("/")) -> Machine:
    """Read the machine's facts below `root`; a fact the system does not give is the word "unknown" or empty."""
    cpu_info = _fields(_read(root / "proc/cpuinfo"))
    memory_info = _fields(_read(root / "proc/meminfo"))
    flags = set((cpu_info.get("flags") or cpu_info.get("Features") or "").split())
    huge = _read(root / "sys/kernel/mm/transparent_hugepage/enabled")
    return Machine(
        processor=cpu_info.get("model name", "unknown"),
        architecture=platform.machine(),
        num_cpus=len(os.sched_getaffinity(0)),
        memory_bytes=int(memory_info.get("MemTotal", "0 kB").split()[0]) * 1024,
        kernel=platform.release(),
        transparent_huge_pages=huge.partition("[")[2].partition("]")[0] or "unknown",
        cpu_flags=tuple(flag for flag in RELEVANT_FLAGS if flag in flags),
        caches=_caches(root / "sys/devices/system/cpu/cpu0/cache"),
    )


def package_versions(packages: Sequence[str] = ("ninfer", "numpy")) -> dict[str, str]:
    """Installed versions of the packages and of Python; a package run from its source tree is "not installed"."""
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _fields(text: str) -> dict[str, str]:
    """`key : value` lines; the first occurrence of a key counts (the first processor stands for all)."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator:
            found.setdefault(key.strip(), value.strip())
    return found


def _caches(directory: Path) -> tuple[str, ...]:
    """For example ("L1 Data 48K", "L2 Unified 2048K"); empty where the kernel does not list caches."""
    return tuple(
        f"L{_read(index / 'level').strip()} {_read(index / 'type').strip()} {_read(index / 'size').strip()}"
        for index in sorted(directory.glob("index*"))
    )
