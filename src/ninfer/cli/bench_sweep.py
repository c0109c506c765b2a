"""`ninfer bench sweep`: peaks and sustained rates over grids of settings and work."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ninfer.cli.fields import field_options, field_values
from ninfer.cli.output import notice, write_answer
from ninfer.engine import EngineConfig

if TYPE_CHECKING:
    from ninfer.bench.sweep.grids import Grid


class Counts(click.ParamType):
    """Whole numbers separated by commas."""

    name = "counts"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "N,N,..."

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        try:
            return [int(word) for word in str(value).split(",")]
        except ValueError:
            self.fail(f"{value!r} is no list like 512,2048", param, ctx)


@click.command("sweep")
@click.argument("kind", type=click.Choice(["prefill", "decode", "concurrency", "context"]))
@click.argument("model")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Where runs are recorded.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Samples of every cell.")
@click.option("--chunks", type=Counts(), default="128,512", show_default=True, help="prefill: prompt tokens per step.")
@click.option("--lengths", type=Counts(), default="128,512,1024", show_default=True, help="prefill: prompt tokens.")
@click.option("--windows", type=Counts(), default="0", show_default=True, help="decode: draft windows; 0 is without.")
@click.option("--contexts", type=Counts(), default="256,1024", show_default=True, help="decode: prompt tokens, about.")
@click.option("--workload", "workloads", multiple=True, help="decode: repeatable. [default: prose, json, code, copy]")
@click.option("--levels", type=Counts(), default="1,2,4,8", show_default=True, help="concurrency: requests in flight.")
@click.option("--prompt-length", type=int, default=64, show_default=True, help="concurrency: prompt tokens.")
@click.option("--max-new", type=int, default=128, show_default=True, help="decode, concurrency: tokens of an answer.")
@field_options(EngineConfig, without=("prefix_reuse", "draft_tokens"))
def command(kind: str, model: str, out: Path, rounds: int, **settings: Any) -> int:
    """Measure peak and sustained rates: an engine per setting, all settings in every round, every sample recorded.

    KIND is prefill (prompt length by chunk), decode (workload and context by draft window, drafts as --spec says),
    concurrency (all answers together by lanes), or context (the largest contexts that start here).

    Writes KIND.md, .html, .csv and .json beside the records; the same command again goes on where it was interrupted.
    Answers are never cut short by the model's end, and a cell that has too few tokens gets no rate.
    """
    from ninfer.bench.report.markdown import to_markdown
    from ninfer.bench.sweep.report import sweep_document, write_reports
    from ninfer.bench.sweep.results import sweep_result
    from ninfer.bench.sweep.running import run_grid
    from ninfer.cli.models import find_model
    from ninfer.cli.progress import ProgressBar

    path = find_model(model)
    base = EngineConfig(**field_values(EngineConfig, settings))
    out.mkdir(parents=True, exist_ok=True)
    if kind == "context":
        return _context(path, base, out)
    grid = _grid(kind, path, settings)
    if kind == "decode" and base.spec != "off":
        base = replace(base, spec="off")  # each window brings its own
    with ProgressBar(f"sweep {kind}", counts="pieces") as bar:
        places = asyncio.run(run_grid(path, base, grid, out, rounds=rounds, on_progress=bar.update))
    result = sweep_result(grid, places)
    write_reports(result, out)
    write_answer(to_markdown(sweep_document(result)))
    notice(f"{kind}.md, .html, .csv and .json are in {out}, beside the records of {len(places)} runs")
    return 0


def _grid(kind: str, path: Path, settings: dict[str, Any]) -> Grid:
    from ninfer.artifact import Artifact
    from ninfer.bench.load.suite import load_suite
    from ninfer.bench.sweep.grids import concurrency_grid, decode_grid, prefill_grid
    from ninfer.models.registry import read_config
    from ninfer.text.frontend import load_frontend

    with Artifact.open(path) as artifact:
        vocab_size = read_config(artifact.architecture, artifact.config, file=path).vocab_size
        if kind == "prefill":
            return prefill_grid(settings["chunks"], settings["lengths"], vocab_size=vocab_size)
        if kind == "concurrency":
            length, max_new = settings["prompt_length"], settings["max_new"]
            return concurrency_grid(settings["levels"], length, max_new=max_new, vocab_size=vocab_size)
        _, template = load_frontend(artifact.find_resource)
    if template is None:
        raise click.UsageError(f"{path} has no chat template, so there is nothing to put workloads into")
    return decode_grid(
        settings["windows"],
        settings["contexts"],
        load_suite("workloads"),
        settings["workloads"] or ("prose", "json", "code", "copy"),
        drafts=settings["spec"],
        max_new=settings["max_new"],
        count_tokens=lambda messages: len(template.encode(messages)),
    )


def _context(path: Path, base: EngineConfig, out: Path) -> int:
    from ninfer.bench.report.document import Document, Table
    from ninfer.bench.report.markdown import to_markdown
    from ninfer.bench.sweep.contexts import context_ceilings

    ceilings = context_ceilings(path, base, notice)
    header = ("KV format", "trained", "planned", "started", "one token more")
    rows = tuple(
        (c.kv_dtype, str(c.trained), str(c.planned or "none"), str(c.started or "none"), c.refused or "")
        for c in ceilings
    )
    text = to_markdown(Document("Largest contexts that start here", "en", (Table(header, rows, is_text=True),)))
    (out / "context.md").write_text(text, encoding="utf-8")
    (out / "context.json").write_text(json.dumps([c.to_json() for c in ceilings], indent=1) + "\n", encoding="utf-8")
    write_answer(text)
    notice(f"context.md and context.json are in {out}")
    return 0
