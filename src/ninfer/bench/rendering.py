"""Tables of measured runs for a terminal; everything shown is derived from the records, nothing is measured here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console, Group, RenderableType
from rich.table import Table

from ninfer.bench import ceilings, engine, ops, peers
from ninfer.bench.peers import PeersResult
from ninfer.bench.records import Measurement, Run, Scalar
from ninfer.bench.statistics import Summary, summarize


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


def engine_tables(run: Run) -> RenderableType:
    """Steps, decode against the memory ceiling, and the other figures of an `engine` run."""
    steps = Table("work", "ms per step", "tok/s", title="Steps")
    for m in run.measurements:
        if m.name == engine.STEP:
            steps.add_row(str(m.inputs["work"]), with_spread(m.summary, 1e-3, 2), with_spread(m.rate, 1, 1))
    shares = Table("work", "MB per step", "GB/s", "ceiling GB/s", "share", title="Decode beside the memory ceiling")
    for share in engine.decode_shares(run):
        figures = (share.bytes_per_step / 1e6, share.bytes_per_s / 1e9, share.ceiling_bytes_per_s / 1e9)
        shares.add_row(share.work, *(f"{figure:.1f}" for figure in figures), f"{share.share:.0%}")
    others = Table("figure", "case", "value", title="Load, start, memory")
    for m in run.measurements:
        if m.name in (engine.LOAD, engine.FIRST_TOKEN):
            others.add_row(m.name, str(m.inputs["case"]), with_spread(m.summary, 1e-3, 0) + " ms")
        elif m.name == engine.PEAK_MEMORY:
            times_file = m.summary.median / run.conditions["file_bytes"]
            others.add_row(
                m.name, str(m.inputs["case"]), f"{m.summary.median / 1e6:,.0f} MB, {times_file:.2f} x the file"
            )
    overhead = engine.overhead_share(run)
    if overhead is not None:
        others.add_row("engine step outside kernels", "greedy", f"{overhead:.1%}")
    return Group(heading(run), steps, shares, others)


def ops_tables(run: Run) -> RenderableType:
    """Every case of an `ops` run with its rates and how much of each limit they are."""
    table = Table("op", "shape", "rows", "us", "GB/s", "of memory", "Gop/s", "of arithmetic", title="Kernels")
    for share in ops.shares(run):
        m = share.measurement
        table.add_row(
            str(m.inputs["op"]),
            str(m.inputs["shape"]),
            str(m.inputs["rows"]),
            with_spread(m.summary, 1e-6, 1),
            f"{share.bytes_per_s / 1e9:.1f}",
            _share(share.memory_share),
            "" if share.ops_per_s is None else f"{share.ops_per_s / 1e9:,.0f}",
            _share(share.arithmetic_share),
        )
    return Group(heading(run), table)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def peers_tables(result: PeersResult) -> RenderableType:
    """Milliseconds of every engine per piece of work, and how many times faster ours is than the fastest peer."""
    names = list(result.greetings)
    table = Table("work", *names, "fastest peer", "ours is x faster", "verdict", title="Milliseconds per step")
    for comparison in result.comparisons:
        seconds = comparison.seconds
        cells = [with_spread(summarize(seconds[name]), 1e-3, 2) if name in seconds else "cannot" for name in names]
        rival = comparison.fastest_peer()
        if rival is None or peers.OWN not in comparison.seconds:
            table.add_row(comparison.work.name, *cells, rival or "", "", "")
            continue
        ratio = comparison.ratio(peers.OWN, rival)
        span = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
        table.add_row(comparison.work.name, *cells, rival, span, ratio.verdict)
    settings = Table("work", *names, title="Settings used, each engine's best for that work")
    for comparison in result.comparisons:
        used = (peers.describe_settings(comparison.settings.get(name, {})) for name in names)
        settings.add_row(comparison.work.name, *used)
    engines = "\n".join(f"{name}: {greeting}" for name, greeting in result.greetings.items())
    missing = "\n".join(f"not used: {item.name}: {item.reason}" for item in result.run.unsupported)
    return Group(heading(result.run), engines, missing, table, settings)


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
