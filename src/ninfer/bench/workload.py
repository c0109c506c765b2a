"""The pieces of work every engine is measured on, as data: what is asked of a worker and how much it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ninfer.bench.measurements import Repeats, split_warmups
from ninfer.bench.workers.protocol import Worker

# Ids every vocabulary in question has, away from control tokens at its start and end; the stride avoids repeats.
FIRST_ID, ID_RANGE, ID_STRIDE = 1000, 30011, 7919


def token_ids(count: int, start: int = 0) -> list[int]:
    """`count` fixed token ids in [1000, 31011), equal for every engine; no two within 30,011 positions are the same."""
    return [FIRST_ID + (i * ID_STRIDE) % ID_RANGE for i in range(start, start + count)]


@dataclass(frozen=True)
class Prefill:
    """`tokens` prompt tokens into an empty KV, logits of the last one only."""

    tokens: int

    @property
    def name(self) -> str:
        return f"prefill {self.tokens}"

    @property
    def tokens_per_value(self) -> int:
        """Tokens computed in each timed interval."""
        return self.tokens

    @property
    def warmups(self) -> int:
        """Intervals at the start of a visit that are set apart: another engine has just used the caches."""
        return 1 if self.tokens <= 512 else 0

    @property
    def repeats(self) -> int:
        """Timed intervals of one visit: enough that their median stands, few enough that a visit stays short."""
        return 3 if self.tokens <= 512 else 1

    @property
    def context(self) -> int:
        """KV positions a sequence needs."""
        return self.tokens

    @property
    def sequences(self) -> int:
        return 1

    def run(self, worker: Worker) -> Repeats:
        """Seconds of every interval of one visit."""
        count = self.warmups + self.repeats
        return split_warmups(worker.seconds("prefill", ids=token_ids(self.tokens), repeats=count), self.warmups)


@dataclass(frozen=True)
class Decode:
    """Single-token steps of `sequences` sequences whose KV holds `depth` tokens at the first step."""

    depth: int
    sequences: int = 1

    @property
    def name(self) -> str:
        return f"decode at {self.depth}" + (f", batch {self.sequences}" if self.sequences > 1 else "")

    @property
    def tokens_per_value(self) -> int:
        return self.sequences

    @property
    def warmups(self) -> int:
        return 4

    @property
    def repeats(self) -> int:
        return 16

    @property
    def context(self) -> int:
        return self.depth + self.warmups + self.repeats

    def run(self, worker: Worker) -> Repeats:
        ids = token_ids(self.depth)
        next_ids = token_ids(self.warmups + self.repeats, start=self.depth)
        seconds = worker.seconds("decode", ids=ids, sequences=self.sequences, next_ids=next_ids)
        return split_warmups(seconds, self.warmups)


@dataclass(frozen=True)
class Rows:
    """`rows` tokens of one sequence in one step after `depth` tokens, logits of every row: what verification costs."""

    rows: int
    depth: int = 512

    @property
    def name(self) -> str:
        return f"{self.rows} row{'s' if self.rows > 1 else ''} at {self.depth}"

    @property
    def tokens_per_value(self) -> int:
        return self.rows

    @property
    def warmups(self) -> int:
        return 3

    @property
    def repeats(self) -> int:
        return 9

    @property
    def context(self) -> int:
        return self.depth + self.rows * (self.warmups + self.repeats)

    @property
    def sequences(self) -> int:
        return 1

    def run(self, worker: Worker) -> Repeats:
        count = self.warmups + self.repeats
        ids, next_ids = token_ids(self.depth), token_ids(self.rows * count, start=self.depth)
        return split_warmups(worker.seconds("rows", ids=ids, next_ids=next_ids, repeats=count), self.warmups)


Work = Prefill | Decode | Rows

TRIAL_TOKENS = 2048


def trial(work: Work) -> Work:
    """A shorter stand-in to find the best settings with: lengths and depths beyond TRIAL_TOKENS are cut to it.

    What settings differ in is attention and the KV, whose share only grows with length, so their order does not change.
    """
    if isinstance(work, Prefill):
        return Prefill(min(work.tokens, TRIAL_TOKENS))
    return replace(work, depth=min(work.depth, TRIAL_TOKENS))


DEFAULT_WORK: tuple[Work, ...] = (
    *(Prefill(n) for n in (128, 512, 2048, 4096)),
    *(Decode(n) for n in (16, 512, 2048, 8000)),
    *(Rows(n) for n in (1, 2, 4, 8, 16)),
    Decode(16, sequences=8),
)


def contexts(work: Sequence[Work]) -> dict[int, int]:
    """Number of sequences -> KV positions each needs, for the worker that runs all `work` with that many sequences."""
    return {count: max(w.context for w in work if w.sequences == count) for count in {w.sequences for w in work}}
