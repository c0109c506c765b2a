"""`ninfer bench engine`: our engine, step by step and from the outside."""

from __future__ import annotations

import json
import os

import click


@click.command("engine")
@click.argument("model")
@click.option("--threads", type=click.IntRange(min=1), help="Worker threads. [default: all CPUs of this process]")
@click.option("--processes", type=click.IntRange(min=1), default=3, show_default=True, help="Fresh processes.")
@click.option("--numerics", type=click.Choice(["a8", "f32"]), default="a8", show_default=True)
@click.option("--kv-dtype", type=click.Choice(["int8", "bf16"]), default="int8", show_default=True)
@click.option("--weights-memory", type=click.Choice(["auto", "huge", "mapped"]), default="auto", show_default=True)
@click.option("--isa", default="auto", show_default=True, help="Instruction set of the kernels.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with all raw values.")
def command(
    model: str,
    threads: int | None,
    processes: int,
    numerics: str,
    kv_dtype: str,
    weights_memory: str,
    isa: str,
    as_json: bool,
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
        settings={
            **engine.DEFAULT_SETTINGS,
            "numerics": numerics,
            "kv_dtype": kv_dtype,
            "weights_memory": weights_memory,
            "isa": isa,
        },
        processes=processes,
        progress=progress,
    )
    if as_json:
        click.echo(json.dumps(run.to_json()))
    else:
        rendering.print_tables(rendering.engine_tables(run))
