"""Drafts of a block model (`models.dflash`): context rows of the text so far, then one pass that fills a block.

Rows of the target become keys and values of the draft; most of a prompt's as soon as they are final, in decoding those
of a round together with the next draft. A block always has the size the model was trained with, and of its slots only
the wanted ones are chosen. Its keys and values are provisional: they lie behind all context rows, which overwrite them,
and what reaches beyond the pages of a sequence lies in a spare page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ninfer.decoding import filters
from ninfer.decoding.proposer import NO_DRAFT, Committed, Draft, DraftTask, Ids
from ninfer.decoding.proposers.choice import Logits, choose
from ninfer.decoding.proposers.columns import Backlog, Columns, FeatureSource, Rows, forward_batch, in_batches, stacked
from ninfer.decoding.random import Purpose, uniform
from ninfer.decoding.sampler import Candidates
from ninfer.errors import InvariantError
from ninfer.models.batch import PAGE_TOKENS, ForwardBatch, SequenceRows
from ninfer.models.dflash import DFlashConfig, Selector
from ninfer.models.draft_model import DraftModel, SelectorTables


class DFlashProposer:
    """Drafts by a block model; `target` must give the residuals that it reads."""

    num_grades = 1

    def __init__(self, target: FeatureSource, draft: DraftModel) -> None:
        """Takes over `draft`; `close` closes it."""
        if not isinstance(draft.module, DFlashConfig):
            raise InvariantError(f"a block draft of {draft.module}")
        self._target = target
        self._draft = draft
        self._config = draft.module
        self._context, self._block = draft.passes
        self._backlog = Backlog()
        self.max_window = self._config.block_size - 1

    def propose(self, tasks: Sequence[DraftTask]) -> list[Draft]:
        known = [index for index, task in enumerate(tasks) if self._backlog.is_known(task)]
        self._run(self._backlog.take(tasks[index].sequence) for index in known)
        drafts = [NO_DRAFT] * len(tasks)
        together = self._block.max_rows // self._config.block_size
        for first in range(0, len(known), together):
            part = known[first : first + together]
            for index, draft in zip(part, self._fill([tasks[index] for index in part]), strict=True):
                drafts[index] = draft
        return drafts

    def observe(self, committed: Sequence[Committed]) -> None:
        features = [self._target.feature(layer) for layer in self._config.feature_layers]
        due: list[Columns] = []
        for kept in committed:
            mine = slice(kept.row, kept.row + kept.count)
            rows = np.concatenate([feature[mine] for feature in features], axis=1)
            due.append(self._backlog.add(kept, np.zeros(kept.count, np.int32), rows, keep=0))
        self._run(due)

    def settle(self, sequence: int) -> None:
        self._run(self._backlog.take_full_pages(sequence))

    def forget(self, sequence: int) -> None:
        self._backlog.forget(sequence)

    def close(self) -> None:
        self._draft.close()

    def _run(self, parts: Iterable[Columns]) -> None:
        """Leave keys and values of context rows."""
        for batch in in_batches(parts, self._context.max_rows):
            self._context.run(forward_batch(batch, wanted=()), (stacked([part.rows for part in batch]),))

    def _fill(self, tasks: Sequence[DraftTask]) -> list[Draft]:
        """One draft per task, from one pass over all their blocks."""
        windows = [min(task.window, self.max_window) for task in tasks]
        logits = self._block.run(self._blocks(tasks, windows), ())
        factors = None if self._config.selector is None else self._block.executable.feature("final")
        drafts, row = [], 0
        for task, window in zip(tasks, windows, strict=True):
            mine = slice(row, row + window)
            row += window
            chosen = self._choose(task, logits[mine], None if factors is None else factors[mine])
            ids, drawn = [token for token, _ in chosen], [found for _, found in chosen if found is not None]
            drafts.append(Draft(tuple(ids), tuple(drawn) if drawn else None))
        return drafts

    def _blocks(self, tasks: Sequence[DraftTask], windows: Sequence[int]) -> ForwardBatch:
        size = self._config.block_size
        ids = np.full((len(tasks), size), self._config.mask_token_id, np.int32)
        sequences: list[SequenceRows] = []
        wanted: list[int] = []
        for index, (task, window) in enumerate(zip(tasks, windows, strict=True)):
            start, first = len(task.tokens) - 1, index * size
            ids[index, 0] = task.tokens[-1]
            needed = -(-(start + size) // PAGE_TOKENS)
            pages: Ids = task.pages[:needed]
            if len(pages) < needed:
                pages = np.append(pages, np.int32(self._draft.spare_page + index))
            sequences.append(SequenceRows(first, size, start, pages))
            wanted += range(first + 1, first + 1 + window)
        return ForwardBatch(ids.reshape(-1), tuple(sequences), np.array(wanted, np.int32))

    def _choose(self, task: DraftTask, logits: Logits, factors: Rows | None) -> list[tuple[int, Candidates | None]]:
        """Tokens of the slots from the first on, and what each was drawn from if it was drawn."""
        start, config = len(task.tokens), self._config
        chosen: list[tuple[int, Candidates | None]] = []
        if config.selector is None or factors is None or self._draft.selector is None:
            scaled = processed(logits, config)
            return [choose(row, task, start + slot, self._draft.ids) for slot, row in enumerate(scaled)]
        token = int(task.tokens[-1])
        for slot, (row, factor) in enumerate(zip(logits, factors, strict=True)):
            ids, scores = self._score(row, factor, token, config.selector, self._draft.selector)
            if task.seed is None or task.sampling.is_greedy:
                token, drawn = int(ids[scores.argmax()]), None
            else:
                weights = np.exp((scores - scores.max()) / task.sampling.temperature)
                drawn = Candidates(ids, weights / weights.sum())
                token = drawn.draw(uniform(task.seed, start + slot, Purpose.DRAFT))
            chosen.append((token, drawn))
        return chosen

    def _score(
        self, logits: Logits, factor: Rows, before: int, selector: Selector, tables: SelectorTables
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best candidates of a slot, ascending ids int64, and their scores behind the token `before`, float64."""
        best = filters.top_k(logits, selector.candidates)
        ids = best.astype(np.int64) if self._draft.ids is None else self._draft.ids[best].astype(np.int64)
        coupling = tables.predecessor.rows(np.array([before]))[0].astype(np.float64) * factor
        scores = processed(logits[best].astype(np.float64), self._config)
        return ids, scores + tables.successor.rows(ids).astype(np.float64) @ coupling


def processed(logits: np.ndarray, config: DFlashConfig) -> np.ndarray:
    """Logits of the head after multiplier and cap."""
    if config.output_multiplier != 1:
        logits = logits * config.output_multiplier
    return logits if config.softcap is None else np.tanh(logits / config.softcap) * config.softcap
