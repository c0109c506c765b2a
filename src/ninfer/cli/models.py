"""MODEL of a command line: to a .ninfer file, with notices and progress on stderr."""

from __future__ import annotations

from pathlib import Path

from ninfer.cli.output import notice
from ninfer.cli.progress import ProgressBar
from ninfer.convert.library import resolve_model


def find_model(name: str) -> Path:
    """The .ninfer file of an alias, a file or a directory; a source of another kind is converted into the cache first.

    Raises what `resolve_model` raises.
    """
    with ProgressBar(f"converting {name}") as bar:
        return resolve_model(name, notice, bar.update)
