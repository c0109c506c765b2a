"""From a file of another program to records of runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from ninfer.bench.imports import llama_bench, ninfer_log, vllm_serving
from ninfer.bench.imports.imported import Imported
from ninfer.bench.records.facts import Declaration, Fact
from ninfer.bench.records.reader import decode
from ninfer.bench.records.schema import Circumstances, Inputs, PromptIdentity, RequestRow, RunFile, Source
from ninfer.bench.records.writer import RunWriter
from ninfer.errors import ConfigError, RecordError


@dataclass(frozen=True)
class Kind:
    """A kind of source: how it is recognised among JSON documents, and what reads it."""

    name: str
    is_of: Callable[[Sequence[Any]], bool]
    read: Callable[[Sequence[Any]], list[Imported]]


KINDS = (
    Kind("ninfer_serve_request_log", ninfer_log.is_of, ninfer_log.read),
    Kind("llama-bench", llama_bench.is_of, llama_bench.read),
    Kind("vllm benchmark_serving", vllm_serving.is_of, vllm_serving.read),
)


@dataclass(frozen=True)
class Additions:
    """What a person adds to a source. facts: their values, by name; declarations: words for what nobody recorded;
    num_warmups: how many requests at the beginning were warm-ups."""

    facts: Mapping[str, Any]
    declarations: Sequence[Declaration]
    num_warmups: int = 0


NOTHING_ADDED = Additions({}, ())


def import_file(path: Path, out: Path, name: str | None = None, additions: Additions = NOTHING_ADDED) -> list[Path]:
    """Write the runs of `path` as records below `out` and return their directories.

    One run is written to `out` itself, several to directories in it. RecordError when the file is of no known kind or
    contradicts itself; ConfigError when `out` holds something already, or facts that the source states are added.
    """
    data = _read(path)
    documents = _documents(data, path)
    kind = next((kind for kind in KINDS if kind.is_of(documents)), None)
    if kind is None:
        raise RecordError(f"is of no kind that can be imported: {', '.join(kind.name for kind in KINDS)}", file=path)
    try:
        found = kind.read(documents)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise RecordError(f"is no {kind.name}: {type(error).__name__}: {error}", file=path) from error
    if not found:
        raise RecordError("has no finished request", file=path)
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty; an import makes new records only")
    source = Source(kind=kind.name, file=path.name, digest=blake2b(data, digest_size=32).hexdigest())
    written = []
    for number, imported in enumerate(found, 1):
        given = name or path.stem
        is_only = len(found) == 1
        run_name = given if is_only else f"{given}-{number}"
        directory = out if is_only else out / run_name
        _write(directory, run_name, imported, source, additions)
        written.append(directory)
    return written


def _write(directory: Path, name: str, imported: Imported, source: Source, additions: Additions) -> None:
    if stated := sorted(imported.facts.keys() & additions.facts.keys()):
        raise ConfigError(f"the source states {', '.join(stated)} itself")
    facts = {fact: Fact(value, "observed") for fact, value in imported.facts.items()}
    facts |= {fact: Fact(value, "declared", "added at import") for fact, value in additions.facts.items()}
    prompts = imported.prompts
    for row, _ in imported.samples:
        decode(RequestRow, msgspec.json.encode(row), f"{source.file}: a request of run {name}")  # are all types right?
    run = RunFile(
        name=name,
        created_unix_ns=imported.created_unix_ns,
        command=imported.command,
        facts=facts,
        inputs=Inputs(
            name=source.kind, version=None, prompts=[PromptIdentity(id=p.id, digest=p.digest) for p in prompts]
        ),
        circumstances=Circumstances(),
        declarations=list(additions.declarations),
        reported=imported.reported,
        source=source,
        extra=imported.extra,
    )
    with RunWriter(directory, run, prompts) as writer:
        if imported.load_s is not None:
            writer.loaded(imported.load_s, Circumstances())
        for number, (row, response) in enumerate(imported.samples):
            writer.append(msgspec.structs.replace(row, is_warmup=number < additions.num_warmups), response)
        writer.finish()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}", file=path) from error


def _documents(data: bytes, path: Path) -> list[Any]:
    """One JSON document, or one per line."""
    try:
        return [json.loads(data)]
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in data.splitlines() if line.strip()]
    except ValueError as error:
        raise RecordError(f"is neither JSON nor JSON lines: {error}", file=path) from error
