"""Distillation: the block-wise loss and its own gradient against autograd, and which rows count how much."""

from __future__ import annotations

import torch
from torch.nn import functional

from ninfer.training import loss
from ninfer.training.loss import chain_loss, distill, make_goals

H, V = 24, 50


def head_rows(seed: int = 1) -> torch.Tensor:
    return torch.randn(V, H, generator=torch.Generator().manual_seed(seed))


def test_loss_and_gradient_are_those_of_plain_cross_entropy(monkeypatch) -> None:
    monkeypatch.setattr(loss, "BLOCK_ROWS", 4)
    generator = torch.Generator().manual_seed(2)
    head, hidden = head_rows(), torch.randn(11, H, generator=generator).to(torch.bfloat16)
    rows = torch.randn(11, H, generator=generator).requires_grad_()
    weights = torch.rand(11, generator=generator)
    goals = make_goals(hidden, head, peak=0.25)
    losses, agrees = distill(rows, head, goals)
    (losses * weights).sum().backward()
    mine, rows.grad = rows.grad, None

    p = functional.linear(hidden.float(), head).softmax(-1)
    goal = 0.75 * p + 0.25 * functional.one_hot(p.argmax(-1), V)
    logits = functional.linear(rows, head)
    plain = functional.cross_entropy(logits, goal, reduction="none")
    (plain * weights).sum().backward()
    torch.testing.assert_close(losses, plain.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine, rows.grad, rtol=1e-4, atol=1e-4)
    assert torch.equal(agrees, logits.argmax(-1) == p.argmax(-1))


def test_a_row_that_equals_the_target_agrees_and_has_the_least_loss() -> None:
    head = head_rows()
    hidden = torch.randn(9, H, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    goals = make_goals(hidden, head, peak=0.0)
    same, agrees = distill(hidden.float(), head, goals)
    other, _ = distill(-hidden.float(), head, goals)
    assert agrees.all()
    assert (same < other).all()


def test_what_follows_a_wrong_token_counts_only_by_the_floor() -> None:
    """With floor 0 nothing after a wrong first token matters; with floor 1 all does."""
    head = head_rows()
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(1, 6, H, generator=generator).to(torch.bfloat16)
    drafts = torch.tensor([[False, True, True, True, True]])
    right = hidden[:, 1:].float()  # row c is where the target chose what column c predicts

    def value(first: torch.Tensor, second: torch.Tensor, floor: float) -> tuple[float, list[int]]:
        total, agreements = chain_loss([first, second], hidden, drafts, head, decay=1.0, floor=floor, peak=0.0)
        return float(total), [int(agrees.sum()) for agrees in agreements]

    _, counts = value(right, right, 0.0)
    assert counts == [4, 3]  # one column less per step: each goes on from the column before it
    wrong, other = -right, -right.flip(1)
    assert value(wrong, right, 0.0)[0] == value(wrong, other, 0.0)[0]
    assert value(wrong, right, 1.0)[0] != value(wrong, other, 1.0)[0]
    assert value(right, right, 0.0)[0] < value(right, wrong, 0.0)[0]
