"""What this process may use of the machine: the part of it that plans depend on."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ninfer.backends.cpu import available_isas
from ninfer.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Hardware:
    """available_bytes: memory that can be allocated now without swapping. Page cache counts as available, so pages of a
    model file that are cached already are not counted twice when the file is mapped.

    total_bytes: memory of the machine, or of the control group if that is less. cpus: CPUs this process may run on.
    huge_pages: whether memory can have transparent huge pages. isas: instruction sets of the native backend that
    run here, the best one last.
    """

    available_bytes: int
    total_bytes: int
    cpus: int
    huge_pages: bool
    isas: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def detect_hardware(root: Path = Path("/")) -> Hardware:
    """Looks at procfs and sysfs below `root`, and asks the native backend about the CPU.

    UnsupportedError where there is no `/proc/meminfo`.
    """
    try:
        meminfo = _meminfo(root)
    except OSError as error:
        raise UnsupportedError(f"cannot tell how much memory is available: {error}") from error
    available, total = meminfo["MemAvailable"], meminfo["MemTotal"]
    for limit, used in _cgroup_limits(root):
        available = min(available, max(0, limit - used))
        total = min(total, limit)
    return Hardware(
        available_bytes=available,
        total_bytes=total,
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        huge_pages=_huge_pages(root),
        isas=tuple(available_isas()),
    )


def _meminfo(root: Path) -> dict[str, int]:
    """Sizes of `/proc/meminfo` in bytes."""
    sizes = {}
    for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            sizes[name] = int(words[0]) * 1024
    return sizes


def _cgroup_limits(root: Path) -> list[tuple[int, int]]:
    """(limit, bytes in use that cannot be reclaimed) of each control group version that sets a limit here."""
    found = []
    for folder, limit_file, used_file, prefix in (
        ("sys/fs/cgroup", "memory.max", "memory.current", ""),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        try:
            limit = (root / folder / limit_file).read_text(encoding="ascii").strip()
            used = int((root / folder / used_file).read_text(encoding="ascii"))
            stat = (root / folder / "memory.stat").read_text(encoding="ascii")
        except OSError:
            continue  # this version of control groups is not mounted, or sets no limit here
        if limit != "max":
            caches = dict(line.split() for line in stat.splitlines())
            cached = sum(int(caches.get(f"{prefix}{kind}_file", "0")) for kind in ("inactive", "active"))
            found.append((int(limit), used - cached))
    return found


def _huge_pages(root: Path) -> bool:
    try:
        text = (root / "sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="ascii")
    except OSError:
        return False
    return "[always]" in text or "[madvise]" in text
