"""Measuring loops of the native module: memory reads, arithmetic peaks and the spin barrier, one timed call each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer.errors import UnsupportedError


@dataclass(frozen=True)
class PeakLoop:
    """One arithmetic loop: `ops_per_iteration` counts a multiply and an add as two; `needs` says what it requires."""

    name: str
    needs: str
    available: bool
    ops_per_iteration: int


@dataclass(frozen=True)
class MemoryRead:
    """Seconds of every repeat, and how many bytes of the buffer the kernel backed with huge pages."""

    seconds: tuple[float, ...]
    huge_bytes: int


class NativeCeilings:
    """The loops of the extension module; raises UnsupportedError where the module was not built."""

    def __init__(self) -> None:
        try:
            from ninfer.backends.cpu import _native
        except ImportError as error:
            raise UnsupportedError(f"the native module is not built: {error}") from error
        self._native = _native

    def read_memory(self, num_bytes: int, *, huge_pages: bool, threads: int, passes: int, repeats: int) -> MemoryRead:
        """Read a fresh buffer `passes` times per repeat, each thread its share."""
        result = self._native.bench_memory_read(
            num_bytes, huge_pages=huge_pages, threads=threads, passes=passes, repeats=repeats
        )
        return MemoryRead(tuple(result["seconds"]), result["huge_bytes"])

    def peak_loops(self) -> Sequence[PeakLoop]:
        """All arithmetic loops this build knows, those this processor cannot run included."""
        return [PeakLoop(**row) for row in self._native.bench_peaks()]

    def run_peak(self, name: str, *, threads: int, iterations: int, repeats: int) -> tuple[float, ...]:
        """Seconds of every repeat; each thread does `iterations`."""
        return tuple(self._native.bench_run_peak(name, threads=threads, iterations=iterations, repeats=repeats))

    def barrier_seconds(self, *, threads: int, rounds: int) -> float:
        """Seconds per round of a spinning barrier among `threads` threads."""
        return float(self._native.bench_barrier(threads=threads, rounds=rounds))
