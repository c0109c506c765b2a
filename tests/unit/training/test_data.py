"""Prompts, responses as examples, batches and rounds: plain counting."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from ninfer.errors import ConfigError
from ninfer.training.data import (
    Example,
    collate,
    endless_batches,
    epoch_batches,
    make_examples,
    most_frequent,
    token_counts,
)
from ninfer.training.evaluate import count_rounds
from ninfer.training.prompts import HELD_OUT_EVERY, load_prompts, own_prompts
from ninfer.training.regenerate import Response


def test_our_prompts_are_many_distinct_and_held_out_by_topic() -> None:
    prompts = own_prompts()
    assert len({prompt.key for prompt in prompts}) == len(prompts) > 2500
    workloads = Counter(prompt.workload for prompt in prompts)
    held_out = Counter(prompt.workload for prompt in prompts if prompt.held_out)
    assert all(workloads[name] / HELD_OUT_EVERY * 0.6 < held_out[name] for name in workloads)
    assert not any("{}" in prompt.text for prompt in prompts)
    # A topic whose every prompt is held out appears in no trained prompt, and the other way round.
    trained = [prompt.text for prompt in prompts if not prompt.held_out]
    assert not any("lighthouse keeper in winter" in prompt.text for prompt in prompts if prompt.held_out)
    assert any("lighthouse keeper in winter" in text for text in trained)


def test_a_file_of_prompts(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [{"text": f"say {i}", "workload": "chat", "held_out": i == 0} for i in range(3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [prompt.held_out for prompt in load_prompts(str(path))] == [True, False, False]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "line 1: not JSON"),
        ("[1]", "line 1: needed"),
        ('{"text": "a", "workload": "b"}', "line 1: needed"),
        ('{"text": "", "workload": "b", "held_out": true}', "line 1: needed"),
        ('{"text": "a", "workload": "b", "held_out": 1}', "line 1: needed"),
        ('{"text": "a", "workload": "b", "held_out": true, "c": 1}', "line 1: needed"),
        ('{"text": "a", "workload": "b", "held_out": true}', "held_out false"),
        ('{"text": "a", "workload": "b", "held_out": true}\n' * 2, "line 2: this text is there twice"),
    ],
)
def test_a_bad_file_of_prompts_is_refused(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigError, match=words):
        load_prompts(str(path))


def examples(lengths: list[int], width: int = 4) -> list[Example]:
    rng = np.random.default_rng(1)
    responses = [
        Response(f"k{i}", "chat", False, (1, 2, 3), tuple(rng.integers(5, 40, n).tolist()))
        for i, n in enumerate(lengths)
    ]
    hidden = [rng.integers(0, 1 << 14, (3 + n, width)).astype(np.uint16) for n in lengths]
    return make_examples(responses, hidden)


def test_columns_meet_their_next_token_and_their_hidden_row() -> None:
    (short, long) = examples([2, 5])
    batch = collate([short, long])
    assert batch.tokens.shape == (2, 7)
    assert batch.tokens[0, :4].tolist() == short.ids[1:].tolist()
    assert batch.drafts[0].tolist() == [False, False, True, True, False, False, False]
    assert batch.drafts[1].sum() == 5
    bits = batch.hidden[1].view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(bits, long.hidden)


def test_every_epoch_has_every_example_once_within_the_size() -> None:
    several = examples([2, 30, 4, 9, 9, 12, 3, 40])
    epochs = [epoch_batches(several, 40, seed=3, epoch=epoch) for epoch in (0, 1, 0)]
    for epoch in epochs:
        assert sorted(example.key for batch in epoch for example in batch) == sorted(e.key for e in several)
        assert all(len(b) == 1 or len(b) * max(e.num_columns for e in b) <= 40 for b in epoch)
    keys = [[[example.key for example in batch] for batch in epoch] for epoch in epochs]
    assert keys[0] == keys[2] != keys[1]


def test_batches_can_be_entered_at_any_step() -> None:
    several = examples([2, 30, 4, 9, 9, 12, 3, 40])
    whole = endless_batches(several, 40, seed=3)
    skipped = endless_batches(several, 40, seed=3, skip=6)
    expected = [next(whole) for _ in range(9)][6:]
    for (epoch, batch), (same_epoch, same) in zip(expected, skipped, strict=False):
        assert epoch == same_epoch
        assert torch.equal(batch.tokens, same.tokens)


def test_a_shortlist_has_the_most_frequent_ids_in_order() -> None:
    assert most_frequent(Counter({9: 5, 4: 5, 30: 1, 7: 2}), 3).tolist() == [4, 7, 9]
    assert most_frequent(Counter({9: 5}), 3).tolist() == [0, 1, 9]
    assert sum(token_counts(examples([2, 5])).values()) == 13


def test_rounds_walk_from_anchor_to_anchor() -> None:
    right, wrong = True, False
    # Six response tokens: anchor 0 with two right drafts, anchor 3 with a wrong one, anchor 4 with one left.
    hits = np.array(
        [[right, right], [wrong, wrong], [wrong, wrong], [wrong, right], [right, right], [right, right]], np.bool_
    )
    found = count_rounds("chat", [hits], 2)
    assert (found.rounds, found.accepted_per_position, found.drafted_per_position) == (3, (2, 1), (3, 2))
    assert found.position_acceptance == (2 / 3, 1 / 2)
    assert found.tokens_per_round == 2.0
