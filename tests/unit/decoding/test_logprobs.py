from __future__ import annotations

import math

import numpy as np
import pytest

from ninfer.decoding import token_logprobs


@pytest.mark.parametrize("size", [1, 2, 100, 49152])
def test_logprobs_equal_a_float64_log_softmax(size: int) -> None:
    logits = (np.random.default_rng(size).standard_normal(size) * 4).astype(np.float32)
    exact = logits.astype(np.float64) - math.log(math.fsum(math.exp(value) for value in logits.tolist()))
    token = size // 2
    found = token_logprobs(logits, token, 5)
    assert found.chosen == pytest.approx(exact[token], abs=2e-6)
    order = np.lexsort((np.arange(size), -logits))[:5]
    assert [i for i, _ in found.top] == order.tolist()
    assert [p for _, p in found.top] == pytest.approx(exact[order].tolist(), abs=2e-6)


def test_the_chosen_token_agrees_with_its_entry_and_nothing_is_above_zero() -> None:
    logits = np.array([90.0, -90.0, 3.0], dtype=np.float32)
    found = token_logprobs(logits, 0, 3)
    assert found.top[0] == (0, found.chosen)
    assert found.chosen == 0.0
    assert all(p <= 0 for _, p in found.top)
    assert sum(math.exp(p) for _, p in found.top) <= 1.001


def test_equal_logits_list_the_lower_id_first() -> None:
    found = token_logprobs(np.array([1.0, 2.0, 2.0, 2.0], dtype=np.float32), 3, 2)
    assert [i for i, _ in found.top] == [1, 2]
    assert found.chosen == found.top[0][1]


def test_no_alternatives_when_none_are_wanted() -> None:
    assert token_logprobs(np.array([1.0, 2.0], dtype=np.float32), 0, 0).top == ()
