"""Is a run as it was written, and do its numbers agree with each other?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ninfer.bench.records.reader import RunRecord, decode, read_bytes, read_run
from ninfer.bench.records.schema import REQUESTS, RESPONSES, RUN, RequestRow, Response, ids_digest
from ninfer.bench.records.writer import response_digest
from ninfer.errors import InvariantError, RecordError
from ninfer.metrics import SpeculationCounts, Usage

PHASES = ("load", "prepare", "queue", "prefill", "decode")
PHASE_SLACK_S = 1e-6
"""Phases are differences of nanosecond stamps turned into float64; their sum may exceed the total by rounding."""


def verify_run(directory: Path) -> list[str]:
    """What is wrong, one sentence each, naming file and row; empty when nothing is.

    Digests and chains of every file, every response, identities between counts, and that no sample is there twice.
    """
    try:
        record = read_run(directory)
    except RecordError as error:
        return [str(error)]
    return list(_problems(record))


def read_verified(directory: Path) -> RunRecord:
    """The record in `directory`; RecordError that names the first problem when there is one."""
    record = read_run(directory)
    for problem in _problems(record):
        raise RecordError(problem, file=directory)
    return record


def _problems(record: RunRecord) -> Iterator[str]:
    named = {prompt.id: prompt.digest for prompt in record.run.inputs.prompts}
    there = {prompt.id: prompt.digest for prompt in record.prompts.values()}
    for prompt in sorted(named.keys() | there.keys()):
        if named.get(prompt) != there.get(prompt):
            yield f"prompt {prompt!r} is not the one that {RUN} names"
    stated = record.run.facts.get("inputs.digest")
    if stated is not None and stated.value != record.run.inputs.digest:
        yield f"{RUN}: fact inputs.digest is not the digest of its inputs"
    for key, count in Counter(row.key for row in record.rows).items():
        if count > 1:
            yield f"{REQUESTS}: {count} rows for sample {tuple(key)}"
    kept = {path.name for path in (record.directory / RESPONSES).glob("*.json")}
    for number, row in enumerate(record.rows, 1):
        where = f"{REQUESTS}, line {number} ({row.prompt}, repeat {row.repeat})"
        if row.prompt not in named:
            yield f"{where}: there is no such prompt"
        for problem in (*_row_problems(row, is_ours=record.run.source is None), *_response_problems(record, row)):
            yield f"{where}: {problem}"
        if row.response is not None:
            kept.discard(Path(row.response.file).name)
    for name in sorted(kept):
        yield f"{RESPONSES}/{name}: belongs to no row"
    for event in record.events:
        if event.event == "finished" and event.rows != len(record.rows):
            yield f"{event.rows} rows when the run was finished, {len(record.rows)} are there"


def _row_problems(row: RequestRow, *, is_ours: bool) -> Iterator[str]:
    """Numbers that cannot be, or contradict each other. Phases of an imported source are defined there, and may overlap
    or be rounded; ours never add up to more than the request."""
    seconds = {name: getattr(row.seconds, name) for name in row.seconds.__struct_fields__}
    for name, value in seconds.items():
        if value is not None and not (math.isfinite(value) and value >= 0):
            yield f"seconds.{name} is {value}"
            return
    known = [seconds[name] for name in PHASES if seconds[name] is not None]
    if is_ours and seconds["total"] is not None and sum(known) > seconds["total"] + PHASE_SLACK_S:
        yield f"phases last {sum(known)} s together, the request {seconds['total']} s"
    usage = row.usage
    try:
        Usage(
            prompt=usage.prompt_tokens or 0,
            cached=usage.cached_tokens or 0,
            completion=usage.completion_tokens or 0,
            computed=usage.computed_tokens or 0,
            thinking=usage.reasoning_tokens or 0,
        )
    except InvariantError:
        if None not in (usage.prompt_tokens, usage.completion_tokens):
            yield f"token counts contradict each other: {usage}"
    yield from _speculation_problems(row)
    if row.error is None and row.finish is None:
        yield "it has neither a finish nor an error"


def _speculation_problems(row: RequestRow) -> Iterator[str]:
    counts = row.speculation
    if counts is None or counts.rounds is None:
        return
    drafted, accepted = counts.drafted_tokens or 0, counts.accepted_tokens or 0
    try:
        if counts.rounds_with_draft is not None and counts.accepted_per_position is not None:
            with_draft, per_position = tuple(counts.rounds_with_draft), tuple(counts.accepted_per_position)
            SpeculationCounts(counts.rounds, drafted, accepted, with_draft, per_position)
        elif accepted > drafted:
            yield f"{accepted} of {drafted} drafted tokens were accepted"
    except InvariantError:
        yield f"counts of speculation contradict each other: {counts}"
    completion = row.usage.completion_tokens
    if completion is not None and completion - 1 > counts.rounds + accepted:
        yield f"{counts.rounds} rounds with {accepted} accepted drafts cannot yield {completion - 1} tokens"


def _response_problems(record: RunRecord, row: RequestRow) -> Iterator[str]:
    if row.response is None:
        return
    path = record.directory / row.response.file
    try:
        data = read_bytes(path)
        response = decode(Response, data, row.response.file)
    except RecordError as error:
        yield str(error)
        return
    if response_digest(data) != row.response.digest:
        yield f"{row.response.file} was changed"
    ids = response.output_ids
    if ids is None:
        return
    if row.ids_digest is not None and ids_digest(ids) != row.ids_digest:
        yield f"ids_digest is not that of the ids in {row.response.file}"
    if row.usage.completion_tokens is not None and len(ids) != row.usage.completion_tokens:
        yield f"{row.usage.completion_tokens} completion tokens, {len(ids)} ids in {row.response.file}"
