"""`ninfer bench compare`: what may be concluded from records of runs, as a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from ninfer.bench.report.words import Language
from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.output import notice, write_answer, write_json

if TYPE_CHECKING:
    from ninfer.bench.compare.comparison import Comparison


@click.command("compare")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--lang", type=click.Choice(get_args(Language)), default="en", show_default=True, help="Language of the report."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object with all figures unrounded.")
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write report.md, report.html (one page, with plots) and report.json there, instead of standard output.",
)
@click.option(
    "--summary",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Add the conclusions to this file of JSON lines, and rewrite the page beside it (same name, .md).",
)
@click.option("--name", help="What the summary calls this comparison. [default: the directory of the first run]")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of bootstrap intervals.")
def command(
    runs: tuple[Path, ...],
    lang: Language,
    as_json: bool,
    out: Path | None,
    summary: Path | None,
    name: str | None,
    seed: int,
) -> int:
    """Compare runs that differ in one thing, with verdicts and their uncertainty; name all others apart.

    RUN is the directory of a record, or a directory of several. Every record is verified first. Two runs that agree in
    every fact show repeatability; that differ in exactly one, a controlled comparison; otherwise, or when a fact was
    not recorded, they are listed beside each other and never ranked. Exits with code 6 when a check makes a verdict
    invalid.
    """
    from ninfer.bench.compare.comparison import compare
    from ninfer.bench.records.verify import read_verified
    from ninfer.bench.report.comparison_report import comparison_document
    from ninfer.bench.report.json_report import comparison_json
    from ninfer.bench.report.markdown import to_markdown
    from ninfer.bench.report.summary import add_campaign

    comparison = compare([read_verified(directory) for run in runs for directory in find_records(run)], seed=seed)
    if as_json:
        write_json(comparison_json(comparison))
    elif out is None:
        write_answer(to_markdown(comparison_document(comparison, lang)))
    if out is not None:
        write_reports(comparison, lang, out)
        notice(f"the report is in {out}: report.html, report.md, report.json")
    if summary is not None:
        is_new = add_campaign(summary, comparison, name or runs[0].resolve().name, lang)
        notice(f"{'added to' if is_new else 'already in'} {summary}")
    return ExitCode.INVALID if is_invalid(comparison) else ExitCode.OK


def find_records(path: Path) -> list[Path]:
    """`path` if it is a record, else the records in it, by name; `path` itself when it has none."""
    if (path / "run.json").exists():
        return [path]
    return sorted(child.parent for child in path.glob("*/run.json")) or [path]


def write_reports(comparison: Comparison, lang: Language, out: Path) -> None:
    """The report in all its forms, in the directory `out`."""
    from ninfer.bench.report.comparison_report import comparison_document
    from ninfer.bench.report.html import to_html
    from ninfer.bench.report.json_report import comparison_json
    from ninfer.bench.report.markdown import to_markdown

    out.mkdir(parents=True, exist_ok=True)
    document = comparison_document(comparison, lang)
    (out / "report.md").write_text(to_markdown(document), encoding="utf-8")
    (out / "report.html").write_text(to_html(document), encoding="utf-8")
    text = json.dumps(comparison_json(comparison), indent=1, allow_nan=False)
    (out / "report.json").write_text(text + "\n", encoding="utf-8")


def is_invalid(comparison: Comparison) -> bool:
    """Whether a check made a verdict invalid, or a run unfit for any."""
    of_runs = (finding for findings in comparison.findings.values() for finding in findings)
    of_pairs = (finding for pair in comparison.pairs for finding in pair.findings)
    return any(finding.weight == "invalidates" for finding in (*of_runs, *of_pairs))
