"""The directory where converted and downloaded models are kept, and locks on what is in it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ninfer.errors import ConfigError

Notice = Callable[[str], None]
"""Told, in one line, about work that takes time."""


def cache_dir() -> Path:
    """`NINFER_CACHE`, or `ninfer` in `XDG_CACHE_HOME`, or `~/.cache/ninfer`. It need not exist."""
    own = os.environ.get("NINFER_CACHE")
    if own:
        return Path(own).absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    # The XDG rules say that a relative path here is to be ignored.
    base = Path(shared) if shared and os.path.isabs(shared) else Path.home() / ".cache"
    return base / "ninfer"


def make_directory(name: str) -> Path:
    """The subdirectory `name` of the cache, made if need be; ConfigError if that is not possible."""
    directory = cache_dir() / name
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the model cache {directory} cannot be made ({error.strerror}); NINFER_CACHE names another place"
        ) from error
    return directory


@contextmanager
def locked(name: str, notice: Notice) -> Iterator[None]:
    """Hold the lock `name` against other processes and threads; waits for it, and tells so.

    The system frees a lock when its holder dies, so a crash leaves nothing to clean up.
    """
    path = make_directory("locks") / f"{name}.lock"
    with _open_lock(path) as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            notice("waiting for another process that prepares the same model")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _open_lock(path: Path) -> BinaryIO:
    try:
        return open(path, "ab")
    except OSError as error:
        raise ConfigError(f"{path} cannot be opened: {error.strerror}") from error
