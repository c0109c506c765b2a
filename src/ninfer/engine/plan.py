"""What will run and what it will allocate, as data. `planning.py` makes it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from ninfer.artifact.header import blake2b
from ninfer.backends.options import RuntimeOptions
from ninfer.cache import StateLayout
from ninfer.engine.config import Auto, DraftRule, EngineConfig, SpecMethod
from ninfer.metrics import RoundTally
from ninfer.models.batch import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class Choice:
    """One setting as it will be, and why; automatic choices and adjusted values have one."""

    field: str
    value: int | str
    reason: str


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One allocation: exact bytes, or an estimate that says so."""

    name: str
    num_bytes: int
    estimate: bool


@dataclass(frozen=True, slots=True)
class StatePlan:
    """How sequences keep recurrent state: `layout` for each, and besides at most `max_snapshots` slots of snapshots."""

    layout: StateLayout = field(default_factory=StateLayout)
    max_snapshots: int = 0

    def num_slots(self, max_concurrency: int) -> int:
        """Slots of an engine with so many lanes."""
        return max_concurrency * self.layout.slots_per_sequence + self.max_snapshots

    def num_journals(self, max_concurrency: int) -> int:
        """Journals of an engine with so many lanes, of `journal_rows` rows each."""
        return max_concurrency * self.layout.journals_per_sequence

    @property
    def journal_rows(self) -> int:
        return self.layout.verify_rows if self.layout.journals_per_sequence else 0


@dataclass(frozen=True, slots=True)
class SpeculationPlan:
    """What drafts, `window` tokens at most, and when a draft is accepted.

    adaptive: shorter windows where they pay. draft_digest: of the file that has the draft model, None without one.
    shortlist: tokens that it chooses from, None for all.
    """

    method: SpecMethod
    window: int
    adaptive: bool = False
    rule: DraftRule = "replay"
    draft_digest: str | None = None
    shortlist: int | None = None

    def tally(self) -> RoundTally:
        """An account of rounds by this plan."""
        return RoundTally(self.method, self.window)


@dataclass(frozen=True, slots=True)
class PrefixPlan:
    """What requests may reuse of others: full KV pages, which lie among the pages of all sequences and give way to
    them; for models with recurrent state also `StatePlan.max_snapshots` snapshots, in prompts one every
    `snapshot_interval` tokens (0: no recurrent state)."""

    snapshot_interval: int = 0


@dataclass(frozen=True)
class EnginePlan:
    """What an engine will run and allocate. `num_pages` pages of 64 tokens always hold at least one full context.

    A step has at most `options.max_rows` rows: `prefill_chunk` of prompts, or `mixed_chunk` if a sequence decodes
    (auto: as `engine.pacing` measures), and `verify_rows` per other running sequence, its known token and drafts.
    `state` is None for models without recurrent state, `speculation` without drafts, `prefix` where nothing is reused.
    """

    config: EngineConfig
    architecture: str
    artifact_digest: str
    vocab_size: int
    end_token_ids: tuple[int, ...]
    max_context: int
    num_pages: int
    prefill_chunk: int
    mixed_chunk: int | Auto
    max_concurrency: int
    options: RuntimeOptions
    memory: tuple[MemoryItem, ...]
    choices: tuple[Choice, ...]
    state: StatePlan | None = None
    speculation: SpeculationPlan | None = None
    prefix: PrefixPlan | None = None

    @property
    def verify_rows(self) -> int:
        """Most rows of a step of which a part may be kept: a known token and its draft."""
        return 1 if self.speculation is None else 1 + self.speculation.window

    @property
    def kv_capacity(self) -> int:
        """Tokens of KV memory."""
        return self.num_pages * PAGE_TOKENS

    @property
    def total_bytes(self) -> int:
        """Everything, estimates included."""
        return sum(item.num_bytes for item in self.memory)

    @property
    def digest(self) -> str:
        """BLAKE2b-256 (hex) of what will run: equal for plans that run and allocate the same for one artifact."""
        decided = self._fields()
        del decided["config"], decided["choices"]
        text = json.dumps(decided, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return blake2b(text.encode())

    def to_dict(self) -> dict[str, Any]:
        """Everything above as JSON values."""
        return {**self._fields(), "digest": self.digest}

    def _fields(self) -> dict[str, Any]:
        return {**asdict(self), "kv_capacity": self.kv_capacity, "total_bytes": self.total_bytes}
