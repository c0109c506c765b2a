"""`ninfer bench engine`: our engine, step by step and from the outside."""

from __future__ import annotations

import json
import os

import click

from ninfer.cli.fields import field_options
from ninfer.engine import EngineConfig


@click.command("engine")
@click.argument("model")
@click.option("--threads", type=click.IntRange(min=1), help="Worker threads. [default: all CPUs of this process]")
@click.option("--processes", type=click.IntRange(min=1), default=3, show_default=True, help="Fresh processes.")
@field_options(EngineConfig, only=("numerics", "kv_dtype", "weights_memory", "isa"))
@click.option("--json", "as_json", is_flag=True, help="One JSON object with all raw values.")
def command(
    model: str,
    threads: int | None,
    processes: int,
    as_json: bool,
    **settings: str,
) -> None:
    """Prefill, decode at several depths, rows, batch; loads and starts cold and warm; peak memory.

    MODEL is what `ninfer run` takes.
    """
    from ninfer.bench import engine, rendering
    from ninfer.convert.library import resolve_model

    def progress(text: str) -> None:
        click.echo(text, err=True)

    run = engine.measure(
        resolve_model(model, progress),
        threads=threads or len(os.sched_getaffinity(0)),
        settings={**engine.DEFAULT_SETTINGS, **settings},
        processes=processes,
        progress=progress,
    )
    if as_json:
        click.echo(json.dumps(run.to_json()))
    else:
        rendering.print_tables(rendering.engine_tables(run))
