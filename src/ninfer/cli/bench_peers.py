"""`ninfer bench peers`: the same model in other engines, in turns."""

from __future__ import annotations

import json
import sys
from typing import get_args

import click

from ninfer.backends.options import Numerics


@click.command("peers")
@click.argument("gguf", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--peer",
    "engines",
    type=click.Choice(["llama.cpp", "ik_llama.cpp"]),
    multiple=True,
    help="Engine to compare with, repeatable. [default: both]",
)
@click.option(
    "--peer-python",
    multiple=True,
    metavar="PATH",
    help="The interpreter that has it, ENGINE=PATH or PATH for all, repeatable. [default: this one]",
)
@click.option("--work", "pattern", help="Only work whose name contains this, for example 'decode'.")
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True, help="Threads of every engine.")
@click.option("--rounds", type=click.IntRange(min=1), default=7, show_default=True, help="Interleaved rounds.")
@click.option(
    "--numerics",
    type=click.Choice(get_args(Numerics)),
    default="a8",
    show_default=True,
    help="Our numeric profile; a8g32 rounds activations as both peers do.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object with all raw values.")
def command(
    gguf: str,
    engines: tuple[str, ...],
    peer_python: tuple[str, ...],
    pattern: str | None,
    threads: int,
    rounds: int,
    numerics: str,
    as_json: bool,
) -> None:
    """Our engine beside llama.cpp and ik_llama.cpp on one GGUF file: best settings each, then rounds A B C A B C.

    A peer that is not installed is named as missing. Peers come with `pip install 'ninfer[peers]'`, or live in another
    environment that --peer-python names.
    """
    from pathlib import Path

    from ninfer.bench import peers, rendering
    from ninfer.bench.engine import DEFAULT_SETTINGS
    from ninfer.bench.workload import DEFAULT_WORK
    from ninfer.convert.library import resolve_model

    def progress(text: str) -> None:
        click.echo(text, err=True)

    everywhere = next((entry for entry in peer_python if "=" not in entry), sys.executable)
    by_engine = dict(entry.split("=", 1) for entry in peer_python if "=" in entry)
    unknown = sorted(set(by_engine) - {"llama.cpp", "ik_llama.cpp"})
    if unknown:
        raise click.UsageError(f"--peer-python names {', '.join(unknown)}; peers are llama.cpp and ik_llama.cpp")
    work = [piece for piece in DEFAULT_WORK if pattern is None or pattern in piece.name]
    if not work:
        raise click.UsageError(f"no work is called {pattern!r}; there is {', '.join(w.name for w in DEFAULT_WORK)}")
    contenders = [
        peers.own(resolve_model(gguf, progress), {**DEFAULT_SETTINGS, "numerics": numerics}),
        *(
            peers.peer(engine, by_engine.get(engine, everywhere), Path(gguf))
            for engine in engines or ("llama.cpp", "ik_llama.cpp")
        ),
    ]
    result = peers.measure(contenders, work=work, threads=threads, rounds=rounds, progress=progress)
    if as_json:
        click.echo(json.dumps(result.to_json()))
    else:
        rendering.print_tables(rendering.peers_tables(result))
