"""Writing a run: samples are on the disk before `append` returns, and a killed run goes on where it was."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from ninfer.bench.records.chain import ChainError, ChainFile
from ninfer.bench.records.reader import read_run
from ninfer.bench.records.schema import (
    EVENTS,
    INPUTS,
    REQUESTS,
    RESPONSES,
    RUN,
    Circumstances,
    Event,
    Prompt,
    RequestRow,
    Response,
    ResponseIdentity,
    RunFile,
    SampleKey,
)
from ninfer.errors import ConfigError, InvariantError, RecordError


class RunWriter:
    """The one writer of a run's directory. `done`: the samples that are in it; `is_finished`: whether these are all.

    A sample is a row and its response; the response is written first, so a kill between the two leaves a response that
    the next attempt at that sample overwrites.
    """

    def __init__(self, directory: Path, run: RunFile, prompts: Sequence[Prompt]) -> None:
        """Begin the run, or go on with it when `directory` has one of the same `RunFile.identity`.

        ConfigError when the directory holds another run (the message names the facts that differ) or another process
        writes to it; RecordError when what is in it is damaged; InvariantError when `prompts` are not `run.inputs`.
        """
        if [(p.id, p.digest) for p in prompts] != [(p.id, p.digest) for p in run.inputs.prompts]:
            raise InvariantError("the prompts are not the inputs that run.json names")
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._command, self._circumstances = run.command, run.circumstances
        self._prompt_ids = {prompt.id for prompt in prompts}
        self._is_begun = False
        self._lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.run = self._begin(run, prompts)
            record = read_run(directory)
            self._rows = ChainFile(directory / REQUESTS, self.run.digest)
            self._events = ChainFile(directory / EVENTS, self.run.digest)
        except ChainError as error:
            os.close(self._lock)
            raise RecordError(str(error), file=directory) from error
        except BaseException:
            os.close(self._lock)
            raise
        self.done: set[SampleKey] = {row.key for row in record.rows}
        self.is_finished = any(event.event == "finished" for event in record.events)

    def _begin(self, run: RunFile, prompts: Sequence[Prompt]) -> RunFile:
        """The run as it is on the disk, written if it is not there."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{self.directory}: another process writes to this run") from error
        path = self.directory / RUN
        if not path.exists():
            (self.directory / RESPONSES).mkdir(exist_ok=True)
            _write_whole(self.directory / INPUTS, b"".join(msgspec.json.encode(p) + b"\n" for p in prompts))
            _write_whole(path, msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")
            return run
        there = read_run(self.directory).run
        if there.identity != run.identity:
            names = sorted(there.facts.keys() | run.facts.keys())
            differing = [name for name in names if there.facts.get(name) != run.facts.get(name)]
            if there.inputs.digest != run.inputs.digest:
                differing.append("inputs")
            raise ConfigError(
                f"{self.directory} holds another run; what differs: {', '.join(differing) or 'its name or source'}"
            )
        return there

    def append(self, row: RequestRow, response: Response | None = None) -> RequestRow:
        """Record a sample; returns the row as it was written, with the identity of its response.

        InvariantError for a sample that is there already or of an unknown prompt; OSError when the disk is full.
        """
        if row.key in self.done or row.prompt not in self._prompt_ids:
            raise InvariantError(f"a sample that was taken already, or of no prompt of this run: {row.key}")
        self._begin_session()
        if response is not None:
            name = f"{RESPONSES}/{len(self.done):06d}.json"
            data = msgspec.json.encode(response)
            _write_whole(self.directory / name, data)
            row = msgspec.structs.replace(row, response=ResponseIdentity(file=name, digest=response_digest(data)))
        self._rows.append(msgspec.json.encode(row))
        self.done.add(row.key)
        return row

    def loaded(self, seconds: float, circumstances: Circumstances) -> None:
        """The model was loaded; `circumstances` are those right before."""
        self._begin_session()
        self._add(Event(event="load", unix_ns=time.time_ns(), seconds=seconds, circumstances=circumstances))

    def finish(self) -> None:
        """Every planned sample was taken."""
        if not self.is_finished:
            self._begin_session()
            self._add(Event(event="finished", unix_ns=time.time_ns(), rows=len(self.done)))
            self.is_finished = True

    def close(self) -> None:
        self._rows.close()
        self._events.close()
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _begin_session(self) -> None:
        """Say once per process who writes and under what circumstances; a process that has nothing to add says none."""
        if not self._is_begun:
            self._is_begun = True
            self._add(
                Event(
                    event="session",
                    unix_ns=time.time_ns(),
                    command=self._command,
                    circumstances=self._circumstances,
                )
            )

    def _add(self, event: Event) -> None:
        self._events.append(msgspec.json.encode(event))


def response_digest(data: bytes) -> str:
    """Identity of a response file: BLAKE2b-256 (hex) of its bytes."""
    return blake2b(data, digest_size=32).hexdigest()


def _write_whole(path: Path, data: bytes) -> None:
    """The file as a whole or not at all, on the disk when this returns."""
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
