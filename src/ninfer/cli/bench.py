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
    "scenarios": "ninfer.cli.bench_scenarios",
    "sweep": "ninfer.cli.bench_sweep",
    "import": "ninfer.cli.bench_import",
    "score": "ninfer.cli.bench_score",
    "compare": "ninfer.cli.bench_compare",
    "verify": "ninfer.cli.bench_verify",
}
"""Tool -> the module whose `command` implements it: what measures, from the machine outwards; what reads records."""


@click.group("bench", cls=LazyGroup, modules=TOOLS, no_args_is_help=True)
def command() -> None:
    """Measure machine, kernels, engine, models and peers; record runs and judge them."""
