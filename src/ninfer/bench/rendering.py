"""Tables of measured runs for a terminal; everything shown is derived from the records, nothing is measured here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console, Group, RenderableType
from rich.table import Table

from ninfer.bench import ceilings
from ninfer.bench.records import Measurement, Run, Scalar
from ninfer.bench.statistics import Summary


def with_spread(summary: Summary, scale: float, digits: int) -> str:
    """Median and interquartile range as a share of it: "35.1 (3 %)"."""
    return f"{summary.median / scale:,.{digits}f} ({100 * summary.spread:.0f} %)"


def heading(run: Run) -> str:
    """One paragraph that says where and with what a run was taken."""
    machine = run.machine
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    return (
        f"{run.tool} on {machine.processor}, {machine.num_cpus} CPUs, {machine.memory_bytes / 2**30:.0f} GiB, "
        f"Linux {machine.kernel}, transparent huge pages {machine.transparent_huge_pages}; {versions}.\n"
        "Each figure is the median, in brackets the interquartile range as a share of it."
    )


def ceilings_tables(run: Run) -> RenderableType:
    """Memory, arithmetic and barrier tables of a `ceilings` run, one column per thread count."""
    threads = sorted({int(m.number("threads")) for m in run.measurements})
    columns = [f"{count} thread{'s' * (count > 1)}" for count in threads]
    memory = Table("buffer", "pages", *columns, title="Memory read, GB/s")
    for row in _by_threads(run, ceilings.MEMORY_READ, "buffer_bytes", "huge_pages"):
        first = next(iter(row.values()))
        size = f"{first.number('buffer_bytes') / ceilings.MIB:,.0f} MiB"
        memory.add_row(size, _pages(row.values()), *(_rate(row, count, 1e9, 1) for count in threads))
    peak = Table("loop", *columns, title="Arithmetic, Gop/s (a multiply-add is two)")
    for row in _by_threads(run, ceilings.PEAK, "loop"):
        first = next(iter(row.values()))
        peak.add_row(str(first.inputs["loop"]), *(_rate(row, count, 1e9, 0) for count in threads))
    for missing in run.unsupported:
        peak.add_row(missing.name.removeprefix(f"{ceilings.PEAK} "), f"unsupported: {missing.reason}")
    barrier = Table("threads", "ns per round", title="Spin barrier")
    for row in _by_threads(run, ceilings.BARRIER, "threads"):
        for count, measurement in row.items():
            barrier.add_row(str(count), with_spread(measurement.summary, 1e-9, 0))
    return Group(heading(run), memory, peak, barrier)


def print_tables(tables: RenderableType) -> None:
    """Write to standard output, as wide as the terminal."""
    Console().print(tables)


def _pages(row: Iterable[Measurement]) -> str:
    """What the buffers of a row really had, which is not always what was asked for."""
    measurements = list(row)
    if not measurements[0].inputs["huge_pages"]:
        return "4 KiB"
    complete = all(m.number("huge_bytes_obtained") >= m.number("buffer_bytes") for m in measurements)
    return "huge" if complete else "huge (not all obtained)"


def _by_threads(run: Run, name: str, *keys: str) -> list[dict[int, Measurement]]:
    """Measurements of `name` grouped by the inputs `keys`, each group by thread count, in order of appearance."""
    groups: dict[tuple[Scalar, ...], dict[int, Measurement]] = {}
    for m in run.measurements:
        if m.name == name:
            groups.setdefault(tuple(m.inputs[key] for key in keys), {})[int(m.number("threads"))] = m
    return list(groups.values())


def _rate(row: Mapping[int, Measurement], threads: int, scale: float, digits: int) -> str:
    return with_spread(row[threads].rate, scale, digits) if threads in row else ""
