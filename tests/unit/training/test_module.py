"""The head as a module: training's steps over all columns are what a draft does token by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from make.tiny_llama import CONFIGS, random_weights, write_artifact
from ninfer.artifact import Artifact
from ninfer.training.module import Columns, FrozenTarget, MTPHead, chain, load_target


@pytest.fixture(params=["uneven", "wide"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> FrozenTarget:
    config = CONFIGS[request.param]
    path = write_artifact(tmp_path / "target.ninfer", config, random_weights(config), "f32")
    with Artifact.open(path) as artifact:
        return load_target(artifact)


def head_of(target: FrozenTarget) -> MTPHead:
    """A head whose parameters are all its own."""
    head = MTPHead(target, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return head


def inputs(target: FrozenTarget, length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(target.config.vocab_size, (2, length), generator=generator)
    return target.embed[tokens].float(), torch.randn(2, length, target.config.hidden_size, generator=generator)


def drafted(head: MTPHead, embedded: Tensor, hidden: Tensor, base: int, steps: int) -> list[Tensor]:
    """m of a draft from column `base`, as a decoder would: one column after the other, true columns before it."""
    outputs: list[Tensor] = []
    rows = hidden[:, : base + 1]
    for step in range(steps):
        # The true rows, then the head's own: a plain causal pass over what is known so far.
        count = base + 1 + step
        m = head(embedded[:, :count], rows, Columns())
        outputs.append(m[:, -1])
        rows = torch.cat([rows, m[:, -1:]], dim=1)
    return outputs


@torch.no_grad()
def test_steps_over_all_columns_equal_drafting_from_each(target: FrozenTarget) -> None:
    head, steps, length = head_of(target), 4, 9
    embedded, hidden = inputs(target, length)
    outputs = chain(head, embedded, hidden, steps)
    for base in range(length - steps + 1):
        for step, expected in enumerate(drafted(head, embedded, hidden, base, steps)):
            torch.testing.assert_close(outputs[step][:, base + step], expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_columns_do_not_see_what_comes_later(target: FrozenTarget) -> None:
    head = head_of(target)
    embedded, hidden = inputs(target, 8)
    before = chain(head, embedded, hidden, 3)
    embedded[:, 5:], hidden[:, 5:] = 7.0, -3.0
    for step, (old, new) in enumerate(zip(before, chain(head, embedded, hidden, 3), strict=True)):
        assert torch.equal(old[:, step:5], new[:, step:5])
        assert not torch.equal(old[:, 5:], new[:, 5:])


def oracle(head: MTPHead, embedded: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """m of all true columns of one sequence, from the formulas in float64."""
    config = head.config
    w = {name: p.detach().double().numpy() for name, p in head.named_parameters()}

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_norm_eps) * weight

    def turned(x: np.ndarray, pos: int) -> np.ndarray:
        half = config.head_dim // 2
        angle = pos * config.rope_theta ** (-np.arange(half) / half)
        a, b = x[:, :half], x[:, half:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], 1)

    x = np.concatenate([norm(embedded, w["embed_norm"]), norm(hidden, w["hidden_norm"])], 1) @ w["fc"].T
    a = norm(x, w["layer.mix_norm"])
    keys, values = [], []
    for pos, row in enumerate(a):
        keys.append(turned((w["layer.k"] @ row).reshape(config.num_kv_heads, -1), pos))
        values.append((w["layer.v"] @ row).reshape(config.num_kv_heads, -1))
        q = turned((w["layer.q"] @ row).reshape(config.num_heads, -1), pos)
        heads = []
        for i in range(config.num_heads):
            kv = i * config.num_kv_heads // config.num_heads
            scores = np.array([q[i] @ key[kv] for key in keys]) / config.head_dim**0.5
            share = np.exp(scores - scores.max())
            heads.append(sum(s * value[kv] for s, value in zip(share / share.sum(), values, strict=True)))
        x[pos] += w["layer.o"] @ np.concatenate(heads)
    z = norm(x, w["layer.mlp_norm"])
    gate = z @ w["layer.gate"].T
    x = x + (gate / (1 + np.exp(-gate)) * (z @ w["layer.up"].T)) @ w["layer.down"].T
    return norm(x, w["norm"])


@torch.no_grad()
def test_columns_of_true_rows_equal_the_formulas(target: FrozenTarget) -> None:
    head = head_of(target)
    embedded, hidden = inputs(target, 7)
    m = head(embedded, hidden, Columns())
    for row in range(2):
        expected = oracle(head, embedded[row].double().numpy(), hidden[row].double().numpy())
        np.testing.assert_allclose(m[row].numpy(), expected, rtol=1e-4, atol=1e-4)
