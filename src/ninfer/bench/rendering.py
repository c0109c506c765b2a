"""Tables of measured runs for a terminal; everything shown is derived from the records, nothing is measured here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table

from ninfer.bench import ceilings, engine, ops, peers
from ninfer.bench.load.latency import Latencies
from ninfer.bench.measurements import Measurement, Run, Scalar
from ninfer.bench.peers import PeersResult
from ninfer.bench.quality import QualityResult, bucket_name
from ninfer.bench.statistics import Estimate, Summary, summarize
from ninfer.metrics.quality import perplexity


def with_spread(summary: Summary, scale: float, digits: int) -> str:
    """Median and interquartile range as a share of it: "35.1 (3 %)"."""
    return f"{summary.median / scale:,.{digits}f} ({100 * summary.spread:.0f} %)"


MEDIANS = "Each figure is the median, in brackets the interquartile range as a share of it."


def heading(run: Run, figures: str = MEDIANS) -> str:
    """One paragraph that says where and with what a run was taken, and what its figures are."""
    machine = run.machine
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    return (
        f"{run.tool} on {machine.processor}, {machine.num_cpus} CPUs, {machine.memory_bytes / 2**30:.0f} GiB, "
        f"Linux {machine.kernel}, transparent huge pages {machine.transparent_huge_pages}; {versions}.\n"
        f"{figures}"
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


def with_interval(estimate: Estimate, digits: int, *, significant: bool = False) -> str:
    """Value and below it the interval, "12.31" and "11.85 to 12.90"; a single sample says so.

    digits: places after the point, or significant ones.
    """
    form = "g" if significant else "f"
    value = f"{estimate.value:.{digits}{form}}"
    if estimate.low is None or estimate.high is None:
        return f"{value}\nsingle sample"
    return f"{value}\n{estimate.low:.{digits}{form}} to {estimate.high:.{digits}{form}}"


def quality_tables(result: QualityResult) -> RenderableType:
    """Every variant of a `quality` run beside the reference; then divergence and agreement by position and text."""
    conditions = result.run.conditions
    names = ", ".join(text["name"] for text in conditions["texts"])
    figures = (
        f"{len(conditions['windows'])} windows of {conditions['context']} tokens of {names}. Each figure is a mean "
        f"over positions, below it its {conditions['bootstrap']['confidence']:.0%} interval (bootstrap over windows).\n"
        "KL divergence and shift are in nat and, like agreement, against the first row."
    )
    all_of_it = Table("model", "MB", "perplexity", "times the first", "KL divergence", title="Quality")
    for name in ("its p99", "top-1 agreement", "largest shift"):
        all_of_it.add_column(name)
    all_of_it.add_row(
        _label(result.reference.label), _megabytes(conditions["reference"]), with_interval(result.perplexity, 3)
    )
    for c in result.comparisons:
        all_of_it.add_row(
            _label(c.variant.label),
            _megabytes(c.facts),
            with_interval(c.perplexity, 3),
            with_interval(c.perplexity_ratio, 4),
            with_interval(c.mean(c.scores.divergence), 3, significant=True),
            f"{c.divergence_p99:.3g}",
            with_interval(c.mean(c.scores.agrees), 4),
            f"{c.largest_shift:.3g}",
        )
    buckets = [bucket_name(bucket) for bucket in result.buckets]
    divergence = Table("model", *buckets, title="KL divergence by position")
    agreement = Table("model", *buckets, title="Top-1 agreement by position")
    for c in result.comparisons:
        label = _label(c.variant.label)
        cells = [c.mean(c.scores.divergence, bucket) for bucket in result.buckets]
        divergence.add_row(label, *(with_interval(cell, 3, significant=True) for cell in cells))
        cells = [c.mean(c.scores.agrees, bucket) for bucket in result.buckets]
        agreement.add_row(label, *(with_interval(cell, 4) for cell in cells))
    by_text = [_quality_by_text(result)] if len(conditions["texts"]) > 1 else []
    return Group(heading(result.run, figures), all_of_it, divergence, agreement, *by_text)


def _quality_by_text(result: QualityResult) -> Table:
    table = Table("model", "text", "perplexity", "KL divergence", "top-1 agreement", title="By text")
    for c in result.comparisons:
        for text in dict.fromkeys(c.texts):
            table.add_row(
                _label(c.variant.label),
                text,
                with_interval(c.mean(c.scores.loss, text=text).map(perplexity), 3),
                with_interval(c.mean(c.scores.divergence, text=text), 3, significant=True),
                with_interval(c.mean(c.scores.agrees, text=text), 4),
            )
    return table


def _label(label: str) -> str:
    """Model and settings, each on a line of its own."""
    model, _, settings = label.rpartition(":")
    return f"{model}\n{settings}"


def _megabytes(facts: Mapping[str, Any]) -> str:
    return f"{facts['file_bytes'] / 1e6:.1f}"


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


def latency_table(runs: Iterable[Latencies]) -> RenderableType:
    """What requests of recorded runs took, in milliseconds, as median and 99th percentile."""
    runs = list(runs)
    table = Table("", *(run.name for run in runs), title="Milliseconds, median / 99 %")
    table.add_row("requests", *(str(run.requests) for run in runs))
    counts = (("failed", "failed"), ("empty answers", "empty"), ("sent late", "late"))
    for label, member in counts:
        if any(getattr(run, member) for run in runs):
            table.add_row(label, *(str(getattr(run, member)) for run in runs))
    for figure in runs[0].values if runs else ():
        if any(run.values[figure] for run in runs):
            table.add_row(figure, *(_two_quantiles(run, figure) for run in runs))
    return table


def _two_quantiles(run: Latencies, figure: str) -> str:
    values = [run.quantile(figure, q) for q in (0.5, 0.99)]
    return "not known" if None in values else " / ".join(f"{1e3 * value:,.2f}" for value in values if value is not None)
