"""`ninfer bench score`: how many answers of recorded runs are right."""

from __future__ import annotations

from pathlib import Path

import click

from ninfer.cli.output import write_answer, write_json


@click.command("score")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object with the verdict on every answer.")
def command(runs: tuple[Path, ...], as_json: bool) -> None:
    """Judge the answers of runs of a suite whose prompts say how they are checked, such as `tasks`.

    RUN is the directory of a record, or a directory of several. Python code of answers runs in a process without a
    network, with limits of time and memory; where that is not possible, such answers stay unjudged. Failed requests
    count as not right. A share is shown with its 95 % interval: with few tasks it is wide.
    """
    from ninfer.bench.records.verify import read_verified
    from ninfer.bench.report.document import Document, Table
    from ninfer.bench.report.markdown import to_markdown
    from ninfer.bench.tasks.score import Tally, score_run
    from ninfer.cli.bench_compare import find_records

    scores = [score_run(read_verified(directory)) for run in runs for directory in find_records(run)]
    if as_json:
        write_json({"scores": [score.to_json() for score in scores]})
        return

    def text(tally: Tally) -> str:
        if tally.share is None or tally.interval is None:
            return f"{tally.unjudged} unjudged"
        low, high = tally.interval
        notes = [f"{tally.unjudged} unjudged"] * bool(tally.unjudged) + [f"{tally.cut} cut"] * bool(tally.cut)
        share = f"{tally.right} / {tally.judged} ({100 * low:.0f} \u2013 {100 * high:.0f} %)"
        return ", ".join([share, *notes])

    def row(name: str, scenario: str | None) -> tuple[str, ...]:
        return (name, *(text(score.tally(scenario)) for score in scores))

    scenarios = dict.fromkeys(name for score in scores for name in score.scenarios)
    rows = (*(row(name, name) for name in scenarios), row("all", None))
    table = Table(("right answers", *(score.name for score in scores)), rows)
    write_answer(to_markdown(Document("Right answers", "en", (table,))))
