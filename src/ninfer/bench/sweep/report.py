"""A sweep as tables, CSV, JSON and a plot, all from the same result."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from ninfer.bench.report.document import Block, Bullets, Document, Heading, Paragraph, Plot, Table
from ninfer.bench.report.html import to_html
from ninfer.bench.report.markdown import to_markdown
from ninfer.bench.report.numbers import fixed, percent
from ninfer.bench.report.plots import Series, dot_plot
from ninfer.bench.sweep.results import Cell, SweepResult

TITLES = {
    "prefill": "Prefill by prompt length and chunk",
    "decode": "Decode by workload, context and draft window",
    "concurrency": "All answers together by lanes",
}


def sweep_document(result: SweepResult) -> Document:
    """The whole sweep; every figure that is not given has its reason in a list below the tables."""
    rows, columns = _names(result)
    blocks: list[Block] = [
        Paragraph(
            "tok/s. Peak is the best of repeated exact rates of whole requests; sustained is all tokens over all "
            "seconds. Both stand behind one another as peak / sustained."
        ),
        Table((" \u00b7 ".join(result.prompt_axes) or result.kind, *columns), _matrix(result, _rate_text)),
    ]
    if any(cell.acceptance is not None for cell in result.cells):
        blocks += [
            Heading(2, "What the rates are made of"),
            Paragraph("Tokens per round / round time in ms / acceptance: none means anything without the others."),
            Table((" \u00b7 ".join(result.prompt_axes), *columns), _matrix(result, _round_text)),
        ]
    refused = [f"{_cell_name(result, cell)}: {cell.refused}" for cell in result.cells if cell.refused]
    if refused:
        blocks += [Heading(2, "Not given"), Bullets(tuple(refused))]
    series = [Series(name, [cell.peak for cell in _column(result, place)]) for place, name in enumerate(columns)]
    svg = dot_plot(rows, series, TITLES[result.kind], "tok/s")
    blocks.append(Plot(svg, f"Peak rates: {TITLES[result.kind].lower()}."))
    return Document(TITLES[result.kind], "en", tuple(blocks))


def to_csv(result: SweepResult) -> str:
    """One line per cell, rates unrounded; the rates of single samples are joined by spaces."""
    axes = [result.setting_axis, *result.prompt_axes]
    names = ["peak", "sustained", "tokens_per_round", "round_s", "acceptance", "refused"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*axes, "samples", *names])
    for cell in result.cells:
        samples = " ".join(map(repr, cell.rates))
        writer.writerow([*(cell.axes[axis] for axis in axes), samples, *(getattr(cell, name) for name in names)])
    return text.getvalue()


def write_reports(result: SweepResult, directory: Path) -> None:
    """`<kind>.md`, `.html`, `.csv` and `.json` in `directory`."""
    document = sweep_document(result)
    texts = {
        "md": to_markdown(document),
        "html": to_html(document),
        "csv": to_csv(result),
        "json": json.dumps(result.to_json(), indent=1, allow_nan=False) + "\n",
    }
    for suffix, text in texts.items():
        (directory / f"{result.kind}.{suffix}").write_text(text, encoding="utf-8")


def _names(result: SweepResult) -> tuple[list[str], list[str]]:
    """What rows (work) and columns (settings) are called."""
    columns = dict.fromkeys(str(cell.axes[result.setting_axis]) for cell in result.cells)
    per_column = len(result.cells) // len(columns)
    rows = [" \u00b7 ".join(str(c.axes[a]) for a in result.prompt_axes) for c in result.cells[:per_column]]
    return [row or "all" for row in rows], [f"{result.setting_axis} {name}" for name in columns]


def _column(result: SweepResult, place: int) -> Sequence[Cell]:
    per_column = len(_names(result)[0])
    return result.cells[place * per_column : (place + 1) * per_column]


def _matrix(result: SweepResult, text_of: Callable[[Cell], str]) -> tuple[tuple[str, ...], ...]:
    rows, columns = _names(result)
    cells = [_column(result, place) for place in range(len(columns))]
    return tuple((row, *(text_of(column[line]) for column in cells)) for line, row in enumerate(rows))


def _rate_text(cell: Cell) -> str:
    return "refused" if cell.refused else f"{fixed(cell.peak, 1)} / {fixed(cell.sustained, 1)}"


def _round_text(cell: Cell) -> str:
    milliseconds = None if cell.round_s is None else 1e3 * cell.round_s
    return f"{fixed(cell.tokens_per_round, 2)} / {fixed(milliseconds, 2)} / {percent(cell.acceptance)}"


def _cell_name(result: SweepResult, cell: Cell) -> str:
    return ", ".join(f"{axis} {cell.axes[axis]}" for axis in (result.setting_axis, *result.prompt_axes))
