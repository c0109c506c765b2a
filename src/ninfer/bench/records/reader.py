"""Reading a run's directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from ninfer.bench.records.chain import ChainError, read_chain
from ninfer.bench.records.schema import (
    EVENTS,
    INPUTS,
    REQUESTS,
    RUN,
    SCHEMA,
    SCHEMA_VERSION,
    Event,
    Prompt,
    RequestRow,
    Response,
    RunFile,
)
from ninfer.errors import RecordError
from ninfer.metrics.line_file import whole_lines

Member = TypeVar("Member")


@dataclass(frozen=True)
class RunRecord:
    """A run as it is on the disk; `rows` in the order in which they ended."""

    directory: Path
    run: RunFile
    prompts: Mapping[str, Prompt]
    rows: Sequence[RequestRow]
    events: Sequence[Event]

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def measured(self) -> list[RequestRow]:
        """The rows that are no warm-ups."""
        return [row for row in self.rows if not row.is_warmup]

    def response(self, row: RequestRow) -> Response | None:
        """What came back for `row`, None where it was not kept. RecordError when the file is missing or damaged."""
        if row.response is None:
            return None
        path = self.directory / row.response.file
        return decode(Response, read_bytes(path), path)


def read_run(directory: Path) -> RunRecord:
    """The record in `directory`; RecordError that names file and place when it is none, or damaged.

    Digests of responses are not checked here; `verify_run` does.
    """
    run = read_run_file(directory / RUN)
    path = directory / INPUTS
    read_bytes(path)
    prompts = [decode(Prompt, line, f"{path}, line {i}") for i, line in enumerate(whole_lines(path), 1)]
    return RunRecord(
        directory,
        run,
        {prompt.id: prompt for prompt in prompts},
        _chained(directory / REQUESTS, run, RequestRow),
        _chained(directory / EVENTS, run, Event),
    )


def read_run_file(path: Path) -> RunFile:
    """`run.json`; RecordError when it is no run record, or one of a version this code does not know."""
    data = read_bytes(path)

    class Version(msgspec.Struct):
        schema: str = ""
        schema_version: int = 0

    version = decode(Version, data, path)
    if version.schema != SCHEMA:
        raise RecordError(f"is no run record: schema is {version.schema!r}, not {SCHEMA!r}", file=path)
    if version.schema_version != SCHEMA_VERSION:
        raise RecordError(
            f"has schema_version {version.schema_version}; this ninfer reads version {SCHEMA_VERSION}", file=path
        )
    return decode(RunFile, data, path)


def decode(kind: type[Member], data: bytes, where: object) -> Member:
    """A member of the schema from JSON; RecordError with the path inside when it is none."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:  # ValidationError is one
        raise RecordError(str(error), file=where) from error


def read_bytes(path: Path) -> bytes:
    """The content of a file of a record; RecordError when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}", file=path) from error


def _chained(path: Path, run: RunFile, kind: type[Member]) -> list[Member]:
    found: list[Member] = []
    try:
        for body in read_chain(path, run.digest):
            found.append(decode(kind, body, f"{path}, line {len(found) + 1}"))
    except ChainError as error:
        raise RecordError(f"line {len(found) + 1}: {error}", file=path) from error
    return found
