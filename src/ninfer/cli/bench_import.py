"""`ninfer bench import`: what other programs measured, as records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ninfer.cli.output import write_answer


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--name", help="Name of the run in reports. [default: the file's]")
@click.option(
    "--fact",
    "facts",
    metavar="NAME=VALUE",
    multiple=True,
    help="A fact that the file does not state, repeatable: `machine.processor=Xeon`. VALUE is JSON, or else a string.",
)
@click.option(
    "--declare",
    "labels",
    metavar="LABEL",
    multiple=True,
    help="Your word that runs with this label agree in every fact that is not stated; reports say so.",
)
@click.option("--by", default="the importer", show_default=True, help="Whose word --declare is.")
@click.option(
    "--warmups", type=click.IntRange(min=0), default=0, show_default=True, help="Requests at the start to set apart."
)
def command(
    file: Path, out: Path, name: str | None, facts: tuple[str, ...], labels: tuple[str, ...], by: str, warmups: int
) -> None:
    """Make records in OUT from a request log of the C++ NInfer, JSON of llama-bench, or a result of vLLM's benchmark.

    What the file does not state counts as unrecorded, and what has no place in a record is kept beside it. A file of
    several runs (server starts, settings) becomes several records.
    """
    from ninfer.bench.imports.importing import Additions, import_file
    from ninfer.bench.records.facts import Declaration

    declarations = [Declaration(label=label, by=by) for label in labels]
    additions = Additions(dict(parse_fact(text) for text in facts), declarations, warmups)
    for directory in import_file(file, out, name, additions):
        write_answer(f"{directory}\n")


def parse_fact(text: str) -> tuple[str, Any]:
    """Name and value of a fact as it was typed; UsageError without an equals sign."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--fact must be NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
