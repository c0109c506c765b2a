"""`ninfer bench`: measuring tools. Tables (or one JSON object) on standard output, progress on standard error."""

from __future__ import annotations

import click

from ninfer.cli.lazy import LazyGroup

TOOLS: dict[str, str] = {
    "ceilings": "ninfer.cli.bench_ceilings",
    "ops": "ninfer.cli.bench_ops",
    "engine": "ninfer.cli.bench_engine",
    "quality": "ninfer.cli.bench_quality",
    "peers": "ninfer.cli.bench_peers",
}
"""Tool -> the module whose `command` implements it, from the machine outwards."""


@click.group("bench", cls=LazyGroup, modules=TOOLS, no_args_is_help=True)
def command() -> None:
    """Measure this machine, our kernels, the engine, the quality of models, and the engine's peers."""
