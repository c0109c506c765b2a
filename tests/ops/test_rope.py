"""Rotary embedding: which dims are paired, the direction of rotation, what passes through."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from make.op_runs import BACKENDS, run_case, sizes_of
from ninfer.ops.profiles import ELEMENTWISE
from ninfer.ops.rope import cases, oracle


def test_a_quarter_turn_moves_first_halves_to_second_halves() -> None:
    x = np.array([[1.0, 2, 3, 4, 5, 6, 10, 20, 30, 40, 50, 60]])  # two heads of 6
    quarter = np.array([[0.0, 0, 1, 1]])  # two pairs, cos 0, sin 1: dims (0, 2) and (1, 3)
    want = [[-3, -4, 1, 2, 5, 6, -30, -40, 10, 20, 50, 60]]
    np.testing.assert_array_equal(oracle(x, quarter, 2, 6), want)


def test_the_input_is_not_changed_and_no_turn_changes_nothing() -> None:
    x = np.random.default_rng(8).standard_normal((3, 12))
    before = x.copy()
    still = np.repeat([[1.0, 1, 0, 0]], 3, axis=0)
    np.testing.assert_array_equal(oracle(x, still, 3, 4), x)
    oracle(x, still[:, ::-1].copy(), 3, 4)
    np.testing.assert_array_equal(x, before)


def test_scores_depend_on_the_distance_only() -> None:
    rng = np.random.default_rng(9)
    q, k = rng.standard_normal((1, 8)), rng.standard_normal((1, 8))

    def turned(x: np.ndarray, position: float) -> np.ndarray:
        angle = position * np.array([1.0, 0.3, 0.09, 0.027])
        return oracle(x, np.concatenate([np.cos(angle), np.sin(angle)])[None], 1, 8)

    near, far = (float((turned(q, p + 5) * turned(k, p)).sum()) for p in (0, 1000))
    assert near == pytest.approx(far, rel=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_transformers_agrees(backend: str) -> None:
    for case in cases(np.random.default_rng(10)):
        (got,) = run_case(backend, case)
        x, angles = (torch.from_numpy(a).double() for a in case.steps[0].inputs)
        shape = sizes_of(case)
        heads = x.reshape(1, len(x), shape["heads"], shape["head_dim"]).transpose(1, 2)
        rotated, rest = heads[..., : shape["rotary_dim"]], heads[..., shape["rotary_dim"] :]
        cos, sin = (torch.cat([half, half], dim=-1)[None] for half in angles.chunk(2, dim=-1))
        rotated, _ = apply_rotary_pos_emb(rotated, rotated, cos, sin)
        want = torch.cat([rotated, rest], dim=-1).transpose(1, 2).reshape(x.shape)
        assert ELEMENTWISE.excess(got, want.numpy()) <= 1
