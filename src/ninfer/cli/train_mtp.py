"""`ninfer train-draft mtp`: from a model and prompts to a draft companion with its measured acceptance."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ninfer import formats
from ninfer.cli.fields import field_options, field_values
from ninfer.cli.models import find_model
from ninfer.cli.output import bytes_text, notice, write_answer
from ninfer.cli.progress import ProgressBar
from ninfer.errors import ConfigError, UnsupportedError
from ninfer.training.prompts import load_prompts
from ninfer.training.settings import DataSettings, TrainSettings

if TYPE_CHECKING:
    from ninfer.training.evaluate import Acceptance


@click.command("mtp")
@click.option("--target", required=True, metavar="MODEL", help="The model to draft for, as MODEL elsewhere.")
@click.option(
    "--data",
    "prompts",
    default="own",
    show_default=True,
    metavar="PROMPTS",
    help="Prompts: our own, or a file with one JSON object per line: text, workload, held_out.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The companion to write.")
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    help="Directory of responses, hidden rows and checkpoints, where a stopped run goes on.  [default: OUT.work]",
)
@click.option(
    "--weights", type=click.Choice(formats.NAMES), default="q8g32", show_default=True, help="Format of its matrices."
)
@field_options(DataSettings)
@field_options(TrainSettings)
def command(target: str, prompts: str, out: Path, work: Path | None, weights: str, **settings: Any) -> None:
    """Train an MTP head that drafts for a model, and measure what the model accepts of it.

    The model answers all prompts itself; the head learns to continue its hidden rows to the tokens it chose. Prints
    a table of acceptance on the held-out prompts (docs/training-drafts.md says what the columns mean).
    """
    if out.suffix != ".ninfer":
        raise ConfigError(f"--out {out} must end with .ninfer")
    data = DataSettings(**field_values(DataSettings, settings))
    training = TrainSettings(**field_values(TrainSettings, settings))
    texts = load_prompts(prompts)
    if importlib.util.find_spec("torch") is None:
        raise UnsupportedError("training needs torch, which is not installed: pip install 'ninfer[torch]'")
    from ninfer.artifact import Artifact
    from ninfer.training.export import export_mtp
    from ninfer.training.pipeline import describe, train_mtp

    with Artifact.open(find_model(target)) as artifact:
        work = work or out.with_suffix(".work")
        trained = train_mtp(artifact, texts, work, data, training, _bar)
        record = {**describe(trained), "prompts": prompts, "data": asdict(data), "settings": asdict(training)}
        head = trained.training.head
        export_mtp(out, head, trained.shortlist, artifact, weights=weights, training=record)
    notice(f"{out}: {bytes_text(out.stat().st_size)} bytes")
    write_answer(acceptance_table(trained.acceptance))


def acceptance_table(rows: Sequence[Acceptance]) -> str:
    """One line per workload: tokens per round, then the position acceptance of every draft token."""
    window = rows[0].window
    header = ("workload", "window", "rounds", "tokens per round", *(f"position {i + 1}" for i in range(window)))
    lines = [header]
    for row in rows:
        shares = [f"{share:.3f}" for share in row.position_acceptance]
        lines.append((row.workload, str(window), str(row.rounds), f"{row.tokens_per_round:.2f}", *shares))
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "".join(text.rstrip() + "\n" for text in texts)


def _bar(title: str) -> AbstractContextManager[ProgressBar]:
    return ProgressBar(title, counts="pieces")
