"""What ceilings.measure asks of the loops and derives from their times; the native loops themselves run once, tiny."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

import pytest

from ninfer.backends.cpu.ceilings import MemoryRead, NativeCeilings, PeakLoop
from ninfer.bench import ceilings, rendering
from ninfer.bench.ceilings import MIB, best_memory_rate, measure
from ninfer.errors import ConfigError

ALL_CPUS = len(os.sched_getaffinity(0))


class FakeLoops:
    """Reads at 1 GB/s per thread (2 GB/s with huge pages) after slow warm-ups; 1e-6 s per peak iteration."""

    def __init__(self) -> None:
        self.peaks_run: list[str] = []

    def read_memory(self, num_bytes: int, *, huge_pages: bool, threads: int, passes: int, repeats: int) -> MemoryRead:
        seconds = num_bytes * passes / 1e9 / threads / (2 if huge_pages else 1)
        return MemoryRead(
            (99.0,) * ceilings.WARMUPS + (seconds,) * (repeats - ceilings.WARMUPS), num_bytes * huge_pages
        )

    def peak_loops(self) -> Sequence[PeakLoop]:
        return [PeakLoop("int8_fast", "nothing", True, 1000), PeakLoop("int8_rare", "a rare thing", False, 1)]

    def run_peak(self, name: str, *, threads: int, iterations: int, repeats: int) -> tuple[float, ...]:
        self.peaks_run.append(name)
        return (iterations * 1e-6,) * repeats

    def barrier_seconds(self, *, threads: int, rounds: int) -> float:
        return 50e-9


def test_rates_follow_from_the_loops_times() -> None:
    run = measure(threads=[1], buffers=[MIB, 4 * MIB], repeats=3, loops=FakeLoops())
    small = run.find(ceilings.MEMORY_READ, buffer_bytes=MIB, huge_pages=False, threads=1)
    assert small is not None
    assert len(small.values) == 3
    assert small.warmups == (99.0, 99.0)
    assert small.rate.median == pytest.approx(1e9)
    assert best_memory_rate(run, huge_pages=True, threads=1) == pytest.approx(2e9)
    assert best_memory_rate(run, huge_pages=True, threads=17) is None
    peak = run.find(ceilings.PEAK, loop="int8_fast")
    assert peak is not None
    assert peak.rate.median == pytest.approx(1e9)
    assert min(peak.values) >= ceilings.SECONDS_PER_PEAK_REPEAT


def test_what_the_processor_lacks_is_named_and_never_run() -> None:
    loops = FakeLoops()
    run = measure(threads=[1], buffers=[MIB], repeats=1, loops=loops)
    assert [(u.name, u.reason) for u in run.unsupported] == [("peak int8_rare", "needs a rare thing")]
    assert "int8_rare" not in loops.peaks_run


@pytest.mark.skipif(ALL_CPUS < 2, reason="needs two CPUs")
def test_barrier_only_with_company() -> None:
    run = measure(threads=[1, 2], buffers=[MIB], repeats=2, loops=FakeLoops())
    assert [m.inputs["threads"] for m in run.measurements if m.name == ceilings.BARRIER] == [2]


@pytest.mark.parametrize(
    "arguments",
    [{"threads": [0]}, {"threads": [ALL_CPUS + 1]}, {"repeats": 0}, {"buffers": [MIB - 1]}, {"buffers": [1 << 60]}],
)
def test_what_cannot_be_measured_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        measure(loops=FakeLoops(), **arguments)  # type: ignore[arg-type]  # wrong values are the point


def test_table_shows_rates_and_reasons() -> None:
    from rich.console import Console

    run = measure(threads=[1], buffers=[MIB], repeats=1, loops=FakeLoops())
    console = Console(record=True, width=160, file=io.StringIO())
    console.print(rendering.ceilings_tables(run))
    text = console.export_text()
    assert "unsupported: needs a rare thing" in text
    assert "2.0 (0 %)" in text


def test_native_read_loop_touches_the_buffer_and_reports_pages() -> None:
    result = NativeCeilings().read_memory(MIB, huge_pages=False, threads=1, passes=1, repeats=2)
    assert len(result.seconds) == 2
    assert all(second > 0 for second in result.seconds)
    assert result.huge_bytes == 0


def test_every_native_peak_loop_runs_or_says_why_not() -> None:
    native = NativeCeilings()
    for loop in native.peak_loops():
        if loop.available:
            assert native.run_peak(loop.name, threads=1, iterations=1, repeats=2)[1] > 0
        else:
            assert loop.needs
            with pytest.raises(ValueError, match="lacks"):
                native.run_peak(loop.name, threads=1, iterations=1, repeats=1)
    with pytest.raises(ValueError, match="no such loop: nonsense"):
        native.run_peak("nonsense", threads=1, iterations=1, repeats=1)


def test_native_barrier_of_two_threads_ends() -> None:
    assert NativeCeilings().barrier_seconds(threads=2, rounds=3) > 0


@pytest.mark.parametrize("size", [0, 63, 65])
def test_native_read_loop_refuses_partial_lines(size: int) -> None:
    with pytest.raises(ValueError, match="multiple of 64"):
        NativeCeilings().read_memory(size, huge_pages=False, threads=1, passes=1, repeats=1)
