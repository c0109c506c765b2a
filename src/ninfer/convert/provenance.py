"""Where an artifact comes from: digests of what was read and the recipe. No times, no paths: equal in, equal out."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ninfer import __version__
from ninfer.convert.checkpoint import Checkpoint
from ninfer.convert.format_choice import FormatChoice
from ninfer.convert.recipe import RECIPE_VERSION
from ninfer.errors import ArtifactError, ConversionError

_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class SourceFile:
    """A file that was read, with what the system says about its state at that time."""

    path: Path
    nbytes: int
    modified_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> SourceFile:
        try:
            status = os.stat(path)
        except OSError as error:
            raise ArtifactError(f"cannot be read: {error.strerror}", file=path) from error
        return cls(path, status.st_size, status.st_mtime_ns, status.st_ino)

    def digests(self) -> dict[str, str]:
        """BLAKE2b-256 and SHA-256 of the content, hex."""
        blake, sha = hashlib.blake2b(digest_size=32), hashlib.sha256()
        with open(self.path, "rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                blake.update(chunk)
                sha.update(chunk)
        return {"blake2b": blake.hexdigest(), "sha256": sha.hexdigest()}


def source_files(checkpoint: Checkpoint) -> list[SourceFile]:
    return [SourceFile.of(path) for path in checkpoint.files]


def check_unchanged(files: Sequence[SourceFile]) -> None:
    """ConversionError if a file changed since it was looked at: tensors and digests would not belong together."""
    for file in files:
        if SourceFile.of(file.path) != file:
            raise ConversionError(f"{file.path}: changed while it was converted; nothing was written")


def provenance(checkpoint: Checkpoint, files: Sequence[SourceFile], choice: FormatChoice) -> dict[str, Any]:
    """The artifact's `ninfer.provenance`. A GGUF file's name is its owner's choice and left out."""
    entries = []
    for file in files:
        entry: dict[str, Any] = {"nbytes": file.nbytes, **file.digests()}
        if checkpoint.kind == "huggingface":
            entry = {"name": file.path.name, **entry}
        entries.append(entry)
    source: dict[str, Any] = {"kind": checkpoint.kind, "files": entries}
    if checkpoint.random is not None:
        source["random"] = dict(checkpoint.random)
    return {
        "ninfer_version": __version__,
        "source": source,
        "recipe": {"version": RECIPE_VERSION, **choice.record()},
    }
