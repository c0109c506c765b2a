"""The test models themselves: a watchman that never barks would prove nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ninfer.engine.testing import FaultyModel, FormulaModel, ScriptedModel, formula_logits, make_plan
from ninfer.errors import InvariantError
from ninfer.models.batch import ForwardBatch, SequenceRows

PLAN = make_plan(vocab_size=30, max_context=256, num_pages=4, prefill_chunk=70, max_concurrency=2)


def batch(
    tokens: list[int], *sequences: tuple[int, int, int, list[int]], logit_rows: list[int] | None = None
) -> ForwardBatch:
    """`sequences`: (start, count, position, pages)."""
    rows = tuple(SequenceRows(s, c, p, np.array(pages, dtype=np.int32)) for s, c, p, pages in sequences)
    wanted = [len(tokens) - 1] if logit_rows is None else logit_rows
    return ForwardBatch(np.array(tokens, dtype=np.int32), rows, np.array(wanted, dtype=np.int32))


def test_logits_follow_the_tokens_in_the_pages() -> None:
    model = FormulaModel(PLAN)
    tokens = [i % 30 for i in range(66)]
    whole = model.forward(batch(tokens, (0, 66, 0, [2, 0])))
    assert np.array_equal(whole[0], formula_logits(np.array(tokens), 30))
    model.forward(batch(tokens[:3], (0, 3, 0, [1]), logit_rows=[]))
    rest = model.forward(batch([tokens[3], 5], (0, 1, 3, [1]), (1, 1, 66, [2, 0]), logit_rows=[0, 1]))
    assert np.array_equal(rest[0], formula_logits(np.array(tokens[:4]), 30))
    assert np.array_equal(rest[1], formula_logits(np.array([*tokens, 5]), 30))


def test_formula_logits_tell_every_prefix_apart() -> None:
    rows = [formula_logits(np.array(p), 30) for p in ([1], [1, 1], [2], [1, 2], [2, 1], [0], [0, 0])]
    assert len({row.tobytes() for row in rows}) == len(rows)
    assert all((row >= 0).all() and (row < 8).all() for row in rows)


@pytest.mark.parametrize(
    ("tokens", "rows", "words"),
    [
        ([1], (0, 1, 1, [0]), "stale"),
        ([1], (0, 1, 70, [0, 1]), "stale"),
        ([1] * 65, (0, 65, 0, [0]), "has 1 pages and needs 2"),
        ([1], (0, 1, 0, [4]), "pages of sequence 0 has values"),
        ([30], (0, 1, 0, [0]), "token_ids has values"),
        ([1] * 72, (0, 72, 0, [0, 1]), "72 rows"),
    ],
)
def test_the_formula_model_refuses_what_an_engine_may_not_do(
    tokens: list[int], rows: tuple[int, int, int, list[int]], words: str
) -> None:
    with pytest.raises(InvariantError, match=words):
        FormulaModel(PLAN).forward(batch(tokens, rows))


def test_content_of_another_sequence_is_seen() -> None:
    model = FormulaModel(PLAN)
    model.forward(batch([1] * 3, (0, 3, 0, [0])))
    other = model.forward(batch([9], (0, 1, 0, [0])))
    mixed = model.forward(batch([9], (0, 1, 1, [0])))
    assert np.array_equal(mixed[0], formula_logits(np.array([9, 9]), 30))
    assert not np.array_equal(mixed, other)


def test_a_script_is_followed_by_each_sequence_from_its_start() -> None:
    model = ScriptedModel(30, [4, 5, 6])

    def emitted(forward: ForwardBatch) -> list[int]:
        return model.forward(forward).argmax(axis=1).tolist()

    assert emitted(batch([1, 1], (0, 2, 0, [0]))) == [4]
    assert emitted(batch([4, 1], (0, 1, 2, [0]), (1, 1, 0, [3]), logit_rows=[0, 1])) == [5, 4]
    assert emitted(batch([5, 4], (0, 1, 3, [0]), (1, 1, 1, [3]), logit_rows=[0, 1])) == [6, 5]
    assert emitted(batch([6], (0, 1, 4, [0]))) == [6], "the last id repeats"
    assert emitted(batch([1], (0, 1, 0, [0]))) == [4], "a new sequence in the same page starts again"


@pytest.mark.parametrize("script", [[], [30], [-1]])
def test_a_script_has_ids(script: list[int]) -> None:
    with pytest.raises(InvariantError, match="script needs ids below 30"):
        ScriptedModel(30, script)


def test_faults_come_at_their_call() -> None:
    model = FaultyModel(ScriptedModel(30, [4]), raise_at={1: OSError("gone")}, replace_at={2: (0, float("nan"))})
    one: Any = batch([1], (0, 1, 0, [0]))
    assert np.isfinite(model.forward(one)).all()
    with pytest.raises(OSError, match="gone"):
        model.forward(one)
    assert np.isnan(model.forward(one)[0, 0])
    assert model.num_calls == 3
