"""`ninfer bench ceilings`: what this machine can do at best."""

from __future__ import annotations

import json

import click


@click.command("ceilings")
@click.option(
    "--threads", type=click.IntRange(min=1), multiple=True, help="Thread count, repeatable. [default: 1, all]"
)
@click.option("--buffer-mib", type=click.IntRange(min=1), multiple=True, help="Read buffer in MiB, repeatable.")
@click.option("--repeats", type=click.IntRange(min=1), default=7, show_default=True, help="Timed repeats of each.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with all raw values.")
def command(threads: tuple[int, ...], buffer_mib: tuple[int, ...], repeats: int, as_json: bool) -> None:
    """Memory bandwidth with small and huge pages, arithmetic peaks, barrier latency, by thread count."""
    from ninfer.bench import ceilings, rendering

    run = ceilings.measure(
        threads=threads or None,
        buffers=[size * ceilings.MIB for size in buffer_mib] or ceilings.DEFAULT_BUFFERS,
        repeats=repeats,
        progress=lambda text: click.echo(text, err=True),
    )
    if as_json:
        click.echo(json.dumps(run.to_json()))
    else:
        rendering.print_tables(rendering.ceilings_tables(run))
