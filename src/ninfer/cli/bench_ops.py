"""`ninfer bench ops`: every kernel beside what limits it."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from ninfer.cli.fields import field_options
from ninfer.engine import EngineConfig


@click.command("ops")
@click.option("--op", "names", multiple=True, help="Only this op, repeatable. [default: all]")
@click.option("--rows", type=click.IntRange(min=1), multiple=True, help="Rows of a step, repeatable.")
@click.option("--depth", type=click.IntRange(min=0), multiple=True, help="KV length for attention, repeatable.")
@click.option("--format", "weight_formats", multiple=True, help="Weight format of products, repeatable.")
@field_options(EngineConfig, only=("numerics", "kv_dtype", "isa"))
@click.option("--threads", type=click.IntRange(min=1), help="Worker threads. [default: all CPUs of this process]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with all raw values.")
def command(
    names: tuple[str, ...],
    rows: tuple[int, ...],
    depth: tuple[int, ...],
    weight_formats: tuple[str, ...],
    numerics: Any,
    kv_dtype: Any,
    isa: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Time, GB/s and operations per second of every kernel, and its share of the memory and arithmetic ceilings."""
    from ninfer.bench import ops, rendering

    run = ops.measure(
        threads=threads or len(os.sched_getaffinity(0)),
        rows=rows or ops.DEFAULT_ROWS,
        depths=depth or ops.DEFAULT_DEPTHS,
        weight_formats=weight_formats or ops.DEFAULT_FORMATS,
        numerics=numerics,
        kv_format=kv_dtype,
        isa=None if isa == "auto" else isa,
        ops=names,
        progress=lambda text: click.echo(text, err=True),
    )
    if as_json:
        click.echo(json.dumps(run.to_json()))
    else:
        rendering.print_tables(rendering.ops_tables(run))
