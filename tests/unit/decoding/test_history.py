from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.decoding import TokenHistory
from ninfer.errors import InvariantError

TOKENS = st.integers(0, 12)
ACTIONS = st.lists(st.one_of(TOKENS, st.floats(0, 1)), max_size=200)


@given(prompt=st.lists(TOKENS, max_size=20), actions=ACTIONS)
def test_counts_equal_those_of_the_tokens_after_any_appends_and_truncations(
    prompt: list[int], actions: list[int | float]
) -> None:
    history = TokenHistory(prompt)
    output: list[int] = []
    for action in actions:
        if isinstance(action, int):
            history.append(action)
            output.append(action)
        else:
            del output[int(action * len(output)) :]
            history.truncate(len(output))
        distinct = list(dict.fromkeys([*prompt, *output]))
        counts = Counter(output)
        assert history.ids.tolist() == distinct
        assert history.output_counts.tolist() == [counts[token] for token in distinct]
        assert history.output_length == len(output)


@pytest.mark.parametrize("length", [-1, 3])
def test_truncation_stays_within_the_output(length: int) -> None:
    history = TokenHistory([1])
    history.append(5)
    history.append(6)
    with pytest.raises(InvariantError, match="cannot truncate 2"):
        history.truncate(length)
