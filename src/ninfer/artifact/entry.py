"""One object of an artifact: what it is called, how it is stored, where it lies."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ninfer.errors import UnsupportedError
from ninfer.formats import layouts

RESOURCE_FORMAT = "u8"
RESOURCE_PREFIX = "frontend/"
"""Objects under this prefix are plain bytes (`u8`, `row`, shape `[length]`); all others are weights."""

MAX_OBJECTS = 16384
MAX_RANK = 4
MAX_DIMENSION = 1 << 40

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TensorEntry:
    """An object as the directory describes it. `offset` counts from the start of the file, in bytes."""

    name: str
    format: str
    layout: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    padded_nbytes: int
    blake2b: str
    """BLAKE2b-256 of the `nbytes` payload bytes, hex."""

    @property
    def is_resource(self) -> bool:
        """A file that travels with the model, not a weight."""
        return self.format == RESOURCE_FORMAT


def storage_problem(
    name: object, format: object, layout: object, shape: object, nbytes: object, blake2b: object
) -> tuple[str, str] | None:
    """(field, complaint) if these do not describe one storable object, else None.

    The arguments may be anything: the reader passes what it found in a file, the writer what it was given.
    """
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        return "name", f"{name!r:.80} is not a name of 1 to 200 letters, digits, '_', '.', '/', '-'"
    if not isinstance(format, str):
        return "format", f"must be a string, got {format!r:.80}"
    if not isinstance(layout, str):
        return "layout", f"must be a string, got {layout!r:.80}"
    if (
        not isinstance(shape, list | tuple)
        or not 1 <= len(shape) <= MAX_RANK
        or not all(type(size) is int and 1 <= size <= MAX_DIMENSION for size in shape)
    ):
        return "shape", f"must be 1 to {MAX_RANK} sizes from 1 to {MAX_DIMENSION}, got {shape!r:.80}"
    if (format == RESOURCE_FORMAT) != name.startswith(RESOURCE_PREFIX):
        return "format", f"{format!r:.80}: exactly the objects under {RESOURCE_PREFIX!r} have {RESOURCE_FORMAT!r}"
    try:
        expected = layouts.nbytes(format, shape, layout)
    except UnsupportedError as error:
        return "format", str(error)
    if type(nbytes) is not int or nbytes != expected:
        return "nbytes", f"{format} {list(shape)} in layout {layout} has {expected} bytes, got {nbytes!r:.80}"
    if not (isinstance(blake2b, str) and _DIGEST.fullmatch(blake2b)):
        return "blake2b", f"must be 64 lower-case hex digits, got {blake2b!r:.80}"
    return None
