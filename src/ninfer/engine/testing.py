"""Models and plans for tests of everything that runs on an engine: no weights, no native code, exact expectations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from ninfer.backends.options import RuntimeOptions
from ninfer.cache import pages_for
from ninfer.decoding.proposer import Committed, Draft, DraftTask
from ninfer.engine.config import Auto, EngineConfig
from ninfer.engine.plan import EnginePlan, PrefixPlan, SpeculationPlan, StatePlan
from ninfer.engine.step import ForwardModel, Logits
from ninfer.errors import InvariantError
from ninfer.models.batch import PAGE_TOKENS, BatchLimits, ForwardBatch, SequenceRows, check_batch

NextIds = Callable[[list[int], int], Sequence[int]]
"""What a `ScriptedProposer` drafts: from all tokens of a sequence and a window to at most so many ids."""

_PRIME = 2**31 - 1
_GENERATOR = 7  # a primitive root


def make_plan(
    *,
    vocab_size: int,
    max_context: int = 256,
    num_pages: int | None = None,
    prefill_chunk: int = 64,
    mixed_chunk: int | Auto | None = None,
    max_concurrency: int = 4,
    end_token_ids: tuple[int, ...] = (),
    state: StatePlan | None = None,
    verify_rows: int = 1,
    prefix: PrefixPlan | None = None,
) -> EnginePlan:
    """A plan without a file or a machine behind it. `num_pages` None is enough for all lanes, `mixed_chunk` None is
    `prefill_chunk`, `verify_rows` 1 is without drafts."""
    if num_pages is None:
        num_pages = max_concurrency * pages_for(max_context)
    return EnginePlan(
        config=EngineConfig(max_context=max_context, prefill_chunk=prefill_chunk, max_concurrency=max_concurrency),
        architecture="testing",
        artifact_digest="",
        vocab_size=vocab_size,
        end_token_ids=end_token_ids,
        max_context=max_context,
        num_pages=num_pages,
        prefill_chunk=prefill_chunk,
        mixed_chunk=prefill_chunk if mixed_chunk is None else mixed_chunk,
        max_concurrency=max_concurrency,
        options=RuntimeOptions(
            num_pages=num_pages,
            max_rows=max(prefill_chunk, verify_rows) + (max_concurrency - 1) * verify_rows,
            max_logit_rows=max_concurrency * verify_rows,
            num_state_slots=0 if state is None else state.num_slots(max_concurrency),
            num_journals=0 if state is None else state.num_journals(max_concurrency),
            journal_rows=0 if state is None else state.journal_rows,
        ),
        memory=(),
        choices=(),
        state=state,
        speculation=None if verify_rows == 1 else SpeculationPlan("ngram", verify_rows - 1),
        prefix=prefix,
    )


class FormulaModel:
    """Logits are a formula of all tokens up to a row, read back through the page tables.

    Keeps what a KV cache would: for each page slot the token and position written there. A batch that no model may be
    asked for (`check_batch`) or that reads stale content is an InvariantError, and anything that mixes sequences up
    changes the tokens.
    """

    def __init__(self, plan: EnginePlan) -> None:
        options = plan.options
        self._limits = BatchLimits(
            plan.vocab_size,
            options.max_rows,
            options.max_logit_rows,
            options.num_pages,
            options.num_state_slots,
            options.num_journals,
            options.journal_rows,
        )
        shape = (plan.num_pages, PAGE_TOKENS)
        self._tokens: npt.NDArray[np.int64] = np.full(shape, -1, dtype=np.int64)
        self._positions: npt.NDArray[np.int64] = np.full(shape, -1, dtype=np.int64)
        self.row_counts: list[int] = []
        self.closed = False

    def forward(self, batch: ForwardBatch) -> Logits:
        check_batch(batch, self._limits)
        self.row_counts.append(len(batch.token_ids))
        prefixes = {}
        for rows in batch.sequences:
            positions = np.arange(rows.position, rows.position + rows.count)
            pages = rows.pages[positions // PAGE_TOKENS]
            self._tokens[pages, positions % PAGE_TOKENS] = batch.token_ids[rows.start : rows.start + rows.count]
            self._positions[pages, positions % PAGE_TOKENS] = positions
            for offset in range(rows.count):
                prefixes[rows.start + offset] = (rows, rows.position + offset + 1)
        logits = np.empty((len(batch.logit_rows), self._limits.vocab_size), dtype=np.float32)
        for index, row in enumerate(batch.logit_rows):
            logits[index] = formula_logits(self._read(*prefixes[int(row)]), self._limits.vocab_size)
        return logits

    def close(self) -> None:
        self.closed = True

    def _read(self, rows: SequenceRows, length: int) -> npt.NDArray[np.int64]:
        positions = np.arange(length)
        pages = rows.pages[positions // PAGE_TOKENS]
        if not np.array_equal(self._positions[pages, positions % PAGE_TOKENS], positions):
            raise InvariantError(f"stale or foreign content within the first {length} tokens of pages {rows.pages}")
        return self._tokens[pages, positions % PAGE_TOKENS]


class RecurrentFormulaModel(FormulaModel):
    """A `FormulaModel` that also keeps what recurrent layers would.

    A slot has the digest of the tokens before it, a journal the tokens of some rows; both know their position. At the
    end of a sequence's rows the digest must be that of the tokens in its pages: a wrong slot, a state that was not
    reset, a stale one or a wrong replay is an InvariantError.
    """

    def __init__(self, plan: EnginePlan) -> None:
        super().__init__(plan)
        self._slots: list[tuple[int, int] | None] = [None] * plan.options.num_state_slots
        self._journals: list[tuple[int, list[int]] | None] = [None] * plan.options.num_journals

    def forward(self, batch: ForwardBatch) -> Logits:
        logits = super().forward(batch)
        # Whatever a step reads is read before anything is saved.
        before = [self._state_before(rows) for rows in batch.sequences]
        for rows, state in zip(batch.sequences, before, strict=True):
            self._advance(rows, state, batch.token_ids[rows.start : rows.start + rows.count].tolist())
        return logits

    def _state_before(self, rows: SequenceRows) -> tuple[int, int]:
        """(tokens, digest) after the replay."""
        access = rows.state
        if access is None:
            raise InvariantError("rows without state access")
        state = (0, 0) if access.read is None else self._slots[access.read]
        if state is None:
            raise InvariantError(f"state slot {access.read} is read and was never saved to")
        num_tokens, digest = state
        if access.replay is not None:
            journal, count = access.replay
            kept = self._journals[journal]
            if kept is None or kept[0] != num_tokens or len(kept[1]) < count:
                raise InvariantError(f"{count} rows from {num_tokens} on replayed of journal {journal} with {kept}")
            for token in kept[1][:count]:
                digest = advance_digest(digest, token)
            num_tokens += count
        if num_tokens != rows.position:
            raise InvariantError(f"the state after {num_tokens} tokens used at position {rows.position}: {access}")
        return num_tokens, digest

    def _advance(self, rows: SequenceRows, state: tuple[int, int], tokens: list[int]) -> None:
        access = rows.state
        if access is None:
            raise InvariantError("rows without state access")
        position, digest = state
        digests = [digest]
        for token in tokens:
            digests.append(advance_digest(digests[-1], token))
        if digests[-1] != formula_digest(self._read(rows, position + rows.count)):
            raise InvariantError(f"the state at position {position + rows.count} is not that of its tokens: {access}")
        for count, slot in access.saves:
            self._slots[slot] = (position + count, digests[count])
        if access.journal is not None:
            self._journals[access.journal] = (position, tokens)


def advance_digest(digest: int, token: int) -> int:
    """The digest of some tokens and one more."""
    return (digest + token + 1) * _GENERATOR % _PRIME


def formula_digest(tokens: npt.NDArray[np.int64]) -> int:
    """`advance_digest` over all tokens, from 0."""
    return int(((tokens + 1) * _powers(len(tokens))[::-1] % _PRIME).sum() % _PRIME)


def formula_logits(tokens: npt.NDArray[np.int64], vocab_size: int) -> npt.NDArray[np.float32]:
    """The logits `[V]` of `FormulaModel` after `tokens`: evenly spread in [0, 8), different for every prefix."""
    digest = formula_digest(tokens)
    ids = np.arange(1, vocab_size + 1, dtype=np.uint64)
    mixed = (ids * np.uint64(2654435761) ^ np.uint64(digest)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return ((mixed >> np.uint64(40)).astype(np.float64) * (8.0 / 2**24)).astype(np.float32)


@cache
def _powers(count: int) -> npt.NDArray[np.int64]:
    """The first `count` powers of the generator modulo the prime, int64 below 2**31."""
    powers = np.empty(count, dtype=np.int64)
    power = 1
    for index in range(count):
        power = power * _GENERATOR % _PRIME
        powers[index] = power
    return powers


class ScriptedModel:
    """Emits a given list of ids, to every sequence from its own first token on; the last id repeats for ever.

    Each sequence is followed by its first page, and starts again when a row has position 0. Drafts are as good as any
    other tokens: what follows a row depends on its position only.
    """

    def __init__(self, vocab_size: int, script: Sequence[int]) -> None:
        if not script or not all(0 <= token < vocab_size for token in script):
            raise InvariantError(f"a script needs ids below {vocab_size}, got {list(script)}")
        self._vocab_size = vocab_size
        self._script = tuple(script)
        self._first_positions: dict[int, int] = {}

    def forward(self, batch: ForwardBatch) -> Logits:
        logits = np.zeros((len(batch.logit_rows), self._vocab_size), dtype=np.float32)
        wanted = {int(row): index for index, row in enumerate(batch.logit_rows)}
        for rows in batch.sequences:
            key = int(rows.pages[0])
            if rows.position == 0:
                self._first_positions.pop(key, None)
            for offset in range(rows.count):
                index = wanted.get(rows.start + offset)
                if index is not None:
                    position = rows.position + offset
                    step = position - self._first_positions.setdefault(key, position)
                    logits[index, self._script[min(step, len(self._script) - 1)]] = 1.0
        return logits

    def close(self) -> None:
        self._first_positions.clear()


class FaultyModel:
    """Another model with faults: each mapping is keyed by the index of the forward call, from 0.

    sleep_s: seconds that every call takes longer. raise_at: exceptions raised instead of running; raise_after: when the
    step is done. replace_at: (logit row, value) whose first logit becomes `value`: NaN, infinity, anything.
    """

    def __init__(
        self,
        model: ForwardModel,
        *,
        sleep_s: float = 0.0,
        raise_at: Mapping[int, BaseException] | None = None,
        raise_after: Mapping[int, BaseException] | None = None,
        replace_at: Mapping[int, tuple[int, float]] | None = None,
    ) -> None:
        self._model = model
        self._sleep_s = sleep_s
        self._raise_at = raise_at or {}
        self._raise_after = raise_after or {}
        self._replace_at = replace_at or {}
        self.num_calls = 0

    def forward(self, batch: ForwardBatch) -> Logits:
        call = self.num_calls
        self.num_calls += 1
        if self._sleep_s:
            time.sleep(self._sleep_s)
        if call in self._raise_at:
            raise self._raise_at[call]
        logits = self._model.forward(batch)
        if call in self._raise_after:
            raise self._raise_after[call]
        if call in self._replace_at:
            row, value = self._replace_at[call]
            logits[row, 0] = value
        return logits

    def close(self) -> None:
        self._model.close()


class ScriptedProposer:
    """Drafts by a rule: `next_ids(tokens, k)` gives at most `k` tokens that may follow all tokens of a sequence.

    Watches what the engine owes a proposer: sequences are told of every row once and in order, drafts are asked for
    behind exactly those, and nothing is asked or told of a sequence that was forgotten.
    """

    num_grades = 1

    def __init__(self, next_ids: NextIds, max_window: int) -> None:
        self.max_window = max_window
        self._next_ids = next_ids
        self._observed: dict[int, int] = {}
        self.closed = False

    def propose(self, tasks: Sequence[DraftTask]) -> list[Draft]:
        drafts = []
        for task in tasks:
            if not 1 <= task.window <= self.max_window or self._observed.get(task.sequence) != len(task.tokens) - 1:
                raise InvariantError(f"{task} with {self._observed} observed")
            if len(task.pages) < pages_for(len(task.tokens) + task.window):
                raise InvariantError(f"{len(task.pages)} pages for {len(task.tokens)} tokens and {task.window} drafted")
            drafts.append(Draft(tuple(self._next_ids(task.tokens.tolist(), task.window))))
        return drafts

    def observe(self, committed: Sequence[Committed]) -> None:
        for rows in committed:
            # What a prefix hit brought along, whole pages of it, is not told.
            known = self._observed.get(rows.sequence, rows.position if rows.position % PAGE_TOKENS == 0 else -1)
            if rows.position != known or len(rows.tokens) <= rows.position + rows.count:
                raise InvariantError(f"{rows} observed behind {known} tokens")
            if len(rows.pages) < pages_for(rows.position + rows.count):
                raise InvariantError(f"{len(rows.pages)} pages for {rows}")
            self._observed[rows.sequence] = rows.position + rows.count

    def settle(self, sequence: int) -> None:
        if sequence not in self._observed:
            raise InvariantError(f"sequence {sequence} settled, which is not known")

    def forget(self, sequence: int) -> None:
        self._observed.pop(sequence, None)

    def close(self) -> None:
        self.closed = True


def fixed_drafts(ids: Sequence[int]) -> NextIds:
    """The same tokens whatever came before."""
    return lambda tokens, k: ids[:k]


def random_drafts(vocab_size: int, seed: int) -> NextIds:
    """Any tokens, and any number of them up to the window, none included."""
    rng = np.random.default_rng(seed)
    return lambda tokens, k: rng.integers(0, vocab_size, rng.integers(0, k + 1)).tolist()


def known_drafts(texts: Iterable[Sequence[int]], right: Callable[[int], bool], vocab_size: int) -> NextIds:
    """Continuations of known texts (prompt and answer, ids below `vocab_size`), right or wrong by absolute position.

    Behind the end of a text, and behind tokens that begin none of them, nothing is drafted.
    """
    known = [list(text) for text in texts]

    def next_ids(tokens: list[int], k: int) -> list[int]:
        for text in known:
            if text[: len(tokens)] == tokens:
                start = len(tokens)
                return [
                    token if right(start + i) else (token + 1) % vocab_size
                    for i, token in enumerate(text[start : start + k])
                ]
        return []

    return next_ids


def formula_drafts(vocab_size: int, right: Callable[[int], bool]) -> NextIds:
    """What a `FormulaModel` of so many ids says greedily, right or wrong by absolute position."""

    def next_ids(tokens: list[int], k: int) -> list[int]:
        text, ids = list(tokens), []
        for _ in range(k):
            text.append(int(formula_logits(np.array(text), vocab_size).argmax()))
            ids.append(text[-1] if right(len(text) - 1) else (text[-1] + 1) % vocab_size)
        return ids

    return next_ids
