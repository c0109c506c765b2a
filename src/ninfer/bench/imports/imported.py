"""What a reader of a foreign file hands over."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ninfer.bench.records.schema import Prompt, RequestRow, Response


@dataclass(frozen=True)
class Imported:
    """One run of a foreign file, in our words. samples: rows in their order, with responses where they were kept."""

    facts: dict[str, Any]
    prompts: list[Prompt]
    samples: list[tuple[RequestRow, Response | None]]
    command: list[str] = field(default_factory=list)
    created_unix_ns: int = 0
    load_s: float | None = None
    reported: dict[str, float | int | str | None] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


def renamed(source: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The members of `source` that are in `names`, under our names; those that are absent stay absent."""
    return {ours: source[theirs] for theirs, ours in names.items() if theirs in source}


def without(source: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The members that are not in `names`: what has no place of its own in a record."""
    return {name: value for name, value in source.items() if name not in names}
