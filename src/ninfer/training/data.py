"""Responses with their hidden rows as padded batches, in an order that only a seed and an epoch decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ninfer.training.capture import BF16Rows
from ninfer.training.regenerate import Response

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Example:
    """One conversation. ids `[n]`; hidden bf16 `[n, H]`; first: index of the first response token."""

    key: str
    workload: str
    held_out: bool
    ids: Ids
    hidden: BF16Rows
    first: int

    @property
    def num_columns(self) -> int:
        """Columns that have both a hidden row and a next token."""
        return len(self.ids) - 1


@dataclass(frozen=True, eq=False)
class Batch:
    """Columns of some examples, padded at the end: column c has `hidden[:, c]` and next token `tokens[:, c]`.

    tokens int64 `[B, S]`; hidden bf16 `[B, S + 1, H]`: row c + 1 is where the target chose what column c predicts.
    drafts bool `[B, S]`: columns from which a draft is made of response tokens.
    """

    tokens: Tensor
    hidden: Tensor
    drafts: Tensor


def make_examples(responses: Sequence[Response], hidden: Sequence[BF16Rows]) -> list[Example]:
    """Those responses in which something can be drafted: a second token and more."""
    return [
        Example(
            response.key,
            response.workload,
            response.held_out,
            np.array([*response.prompt_ids, *response.ids], np.int64),
            rows,
            len(response.prompt_ids),
        )
        for response, rows in zip(responses, hidden, strict=True)
        if len(response.ids) > 1
    ]


def token_counts(examples: Sequence[Example]) -> Counter[int]:
    """How often each id occurs in prompts and responses."""
    counts: Counter[int] = Counter()
    for example in examples:
        counts.update(example.ids.tolist())
    return counts


def most_frequent(counts: Counter[int], size: int) -> Ids:
    """The `size` most frequent ids, ascending; ids that never occur complete it from the lowest on, which in a
    byte-pair vocabulary are the most common ones."""
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    chosen = dict.fromkeys(ranked[:size])
    token = 0
    while len(chosen) < size:
        chosen.setdefault(token)
        token += 1
    return np.array(sorted(chosen), np.int64)


def epoch_batches(examples: Sequence[Example], columns: int, *, seed: int, epoch: int) -> list[list[Example]]:
    """All examples in batches of at most `columns` padded columns (or one example), of similar lengths."""
    rng = np.random.default_rng([seed, epoch])
    # Lengths get noise, so that an example meets other neighbours in every epoch.
    lengths = np.array([example.num_columns for example in examples])
    order = np.argsort(lengths * rng.uniform(0.9, 1.1, len(examples)), kind="stable")
    batches: list[list[Example]] = []
    width = 0
    for index in order:
        longest = max(width, int(lengths[index]))
        if not batches or longest * (len(batches[-1]) + 1) > columns:
            batches.append([])
            longest = int(lengths[index])
        batches[-1].append(examples[index])
        width = longest
    return [batches[i] for i in rng.permutation(len(batches))]


def endless_batches(
    examples: Sequence[Example], columns: int, *, seed: int, skip: int = 0
) -> Iterator[tuple[int, Batch]]:
    """(epoch, batch) for step `skip` and on."""
    epoch, step = 0, 0
    while True:
        for batch in epoch_batches(examples, columns, seed=seed, epoch=epoch):
            if step >= skip:
                yield epoch, collate(batch)
            step += 1
        epoch += 1


def collate(examples: Sequence[Example]) -> Batch:
    width = max(example.num_columns for example in examples)
    tokens = torch.zeros(len(examples), width, dtype=torch.int64)
    hidden = torch.zeros(len(examples), width + 1, examples[0].hidden.shape[1], dtype=torch.bfloat16)
    drafts = torch.zeros(len(examples), width, dtype=torch.bool)
    for row, example in enumerate(examples):
        n = example.num_columns
        tokens[row, :n] = torch.from_numpy(example.ids[1:])
        # NumPy has no bf16: the same bits travel as int16.
        bits = torch.from_numpy(np.array(example.hidden).view(np.int16))
        hidden[row, : n + 1] = bits.view(torch.bfloat16)
        # The first draft follows the first response token, which is the next token of column first - 1.
        drafts[row, example.first - 1 : n] = True
    return Batch(tokens, hidden, drafts)
