"""`ninfer convert SRC OUT`: another model file to .ninfer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ninfer import formats
from ninfer.cli.output import bytes_text, notice, write_answer
from ninfer.cli.progress import ProgressBar
from ninfer.convert.recipes import RECIPES

if TYPE_CHECKING:
    from ninfer.convert.report import ConversionReport, TensorReport

MOST_LINES_PER_CHANGE = 8
"""Tensors of the same source type and format that are named one by one; more are counted in one line."""


@click.command("convert")
@click.argument("src")
@click.argument("out")
@click.option("--weights", type=click.Choice(formats.NAMES), help="Store all weight matrices so.")
@click.option(
    "--recipe",
    type=click.Choice(tuple(RECIPES)),
    help=f"Choose formats by place. {'; '.join(f'{r.name}: {r.summary}' for r in RECIPES.values())}.",
)
@click.option("--target", metavar="MODEL", help="The .ninfer model that the draft SRC drafts for.")
def command(src: str, out: str, weights: str | None, recipe: str | None, target: str | None) -> None:
    """Write the model SRC, a .gguf file or a Hugging Face directory, as the .ninfer file OUT.

    Without --weights and --recipe, of which one may be given, nothing is requantised: what ninfer stores bit for bit
    stays as it is, the rest is dequantised to q8g32 and the error this introduces is reported. OUT appears whole or
    not at all.

    A DFlash or DFlash2 draft, as its authors publish it, needs --target: the file OUT attaches to that model only.
    """
    from ninfer.convert.convert import convert

    with ProgressBar(f"converting {src}") as bar:
        report = convert(src, out, weights=weights, recipe=recipe, target_model=target, progress=bar.update)
    for line in report_lines(report):
        notice(line)
    write_answer(f"{report.path}\n")


def report_lines(report: ConversionReport) -> list[str]:
    """What a conversion did, for a person: the file, then notes, then whose values changed."""
    sizes = f"{bytes_text(report.source_bytes)} -> {bytes_text(report.file_bytes)} bytes"
    kept = len(report.tensors) - len(report.inexact)
    lines = [f"{report.path}: {kept} of {len(report.tensors)} tensors kept exactly, {sizes}", *report.notes]
    changes: dict[tuple[str, str], list[TensorReport]] = {}
    for tensor in report.inexact:
        changes.setdefault((tensor.source_type, tensor.format), []).append(tensor)
    for (source, target), tensors in changes.items():
        if len(tensors) <= MOST_LINES_PER_CHANGE:
            lines += [f"{tensor.name}: {source} -> {target}, {_errors([tensor])}" for tensor in tensors]
        else:
            lines.append(f"{len(tensors)} tensors: {source} -> {target}, {_errors(tensors)}")
    return lines


def _errors(tensors: Sequence[TensorReport]) -> str:
    """The largest errors of some tensors, and where, if they are several."""
    worst = max(tensors, key=lambda tensor: tensor.relative_rms_error)
    place = f" at most ({worst.name})" if len(tensors) > 1 else ""
    largest = max(tensor.max_error for tensor in tensors)
    return f"relative RMS error {worst.relative_rms_error:.3g}{place}, largest {largest:.3g}"
