"""All runs side by side: what they are, their figures, their figures by scenario. Nothing here compares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ninfer.bench.compare.audit import loads_of, num_empty, num_truncated
from ninfer.bench.compare.comparison import Comparison
from ninfer.bench.compare.quantities import DECODE_RATE, END_TO_END_RATE, PREFILL_RATE, TTFT
from ninfer.bench.compare.split import rounds_of
from ninfer.bench.load.latency import Latencies, latencies
from ninfer.bench.records.reader import RunRecord
from ninfer.bench.records.schema import RequestRow
from ninfer.bench.report import plots
from ninfer.bench.report.document import Block, Heading, Paragraph, Plot, Table
from ninfer.bench.report.numbers import NOTHING, fact_text, fixed, percent, quantity_digits
from ninfer.bench.report.words import Words

PLANNED = "latency as planned"


def runs_section(comparison: Comparison, words: Words) -> Iterator[Block]:
    yield Heading(2, words("section runs"))
    partners: dict[str, list[str]] = {run.name: [] for run in comparison.runs}
    for pair in comparison.pairs:
        partners[pair.left.name].append(pair.right.name)
        partners[pair.right.name].append(pair.left.name)
    header = [words(key) for key in ("run", "engine", "artifact", "draft", "label", "unrecorded facts", "compared")]
    rows = [
        (
            run.name,
            _facts(run, words, "engine.name", "engine.version"),
            _facts(run, words, "artifact.name", "artifact.weights"),
            _facts(run, words, "draft.backend", "draft.tokens", "draft.head"),
            words.list([declaration.label for declaration in run.run.declarations]) or NOTHING,
            str(len(comparison.unstated[run.name])),
            words.list(partners[run.name]) or words("nobody"),
        )
        for run in comparison.runs
    ]
    yield Table(tuple(header), tuple(rows), is_text=True)


def overview_section(comparison: Comparison, words: Words) -> Iterator[Block]:
    yield Heading(2, words("section overview"))
    yield Paragraph(words("overview note"))
    lines: dict[str, list[str]] = {}
    for run in comparison.runs:
        for name, text in _overview_column(run, words):
            lines.setdefault(name, []).append(text)
    header = (words("quantity"), *(run.name for run in comparison.runs))
    yield Table(header, tuple((name, *cells) for name, cells in lines.items()))
    points = [
        plots.RoundPoint(run.name, rounds.tokens_per_round, 1000 * rounds.round_s)
        for run in comparison.runs
        if (rounds := rounds_of(run.run, run.measured)) is not None
    ]
    if points:
        title = words("plot rounds")
        yield Plot(plots.rounds_plot(points, title, words("plot rounds across"), words("plot rounds upwards")), title)


def latency_section(comparison: Comparison, words: Words) -> Iterator[Block]:
    """Percentiles of what a client waits for, by run; nothing where no run has any."""
    found = [latencies(run) for run in comparison.runs]
    figures = [figure for figure in found[0].values if any(of_run.values[figure] for of_run in found)]
    if not figures:
        return
    rows = [(words(f"latency {figure}"), *(_percentiles(of_run, figure) for of_run in found)) for figure in figures]
    if any(of_run.values[PLANNED] for of_run in found):
        rows.append((words("late"), *(f"{of_run.late} / {of_run.requests}" for of_run in found)))
    yield Paragraph(words("latency note"))
    yield Table((words("latency"), *(run.name for run in comparison.runs)), tuple(rows))


def _percentiles(of_run: Latencies, figure: str) -> str:
    median, high = (of_run.quantile(figure, q) for q in (0.5, 0.99))
    return NOTHING if median is None or high is None else f"{fixed(1000 * median, 1)} / {fixed(1000 * high, 1)}"


def _overview_column(run: RunRecord, words: Words) -> Iterator[tuple[str, str]]:
    rows = [row for row in run.measured if row.error is None]
    prompt, completion = ([getattr(row.usage, name) for row in rows] for name in ("prompt_tokens", "completion_tokens"))
    yield words("prompt tokens"), _sum(prompt)
    yield words("completion tokens"), _sum(completion)
    yield words("all tokens"), _sum([*prompt, *completion])
    loads = [f"{fixed(seconds, 1)} ({words(state)})" for seconds, state in loads_of(run)]
    yield words("load s"), words.list(loads) or NOTHING
    totals = [row.seconds.total for row in rows]
    yield words("request s"), NOTHING if None in totals else fixed(sum(total or 0.0 for total in totals), 1)
    for quantity in (PREFILL_RATE, DECODE_RATE, END_TO_END_RATE, TTFT):
        yield words(quantity.name), fixed(quantity.of(rows), quantity_digits(quantity))
    rounds = rounds_of(run.run, rows)
    window = run.run.facts.get("draft.tokens")
    yield words("draft window"), words("unrecorded") if window is None else fact_text(window.value, "")
    yield words("acceptance"), percent(None if rounds is None else rounds.acceptance)
    yield words("tokens_per_round"), fixed(None if rounds is None else rounds.tokens_per_round, 2)
    yield words("round_time"), fixed(None if rounds is None else 1000 * rounds.round_s, 1)
    empty = num_empty(run)
    all_rows = len(run.measured)
    yield words("truncated"), f"{num_truncated(run)} / {all_rows}"
    yield words("empty"), words("unrecorded") if empty is None else f"{empty} / {all_rows}"
    yield words("failed"), f"{all_rows - len(rows)} / {all_rows}"


def scenarios_section(comparison: Comparison, words: Words) -> Iterator[Block]:
    yield Heading(2, words("section scenarios"))
    yield Paragraph(words("overview note"))
    values = {
        run.name: [DECODE_RATE.of(_rows_of(run, scenario)) for scenario in comparison.scenarios]
        for run in comparison.runs
    }
    rows = []
    for place, scenario in enumerate(comparison.scenarios):
        lengths = sorted({row.usage.prompt_tokens or 0 for run in comparison.runs for row in _rows_of(run, scenario)})
        span = f" {NOTHING} ".join(fixed(length, 0) for length in dict.fromkeys((*lengths[:1], *lengths[-1:])))
        rows.append((scenario, span or NOTHING, *(fixed(values[run.name][place], 2) for run in comparison.runs)))
    yield Table((words("scenario"), words("prompt tokens"), *(run.name for run in comparison.runs)), tuple(rows))
    series = [plots.Series(run.name, values[run.name]) for run in comparison.runs]
    if any(value is not None for one in series for value in one.values):
        title = words("plot scenarios")
        yield Plot(plots.dot_plot(comparison.scenarios, series, title, words("decode_rate")), title)


def _rows_of(run: RunRecord, scenario: str) -> list[RequestRow]:
    return [row for row in run.measured if row.error is None and run.prompts[row.prompt].scenario == scenario]


def _facts(run: RunRecord, words: Words, *names: str) -> str:
    """Values of facts, those that are not stated left out; "unrecorded" when none is."""
    stated = [run.run.facts[name].value for name in names if name in run.run.facts]
    return words.list([fact_text(value, "") for value in stated if value is not None]) or words("unrecorded")


def _sum(counts: Sequence[int | None]) -> str:
    return NOTHING if None in counts else fixed(sum(count or 0 for count in counts), 0)
