"""Distillation over a shortlist of the vocabulary, with the gradient computed beside the loss, block by block.

The draft is to give what the target gives next: its whole distribution, and above all its first choice, because a draft
is the argmax. With the target's distribution p over the shortlist, the goal of a row is `(1 - peak) p + peak argmax(p)`
and its loss the cross entropy to the draft's distribution q; the gradient with regard to the logits is `q - goal`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

BLOCK_ROWS = 256
"""Rows worked on at a time: logits of 256 rows and 8192 words are 8 MiB, which stays in cache."""


@dataclass(frozen=True, eq=False)
class Goals:
    """What rows should predict: probabilities `[R, V]` over the shortlist, and the best of them, int64 `[R]`."""

    probabilities: Tensor
    best: Tensor


def make_goals(hidden: Tensor, head: Tensor, peak: float) -> Goals:
    """Goals of target rows `[R, H]` under the shortlist's rows of the head, `[V, H]`."""
    probabilities = torch.empty(len(hidden), len(head))
    best = torch.empty(len(hidden), dtype=torch.int64)
    for start in range(0, len(hidden), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        p = functional.linear(hidden[rows].float(), head).softmax(-1)
        best[rows] = p.max(-1).indices
        probabilities[rows] = p.mul_(1 - peak).scatter_add_(1, best[rows, None], torch.full((len(p), 1), peak))
    return Goals(probabilities, best)


class _Distill(torch.autograd.Function):
    """Loss `[R]` and choice `[R]` of draft rows `[R, H]`; their logits exist for one block at a time."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, head: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        losses = torch.empty(len(rows))
        choices = torch.empty(len(rows), dtype=torch.int64)
        gradients = torch.empty_like(rows)
        for start in range(0, len(rows), BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            logits = functional.linear(rows[block], head)
            goal = probabilities[block]
            q = logits.softmax(-1)
            highest, choices[block] = q.max(-1)
            # log q = logits - normaliser, and the largest q is the one that cannot have become zero.
            normaliser = logits.gather(1, choices[block, None])[:, 0] - highest.log()
            losses[block] = normaliser - torch.linalg.vecdot(goal, logits)
            gradients[block] = q.sub_(goal) @ head
        ctx.save_for_backward(gradients)
        ctx.mark_non_differentiable(choices)
        return losses, choices

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> tuple[Tensor, None, None]:
        (gradients,) = ctx.saved_tensors
        return gradients * outputs[0][:, None], None, None


def distill(rows: Tensor, head: Tensor, goals: Goals) -> tuple[Tensor, Tensor]:
    """(loss `[R]`, whether the draft's choice is the target's, bool `[R]`) of draft rows float32 `[R, H]`."""
    losses, choices = _Distill.apply(rows, head, goals.probabilities)
    return losses, choices == goals.best


def chain_loss(
    outputs: list[Tensor], hidden: Tensor, drafts: Tensor, head: Tensor, *, decay: float, floor: float, peak: float
) -> tuple[Tensor, list[Tensor]]:
    """Weighted mean loss of all steps, and per step whether each of its rows agrees with the target.

    outputs: m per step, `[B, S, H]`; hidden `[B, S + 1, H]` and drafts `[B, S]` as in `data.Batch`. A row of step d has
    weight `decay**d`, and of that only the share `floor` per earlier token of its draft that was wrong: what follows a
    wrong token is never used.
    """
    goals = make_goals(hidden[:, 1:][drafts], head, peak)
    number = torch.full(drafts.shape, -1, dtype=torch.int64)
    number[drafts] = torch.arange(len(goals.best))
    total, mass = torch.zeros(()), torch.zeros(())
    agreements: list[Tensor] = []
    usable = torch.ones(drafts.shape)
    wanted = drafts
    for step, m in enumerate(outputs):
        if step:  # step d at column c goes on from step d-1 at column c-1, whose draft must be one of the response
            wanted = wanted & functional.pad(wanted[:, :-1], (1, 0), value=False)
            usable = functional.pad(usable[:, :-1], (1, 0))
        rows = number[wanted]
        losses, agrees = distill(m[wanted], head, Goals(goals.probabilities[rows], goals.best[rows]))
        weights = decay**step * usable[wanted]
        total, mass = total + (losses * weights).sum(), mass + weights.sum()
        usable = usable.masked_scatter(wanted, usable[wanted] * torch.where(agrees, 1.0, floor))
        agreements.append(agrees)
    return total / mass, agreements
