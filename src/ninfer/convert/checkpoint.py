"""A source understood: which model it is, which tensor becomes which, and what travels along."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from ninfer.convert.mapped import MappedFile
from ninfer.convert.names.rules import Assignment

RANDOM_KEY: Final = "ninfer_random"
"""The entry of a config.json that says that the weights are random, and what they were drawn from."""


@dataclass
class Checkpoint:
    """What an opened source gives. Use as a context manager: it holds the mapped files.

    config: our names, as `ninfer.config`. resources: content by name (`frontend/...`). files: every file that was
    read, in an order that depends on the source alone. notes: choices a person may want to know about. random: what
    random weights were drawn from, None for weights that mean something. exact: our names of matrices that keep what
    the source holds whatever format is chosen.
    """

    kind: Literal["gguf", "huggingface", "random"]
    path: Path
    architecture: str
    config: dict[str, Any]
    assignments: Sequence[Assignment]
    resources: dict[str, bytes]
    files: Sequence[Path]
    mapped: Sequence[MappedFile]
    notes: list[str] = field(default_factory=list)
    random: Mapping[str, Any] | None = None
    exact: Collection[str] = ()

    def close(self) -> None:
        for file in self.mapped:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
