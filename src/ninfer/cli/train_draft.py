"""`ninfer train-draft`: draft heads for a model of one's own, made on this machine."""

from __future__ import annotations

import click

from ninfer.cli.lazy import LazyGroup

KINDS: dict[str, str] = {"mtp": "ninfer.cli.train_mtp"}


@click.group("train-draft", cls=LazyGroup, modules=KINDS, no_args_is_help=True)
def command() -> None:
    """Train a draft for a model; needs the extra `torch`."""
