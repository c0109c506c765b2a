"""Where training starts: the linear map that comes closest to what the target computed next.

A column p of a head stands for the target's row p + 1: with that row in its place, every draft would be the target's
own choice. So `fc` starts as the least-squares map from (embedding of x_{p+1}, h_p) to h_{p+1}, and the layer,
which adds nothing yet, learns the rest. This takes one pass over the data and saves most of the steps.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn import functional

from ninfer.training.data import Batch
from ninfer.training.module import FrozenTarget, MTPHead

RIDGE = 1e-3
"""Of the mean square of an input is added to each, so that directions the data does not have stay at zero."""

SMALLEST_WEIGHT = 1e-3
"""Norm weights below it hide their dimension; what would stand there is not asked for."""


@torch.no_grad()
def fit_start(head: MTPHead, target: FrozenTarget, batches: Iterable[Batch]) -> None:
    """Set the weights of `head` for the columns from which drafts are made in `batches`."""
    hidden = target.config.hidden_size
    squares = torch.zeros(2 * hidden, 2 * hidden, dtype=torch.float64)
    products = torch.zeros(2 * hidden, hidden, dtype=torch.float64)
    head.embed_norm.fill_(1.0)
    head.hidden_norm.fill_(1.0)
    head.norm.copy_(target.norm)
    # Rows behind the target's last norm are a direction times its weight; the head's last norm multiplies by it again.
    weight = torch.where(target.norm.abs() > SMALLEST_WEIGHT, target.norm, torch.inf)
    for batch in batches:
        embedded = functional.embedding(batch.tokens, target.embed).float()[batch.drafts]
        rows = batch.hidden.float()
        given = head.joined(embedded, rows[:, :-1][batch.drafts])
        wanted = rows[:, 1:][batch.drafts] / weight
        squares += (given.T @ given).double()
        products += (given.T @ wanted).double()
    squares.diagonal().add_(RIDGE * squares.diagonal().mean())
    head.fc.copy_(torch.linalg.solve(squares, products).T.float())
