"""The files of a run record, version 1.

A run is one directory:

| file | content |
|---|---|
| `run.json` | `RunFile`: what was to be run and on what, written once before the first request |
| `inputs.jsonl` | one `Prompt` per line, written once before `run.json` |
| `requests.jsonl` | one `RequestRow` per line, in the order in which requests ended |
| `responses/` | one `Response` per row, where the answer was kept |
| `events.jsonl` | one `Event` per line: sessions, model loads, the end |

Lines of the two growing files are chained: each ends with a digest of itself and the line before it, the first one of
itself and `run.json`, so no line can be changed, removed or moved unseen (chain.py). Numbers are raw and unrounded;
what is not known is null and counts as unrecorded. Derived numbers are never stored.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import msgspec

from ninfer.bench.records.facts import Declaration, Fact
from ninfer.metrics import Phases, SpeculationCounts, Usage

SCHEMA = "ninfer.run"
SCHEMA_VERSION = 1

RUN, INPUTS, REQUESTS, RESPONSES, EVENTS = "run.json", "inputs.jsonl", "requests.jsonl", "responses", "events.jsonl"


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Immutable, named members only; reading refuses members it does not know."""


def digest_of(value: object) -> str:
    """BLAKE2b-256 (hex) of a value's JSON with sorted keys."""
    return blake2b(msgspec.json.encode(value, order="sorted"), digest_size=32).hexdigest()


def ids_digest(ids: list[int]) -> str:
    """Identity of emitted token ids: equal for equal sequences only."""
    return digest_of(ids)


class Prompt(Struct, frozen=True):
    """One input. body: what is sent: a string, a list of token ids, or a list of chat messages.

    id: unique within the run; prompts of two runs with equal id and digest are the same. scenario: the group it is
    reported in. max_new: the output limit that is asked for. options: everything else that changes the answer.
    """

    id: str
    scenario: str
    body: Any
    max_new: int | None
    language: str | None = None
    options: dict[str, Any] = {}

    @property
    def digest(self) -> str:
        return digest_of(self)


class PromptIdentity(Struct, frozen=True):
    """A prompt as `run.json` names it."""

    id: str
    digest: str


class Inputs(Struct, frozen=True):
    """The set of prompts. version: of the set as it was published; None for one that was made for this run."""

    name: str
    version: str | None
    prompts: list[PromptIdentity]

    @property
    def digest(self) -> str:
        """Identity of all prompts, whatever their order."""
        return digest_of(sorted([p.id, p.digest] for p in self.prompts))


class Circumstances(Struct, frozen=True):
    """What cannot be set but has to be known to judge: read when a session starts, before the model is loaded.

    load_average: runnable processes over 1, 5 and 15 minutes. cpu_mhz: of every CPU. model_resident_bytes: of
    `model_bytes`, how much of the model file lay in the page cache; draft_: the same of a draft model's own file.
    boot: identity of the machine's boot, so two runs of one boot are known to be on one machine.
    """

    load_average: list[float] | None = None
    cpu_mhz: list[float] | None = None
    cpu_governor: str | None = None
    memory_available_bytes: int | None = None
    model_bytes: int | None = None
    model_resident_bytes: int | None = None
    draft_bytes: int | None = None
    draft_resident_bytes: int | None = None
    boot: str | None = None
    extra: dict[str, Any] = {}


class Source(Struct, frozen=True):
    """Where an imported record comes from: the kind of file, its name and the digest of its bytes."""

    kind: str
    file: str
    digest: str


class RunFile(Struct, frozen=True):
    """`run.json`.

    name: what reports call the run. command: what was executed. facts: everything that may make a difference, by the
    names of facts.py. plan: the engine's resolved plan as it gave it; every value in it is compared. reported: figures
    that a source gives only as sums or shares over the whole run. resolution_s: what times were rounded to, 0 for raw
    ones. extra: unknown members of an imported source.
    """

    name: str
    created_unix_ns: int
    command: list[str]
    facts: dict[str, Fact]
    inputs: Inputs
    circumstances: Circumstances
    plan: dict[str, Any] | None = None
    declarations: list[Declaration] = []
    reported: dict[str, float | int | str | None] = {}
    resolution_s: float = 0.0
    source: Source | None = None
    notes: list[str] = []
    extra: dict[str, Any] = {}
    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION

    @property
    def digest(self) -> str:
        """Identity of the run, and the start of both chains."""
        return digest_of(self)

    @property
    def identity(self) -> str:
        """What must be equal to go on with a run that was interrupted: everything but when and how it was called."""
        return digest_of([self.name, self.facts, self.inputs, self.declarations, self.source])


