"""`ninfer bench`: measuring tools. Tables (or one JSON object) on standard output, progress on standard error."""

from __future__ import annotations

from importlib import import_module

import click

TOOLS: dict[str, str] = {
    "ceilings": "ninfer.cli.bench_ceilings",
    "engine": "ninfer.cli.bench_engine",
    "peers": "ninfer.cli.bench_peers",
}
"""Tool -> the module whose `command` implements it, from the machine outwards."""


class LazyTools(click.Group):
    """A group whose tools are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(TOOLS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in TOOLS:
            return None
        command: click.Command = import_module(TOOLS[cmd_name]).command
        return command


@click.command(cls=LazyTools, no_args_is_help=True)
def command() -> None:
    """Measure this machine, our kernels, the engine and its peers."""
