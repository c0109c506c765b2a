"""What this machine can do at best: memory reads by buffer, page size and threads; arithmetic by instruction; barriers.

Every other figure of the bench stands beside one of these. Nothing is printed here; rendering.py makes the tables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ninfer.backends.cpu.ceilings import MemoryRead, NativeCeilings, PeakLoop
from ninfer.bench.machine import describe_machine, package_versions
from ninfer.bench.measurements import Measurement, Run, Scalar, Unsupported, Work, split_warmups
from ninfer.errors import ConfigError

MIB = 1 << 20

# 1 MiB lies in L2, 32 MiB in a shared L3, 96 MiB is the size of the small model's weights, 2 GiB is beyond every cache.
DEFAULT_BUFFERS = (1 * MIB, 32 * MIB, 96 * MIB, 2048 * MIB)

# Bytes one timed repeat reads at least, so that a repeat takes milliseconds and the clock's microsecond is nothing.
BYTES_PER_REPEAT = 256 * MIB
SECONDS_PER_PEAK_REPEAT = 0.02
BARRIER_ROUNDS = 100_000
WARMUPS = 2

MEMORY_READ = "memory read"
PEAK = "peak"
BARRIER = "spin barrier"


class Loops(Protocol):
    """What `measure` needs of the native module; tests give a fake with known times."""

    def read_memory(
        self, num_bytes: int, *, huge_pages: bool, threads: int, passes: int, repeats: int
    ) -> MemoryRead: ...
    def peak_loops(self) -> Sequence[PeakLoop]: ...
    def run_peak(self, name: str, *, threads: int, iterations: int, repeats: int) -> tuple[float, ...]: ...
    def barrier_seconds(self, *, threads: int, rounds: int) -> float: ...


def measure(
    *,
    threads: Sequence[int] | None = None,
    buffers: Sequence[int] = DEFAULT_BUFFERS,
    repeats: int = 7,
    loops: Loops | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Run:
    """Take every ceiling `repeats` times.

    threads: thread counts, by default 1 and all CPUs of this process; buffers: bytes of the read buffers.
    progress: told the name of each measurement before it starts.
    Raises ConfigError for values that cannot be measured, UnsupportedError without the native module.
    """
    all_cpus = len(os.sched_getaffinity(0))
    threads = sorted(set(threads or (1, all_cpus)))
    if threads[0] < 1 or threads[-1] > all_cpus:
        raise ConfigError(f"threads must be 1..{all_cpus}, the CPUs of this process; got {list(threads)}")
    machine = describe_machine()
    largest = (
        machine.memory_bytes // 2
    )  # more would push other programs out, or end in the kernel's out-of-memory killer
    if repeats < 1:
        raise ConfigError(f"repeats must be at least 1; got {repeats}")
    if any(not MIB <= size <= largest for size in buffers):
        raise ConfigError(f"buffers must have 1 to {largest // MIB} MiB, half of this machine's memory")
    loops = loops or NativeCeilings()
    measurements: list[Measurement] = []
    unsupported: list[Unsupported] = []
    for size in buffers:
        for huge in (False, True):
            for count in threads:
                progress(f"{MEMORY_READ} {size // MIB} MiB, {'huge' if huge else 'small'} pages, {count} threads")
                measurements.append(memory_read(loops, size, huge=huge, threads=count, repeats=repeats))
    for loop in loops.peak_loops():
        if not loop.available:
            unsupported.append(Unsupported(f"{PEAK} {loop.name}", f"needs {loop.needs}"))
            continue
        progress(f"{PEAK} {loop.name}")
        measurements.extend(peak(loops, loop, threads, repeats))
    for count in threads:
        if count > 1:
            progress(f"{BARRIER}, {count} threads")
            values = [loops.barrier_seconds(threads=count, rounds=BARRIER_ROUNDS) for _ in range(WARMUPS + repeats)]
            taken = split_warmups(values, WARMUPS)
            measurements.append(Measurement(BARRIER, "s", taken.values, taken.warmups, {"threads": count}))
    return Run("ceilings", machine, package_versions(), tuple(measurements), tuple(unsupported))


def memory_read(loops: Loops, size: int, *, huge: bool, threads: int, repeats: int) -> Measurement:
    """Reads of one buffer, at most 64 x threads bytes shorter than `size`."""
    size -= size % (64 * threads)
    passes = max(1, BYTES_PER_REPEAT // size)
    result = loops.read_memory(size, huge_pages=huge, threads=threads, passes=passes, repeats=WARMUPS + repeats)
    taken = split_warmups(result.seconds, WARMUPS)
    inputs: dict[str, Scalar] = {
        "buffer_bytes": size,
        "huge_pages": huge,
        "huge_bytes_obtained": result.huge_bytes,
        "threads": threads,
        "passes": passes,
    }
    return Measurement(MEMORY_READ, "s", taken.values, taken.warmups, inputs, Work(size * passes, "byte"))


def peak(loops: Loops, loop: PeakLoop, threads: Sequence[int], repeats: int) -> Iterator[Measurement]:
    """One arithmetic loop, by thread count."""
    iterations = _calibrate(loops, loop)
    for count in threads:
        seconds = loops.run_peak(loop.name, threads=count, iterations=iterations, repeats=WARMUPS + repeats)
        taken = split_warmups(seconds, WARMUPS)
        work = Work(iterations * loop.ops_per_iteration * count, "operation")
        inputs: dict[str, Scalar] = {"loop": loop.name, "threads": count, "iterations": iterations}
        yield Measurement(PEAK, "s", taken.values, taken.warmups, inputs, work)


def _calibrate(loops: Loops, loop: PeakLoop) -> int:
    """Iterations that take at least SECONDS_PER_PEAK_REPEAT on one thread."""
    iterations = 256
    while loops.run_peak(loop.name, threads=1, iterations=iterations, repeats=1)[0] < SECONDS_PER_PEAK_REPEAT:
        iterations *= 2
    return iterations


def best_memory_rate(run: Run, *, huge_pages: bool, threads: int) -> float | None:
    """Median bytes per second of the largest buffer with these pages and threads; None when it was not measured."""
    found = [
        m
        for m in run.measurements
        if m.name == MEMORY_READ and m.inputs["huge_pages"] is huge_pages and m.inputs["threads"] == threads
    ]
    if not found:
        return None
    return max(found, key=lambda m: m.number("buffer_bytes")).rate.median
