"""`ninfer convert SRC OUT`: another model file to .ninfer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ninfer import formats
from ninfer.cli.output import bytes_text, notice, write_answer
from ninfer.cli.progress import ProgressBar

if TYPE_CHECKING:
    from ninfer.convert.report import ConversionReport


@click.command("convert")
@click.argument("src")
@click.argument("out")
@click.option("--weights", type=click.Choice(formats.NAMES), help="Store all weight matrices so.")
def command(src: str, out: str, weights: str | None) -> None:
    """Write the model SRC, a .gguf file or a Hugging Face directory, as the .ninfer file OUT.

    Without --weights nothing is requantised: GGUF types that ninfer stores bit for bit stay as they are, others are
    dequantised to q8g32 and the error this introduces is reported. OUT appears whole or not at all.
    """
    from ninfer.convert.convert import convert

    with ProgressBar(f"converting {src}") as bar:
        report = convert(src, out, weights=weights, progress=bar.update)
    for line in report_lines(report):
        notice(line)
    write_answer(f"{report.path}\n")


def report_lines(report: ConversionReport) -> list[str]:
    """What a conversion did, for a person: the file, then notes, then every tensor whose values changed."""
    sizes = f"{bytes_text(report.source_bytes)} -> {bytes_text(report.file_bytes)} bytes"
    kept = len(report.tensors) - len(report.inexact)
    lines = [f"{report.path}: {kept} of {len(report.tensors)} tensors kept exactly, {sizes}", *report.notes]
    for tensor in report.inexact:
        lines.append(
            f"{tensor.name}: {tensor.source_type} -> {tensor.format}, relative RMS error "
            f"{tensor.relative_rms_error:.3g}, largest {tensor.max_error:.3g}"
        )
    return lines
