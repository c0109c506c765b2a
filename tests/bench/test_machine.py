"""Machine facts are read from the files the kernel gives; a made-up root stands in for another machine."""

from __future__ import annotations

from pathlib import Path

from ninfer.bench.machine import describe_machine, package_versions


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_facts_of_another_machine(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", "model name\t: Chip 9\nflags\t\t: sse avx2 amx_int8 xyz\n\nmodel name\t: Chip 8\n")
    write(tmp_path, "proc/meminfo", "MemTotal:       1024 kB\nMemFree: 5 kB\n")
    write(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    for index, (level, kind, size) in enumerate((("1", "Data", "48K"), ("2", "Unified", "2048K"))):
        base = f"sys/devices/system/cpu/cpu0/cache/index{index}"
        write(tmp_path, f"{base}/level", level + "\n")
        write(tmp_path, f"{base}/type", kind + "\n")
        write(tmp_path, f"{base}/size", size + "\n")
    machine = describe_machine(tmp_path)
    assert machine.processor == "Chip 9"
    assert machine.memory_bytes == 1024 * 1024
    assert machine.transparent_huge_pages == "madvise"
    assert machine.cpu_flags == ("avx2", "amx_int8")
    assert machine.caches == ("L1 Data 48K", "L2 Unified 2048K")


def test_what_the_system_does_not_say_is_unknown(tmp_path: Path) -> None:
    machine = describe_machine(tmp_path)
    assert (machine.processor, machine.transparent_huge_pages) == ("unknown", "unknown")
    assert (machine.memory_bytes, machine.cpu_flags, machine.caches) == (0, (), ())


def test_this_machine_has_cpus_and_memory() -> None:
    machine = describe_machine()
    assert machine.num_cpus >= 1
    assert machine.memory_bytes > 1 << 28


def test_versions_of_absent_packages_are_named_absent() -> None:
    versions = package_versions(("numpy", "no-such-package-here"))
    assert versions["no-such-package-here"] == "not installed"
    assert versions["numpy"][0].isdigit()
    assert versions["python"].startswith("3.")
