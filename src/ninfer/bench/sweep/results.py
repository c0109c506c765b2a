"""What the records of a sweep say, cell by cell: derived from the records alone, so it can be made again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from ninfer.bench.compare.quantities import (
    ACCEPTANCE,
    DECODE_RATE,
    PREFILL_RATE,
    ROUND_TIME,
    TOKENS_PER_ROUND,
    Quantity,
)
from ninfer.bench.records.reader import RunRecord
from ninfer.bench.records.schema import RequestRow
from ninfer.bench.records.verify import read_verified
from ninfer.bench.sweep.grids import LEAST_DECODED, Grid, Kind


@dataclass(frozen=True)
class Cell:
    """One setting on one piece of work.

    axes: what it is, by axis. rates: tok/s of every sample. sustained: all tokens over all seconds. refused: why no
    rate is given. tokens_per_round, round_s, acceptance: of decode cells with drafts, what the rate is made of.
    """

    axes: dict[str, Any]
    rates: tuple[float, ...]
    sustained: float | None
    refused: str | None = None
    tokens_per_round: float | None = None
    round_s: float | None = None
    acceptance: float | None = None

    @property
    def peak(self) -> float | None:
        """The best sample: repeated exact rates of whole requests, never of a sampling window."""
        return max(self.rates, default=None)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "peak": self.peak}


@dataclass(frozen=True)
class SweepResult:
    """A grid and its cells, settings outermost. runs: the directories that they come from."""

    kind: Kind
    setting_axis: str
    prompt_axes: tuple[str, ...]
    cells: tuple[Cell, ...]
    runs: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "axes": [self.setting_axis, *self.prompt_axes],
            "cells": [cell.to_json() for cell in self.cells],
            "runs": list(self.runs),
        }


def sweep_result(grid: Grid, directories: Sequence[Path]) -> SweepResult:
    """The cells of a grid whose settings ran into `directories`, in order. RecordError for a damaged record."""
    cells: list[Cell] = []
    for setting, directory in zip(grid.settings, directories, strict=True):
        record = read_verified(directory)
        axes = {grid.setting_axis: setting.value}
        if grid.kind == "concurrency":
            cells.append(_together(axes, record))
        else:
            judge = _decode_cell if grid.kind == "decode" else _prefill_cell
            cells += [judge({**axes, **p.options}, _good(record, p.id)) for p in grid.prompts]
    names = tuple(directory.name for directory in directories)
    return SweepResult(grid.kind, grid.setting_axis, grid.prompt_axes, tuple(cells), names)


def _good(record: RunRecord, prompt: str) -> list[RequestRow]:
    return [row for row in record.measured if row.prompt == prompt and row.error is None]


def _rates(rows: Sequence[RequestRow], quantity: Quantity) -> tuple[float, ...]:
    return tuple(rate for row in rows if (rate := quantity.of([row])) is not None)


def _prefill_cell(axes: dict[str, Any], rows: Sequence[RequestRow]) -> Cell:
    if any(row.usage.cached_tokens for row in rows):
        return Cell(axes, (), None, "a part of the prompt was not computed but reused")
    rates = _rates(rows, PREFILL_RATE)
    return Cell(axes, rates, PREFILL_RATE.of(rows), None if rates else "no sample succeeded")


def _decode_cell(axes: dict[str, Any], rows: Sequence[RequestRow]) -> Cell:
    shortest = min((row.usage.completion_tokens or 0 for row in rows), default=0)
    if shortest < LEAST_DECODED:
        return Cell(axes, (), None, f"an answer ended after {shortest} tokens; at least {LEAST_DECODED} show a rate")
    return Cell(
        axes,
        _rates(rows, DECODE_RATE),
        DECODE_RATE.of(rows),
        tokens_per_round=TOKENS_PER_ROUND.of(rows),
        round_s=ROUND_TIME.of(rows),
        acceptance=ACCEPTANCE.of(rows),
    )


def _together(axes: dict[str, Any], record: RunRecord) -> Cell:
    """All tokens of a repeat over the time from its first sending to its last ending."""
    rates, tokens, seconds = [], 0, 0.0

    for _, group in groupby(sorted(record.measured, key=attrgetter("repeat")), key=attrgetter("repeat")):
        rows = list(group)
        stamps = [row.stamps for row in rows if row.stamps is not None]
        if any(row.error is not None for row in rows) or len(stamps) != len(rows):
            return Cell(axes, (), None, "a request failed, so not all lanes were at work")
        completed = sum(row.usage.completion_tokens or 0 for row in rows)
        lasted = (max(s.ended_unix_ns for s in stamps) - min(s.sent_unix_ns for s in stamps)) * 1e-9
        rates.append(completed / lasted)
        tokens, seconds = tokens + completed, seconds + lasted
    return Cell(axes, tuple(rates), tokens / seconds if rates else None, None if rates else "no sample succeeded")