class RowUsage(Struct, frozen=True):
    """Token counts of one request, as `ninfer.metrics.Usage` defines them. None: not told."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    computed_tokens: int | None = None
    recomputed_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None

    @classmethod
    def of(cls, usage: Usage) -> RowUsage:
        return cls(**usage.to_dict(), reasoning_tokens=usage.thinking)


class RowSeconds(Struct, frozen=True):
    """Seconds of one request, as `ninfer.metrics.Phases` defines them. None: not known there where it was measured.

    A client knows `ttft` (sent to the first token of any kind), `first_answer` (sent to the first token of the answer,
    after reasoning), `decode` (first to last token) and `total`.
    """

    load: float | None = None
    prepare: float | None = None
    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None
    total: float | None = None
    ttft: float | None = None
    first_answer: float | None = None

    @classmethod
    def of(cls, phases: Phases) -> RowSeconds:
        return cls(**phases.to_dict())


class RoundSeconds(Struct, frozen=True):
    """Where decode seconds went, summed over the rounds of one request; None where it was not recorded."""

    draft: float | None = None
    verify: float | None = None
    sample: float | None = None
    rollback: float | None = None


class RowSpeculation(Struct, frozen=True):
    """Counts of speculative decoding of one request, as `ninfer.metrics.SpeculationCounts` defines them.

    Without speculation `backend` is off, `draft_window` 0, and rounds are decode steps.
    """

    backend: str
    draft_window: int | None
    rounds: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    accepted_per_position: list[int] | None = None
    rounds_with_draft: list[int] | None = None
    fallback_steps: int | None = None
    seconds: RoundSeconds | None = None

    @classmethod
    def of(
        cls, backend: str, draft_window: int | None, counts: SpeculationCounts, seconds: RoundSeconds | None = None
    ) -> RowSpeculation:
        return cls(
            backend=backend,
            draft_window=draft_window,
            rounds=counts.rounds,
            drafted_tokens=counts.drafted,
            accepted_tokens=counts.accepted,
            accepted_per_position=list(counts.accepted_per_position),
            rounds_with_draft=list(counts.rounds_with_draft),
            seconds=seconds,
        )


class Stamps(Struct, frozen=True):
    """Nanoseconds of the system clock: they order requests of several runs, durations come from `RowSeconds`.

    planned: when an open load pattern wanted the request to be sent; None for a closed pattern.
    """

    sent_unix_ns: int
    ended_unix_ns: int
    planned_unix_ns: int | None = None


class ResponseIdentity(Struct, frozen=True):
    """The file of a response below the run's directory, and the digest of its bytes."""

    file: str
    digest: str


class SampleKey(NamedTuple):
    """Which sample a row is. repeat counts from 0, warm-ups by themselves; client: its place among requests of one
    prompt and repeat that are in flight together."""

    prompt: str
    repeat: int
    client: int = 0
    is_warmup: bool = False


class RequestRow(Struct, frozen=True):
    """One request that has ended, well or not.

    order: its place in the campaign's plan, over all runs of it. max_new: output limit asked for. finish: a word of
    `ninfer.metrics.FinishReason`, or the source's own word if it has no translation; None for a request that failed.
    is_empty: the answer has no text although the request ended well; reasoning is no answer. error: `kind` and
    `message` of a failure; then counts and times are what was seen until then.
    """

    prompt: str
    repeat: int
    client: int = 0
    is_warmup: bool = False
    order: int | None = None
    stamps: Stamps | None = None
    max_new: int | None = None
    usage: RowUsage = RowUsage()
    seconds: RowSeconds = RowSeconds()
    speculation: RowSpeculation | None = None
    finish: str | None = None
    is_empty: bool | None = None
    ids_digest: str | None = None
    text_digest: str | None = None
    error: dict[str, str] | None = None
    response: ResponseIdentity | None = None
    extra: dict[str, Any] = {}

    @property
    def key(self) -> SampleKey:
        return SampleKey(self.prompt, self.repeat, self.client, self.is_warmup)


class Response(Struct, frozen=True):
    """What came back for one row. token_seconds: when each token was seen, counted from sending.

    chunk_tokens: for a client that sees chunks, how many tokens each had if the server says so; then `token_seconds`
    has one entry per chunk.
    """

    output_ids: list[int] | None = None
    text: str | None = None
    reasoning: str | None = None
    token_seconds: list[float] | None = None
    chunk_tokens: list[int] | None = None
    extra: dict[str, Any] = {}


class Event(Struct, frozen=True):
    """Something that happened to the run.

    session: a process began or went on with the run; `command` and `circumstances` are its own. load: the model was
    loaded in `seconds`; the circumstances before that tell how much of it was cached. finished: every planned sample
    was taken, `rows` of them.
    """

    event: Literal["session", "load", "finished"]
    unix_ns: int
    command: list[str] | None = None
    circumstances: Circumstances | None = None
    seconds: float | None = None
    rows: int | None = None
    extra: dict[str, Any] = {}
