"""Gated delta rule: hand-made values, the chunked form of the same mathematics, and transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from make.op_runs import BACKENDS, run_case, sizes_of
from make.state_runs import whole_histories
from ninfer.ops.gated_delta_rule import cases, oracle
from ninfer.ops.profiles import RECURRENCE
from ninfer.ops.spec import Case, F32Array, F64Array


def test_hand_made_values() -> None:
    s = np.array([[[8.0, 0.0, 4.0], [0.0, 2.0, 2.0]]])  # one head, Dk 2, Dv 3
    q, k, v = np.array([[[1.0, 10.0]]]), np.array([[[2.0, 1.0]]]), np.array([[[5.0, 5.0, 5.0]]])
    o, after = oracle(q, k, v, np.array([[0.5]]), np.array([[0.25]]), s)
    # Decayed: [4 0 2; 0 1 1]. Held: [8 1 5]. Correction: [-0.75 1 0].
    np.testing.assert_array_equal(after, [[[2.5, 2, 2], [-0.75, 2, 1]]])
    np.testing.assert_array_equal(o, [[[-5, 22, 12]]])
    np.testing.assert_array_equal(s[0, 0], [8, 0, 4])


def test_a_strength_of_one_stores_the_value_and_of_zero_nothing() -> None:
    rng = np.random.default_rng(1)
    k = rng.standard_normal((1, 1, 6))
    k /= np.linalg.norm(k)
    v, s = rng.standard_normal((1, 2, 5)), rng.standard_normal((2, 6, 5))
    o, _ = oracle(k, k, v, np.full((1, 2), 0.9), np.ones((1, 2)), s)
    np.testing.assert_allclose(o, v, rtol=1e-12)
    _, after = oracle(k, k, v, np.ones((1, 2)), np.zeros((1, 2)), s)
    np.testing.assert_array_equal(after, s)


def test_value_heads_share_key_heads_in_runs() -> None:
    """Six value heads over two key heads: heads 0 to 2 use the first."""
    k = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    _, after = oracle(k, k, np.ones((1, 6, 1)), np.ones((1, 6)), np.ones((1, 6)), np.zeros((6, 2, 1)))
    np.testing.assert_array_equal(after[..., 0], [[1, 0]] * 3 + [[0, 1]] * 3)


def chunked(
    q: F64Array, k: F64Array, v: F64Array, decay: F64Array, beta: F64Array, s: F64Array, size: int
) -> tuple[F64Array, F64Array]:
    """One head by chunks of `size` rows: q, k `[T, Dk]`, v `[T, Dv]`, decay, beta `[T]`, s `[Dk, Dv]`.

    The triangular form of Yang et al. 2024: the corrections of a chunk solve one linear system.
    """
    o = np.empty_like(v)
    for start in range(0, len(v), size):
        rows = slice(start, start + size)
        total = np.cumsum(np.log(decay[rows]))
        exponent = total[:, None] - total[None, :]
        between = np.exp(np.where(np.tri(len(total), dtype=bool), exponent, -np.inf))
        strengths, keys = beta[rows, None], k[rows]
        system = np.eye(len(total)) + np.tril(strengths * (keys @ keys.T) * between, -1)
        held = strengths * np.exp(total)[:, None] * keys
        corrections = np.linalg.solve(system, strengths * v[rows] - held @ s)
        o[rows] = np.exp(total)[:, None] * q[rows] @ s + (q[rows] @ keys.T * between) @ corrections
        s = np.exp(total[-1]) * s + (np.exp(total[-1] - total)[:, None] * keys).T @ corrections
    return o, s


@pytest.mark.parametrize("size", [1, 7, 64, 130])
def test_the_chunked_form_is_the_same_rule(size: int) -> None:
    rng = np.random.default_rng(2)
    length, k_heads, v_heads, key_dim, value_dim = 130, 2, 6, 20, 12
    q, k = (rng.standard_normal((length, k_heads, key_dim)) for _ in range(2))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v, s = rng.standard_normal((length, v_heads, value_dim)), rng.standard_normal((v_heads, key_dim, value_dim))
    decay, beta = np.exp(-rng.uniform(0, 2, (length, v_heads))), rng.uniform(0, 1, (length, v_heads))
    o, after = oracle(q, k, v, decay, beta, s)
    for j in range(v_heads):
        head = j // 3
        got_o, got_s = chunked(q[:, head], k[:, head], v[:, j], decay[:, j], beta[:, j], s[j], size)
        np.testing.assert_allclose(got_o, o[:, j], rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(got_s, after[j], rtol=1e-9, atol=1e-11)


def transformers_outputs(case: Case) -> list[F64Array]:
    """What the case gives after every step: the rule over whole histories, of which the last rows are wanted.

    That function works in float32, applies `1 / sqrt(Dk)` to q and wants logarithms of the factors.
    """
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule

    shape = sizes_of(case)
    repeats, dim = shape["v_heads"] // shape["k_heads"], shape["key_dim"]

    def heads(x: F32Array, count: int) -> torch.Tensor:
        return torch.from_numpy(x).unflatten(1, (count, -1))[None]

    results = []
    for sequences in whole_histories(case.steps):
        parts = []
        for before, (q, k, v, gates) in sequences:
            decay, beta = np.split(gates, 2, axis=1)
            output, _ = torch_recurrent_gated_delta_rule(
                heads(q, shape["k_heads"]).repeat_interleave(repeats, dim=2) * dim**0.5,
                heads(k, shape["k_heads"]).repeat_interleave(repeats, dim=2),
                heads(v, shape["v_heads"]),
                torch.from_numpy(np.log(decay))[None],
                torch.from_numpy(beta)[None],
                initial_state=None,
                output_final_state=False,
            )
            parts.append(output[0, before:].flatten(1).double())
        results.append(torch.cat(parts).numpy())
    return results


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", list(cases(np.random.default_rng(17))), ids=lambda case: case.label)
def test_transformers_agrees(case: Case, backend: str) -> None:
    for got, want in zip(run_case(backend, case), transformers_outputs(case), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", list(cases(np.random.default_rng(18))), ids=lambda case: case.label)
def test_slots_and_journals_are_as_if_every_sequence_ran_alone_from_its_first_row(case: Case, backend: str) -> None:
    shape = sizes_of(case)
    for got, sequences in zip(run_case(backend, case), whole_histories(case.steps), strict=True):
        parts = []
        for before, inputs in sequences:
            q, k, v, gates = (x.astype(np.float64) for x in inputs)
            decay, beta = np.split(gates, 2, axis=1)
            zero = np.zeros((shape["v_heads"], shape["key_dim"], shape["value_dim"]))
            q, k = (x.reshape(len(x), shape["k_heads"], -1) for x in (q, k))
            o, _ = oracle(q, k, v.reshape(len(v), shape["v_heads"], -1), decay, beta, zero)
            parts.append(o[before:].reshape(-1, shape["v_heads"] * shape["value_dim"]))
        assert RECURRENCE.excess(got, np.concatenate(parts)) <= 1
