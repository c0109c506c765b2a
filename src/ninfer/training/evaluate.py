"""How much of what a head drafts the target would accept, on greedy responses to prompts it was not trained on.

The responses are the target's own greedy text, so a draft token is accepted exactly if it is the next token of the
response, and rounds of a real run can be walked through without the target. `ninfer bench` measures the real loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from ninfer.training.data import Example, Ids, collate, epoch_batches
from ninfer.training.loop import Training
from ninfer.training.module import FrozenTarget

BATCH_COLUMNS = 4096

Hits = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Acceptance:
    """Of one workload: rounds with a constant window, with the field's counts (`ninfer.metrics`).

    accepted_per_position[i]: rounds whose first i + 1 draft tokens were accepted; drafted_per_position[i]: rounds that
    had an i + 1st. A draft is never longer than what is left of the response.
    """

    workload: str
    window: int
    rounds: int
    accepted_per_position: tuple[int, ...]
    drafted_per_position: tuple[int, ...]

    @property
    def position_acceptance(self) -> tuple[float, ...]:
        pairs = zip(self.accepted_per_position, self.drafted_per_position, strict=True)
        return tuple(accepted / max(drafted, 1) for accepted, drafted in pairs)

    @property
    def tokens_per_round(self) -> float:
        return 1 + sum(self.accepted_per_position) / max(self.rounds, 1)


def evaluate(
    training: Training, target: FrozenTarget, shortlist: Ids, examples: Sequence[Example], window: int
) -> list[Acceptance]:
    """Acceptance by workload, then over all (`all`), of drafts among the words of `shortlist`."""
    ids = torch.from_numpy(shortlist)
    rows = target.head[ids].float()
    hits: dict[str, list[Hits]] = {}
    for batch in epoch_batches(examples, BATCH_COLUMNS, seed=0, epoch=0):
        for example, found in zip(batch, _hits(training, batch, ids, rows, window), strict=True):
            hits.setdefault(example.workload, []).append(found)
    everything = [found for group in hits.values() for found in group]
    return [count_rounds(name, group, window) for name, group in [*sorted(hits.items()), ("all", everything)]]


def count_rounds(workload: str, hits: Sequence[Hits], window: int) -> Acceptance:
    """Walk each response in rounds of at most `window` draft tokens.

    hits[a, i]: whether draft token i + 1 after anchor a would be right; row a of n is the a-th response token, and has
    n - 1 - a tokens after it.
    """
    accepted, drafted, rounds = np.zeros(window, np.int64), np.zeros(window, np.int64), 0
    for found in hits:
        anchor, last = 0, len(found) - 1
        while anchor < last:
            length = min(window, last - anchor)
            right = found[anchor, :length]
            count = length if right.all() else int(right.argmin())
            accepted[:count] += 1
            drafted[:length] += 1
            rounds += 1
            anchor += count + 1
    return Acceptance(workload, window, rounds, tuple(accepted.tolist()), tuple(drafted.tolist()))


@torch.no_grad()
def _hits(training: Training, examples: Sequence[Example], ids: Tensor, rows: Tensor, window: int) -> list[Hits]:
    """As `count_rounds` takes them."""
    outputs = training.outputs(collate(examples), window)
    result = []
    for row, example in enumerate(examples):
        n = example.num_columns
        found = np.zeros((len(example.ids) - example.first, window), np.bool_)
        for i, m in enumerate(outputs):
            # Draft token i + 1 after the anchor at `first + a` comes from column `first + a - 1 + i`.
            columns = slice(example.first - 1 + i, n - 1)
            chosen = ids[functional.linear(m[row, columns], rows).argmax(-1)].numpy()
            right = chosen == example.ids[columns.start + 2 :]
            found[: len(right), i] = right
        result.append(found)
    return result
