from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampler_oracle import oracle_distribution

from ninfer.decoding import Candidates, SamplingParams, TokenHistory, distribution, greedy, sample
from ninfer.errors import BackendError, InvariantError

Logits = npt.NDArray[np.float32]


def history_of(prompt: Sequence[int], output: Sequence[int]) -> TokenHistory:
    history = TokenHistory(prompt)
    for token in output:
        history.append(token)
    return history


def logits_of(values: Sequence[float]) -> Logits:
    return np.array(values, dtype=np.float32)


def assert_same(found: Candidates, expected: dict[int, float]) -> None:
    assert found.ids.tolist() == sorted(expected)
    assert found.probabilities == pytest.approx([expected[token] for token in found.ids.tolist()], rel=1e-12)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-9, 0.3, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 7, 10**6]),
    top_p=st.sampled_from([0.0, 0.137, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.013, 0.4]),
    presence_penalty=st.sampled_from([0.0, -2.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.3, 2.0]),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3]),
    seed=st.just(1),
)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1, 2, 3, 50, 700]),
    spread=st.sampled_from([0.1, 1.0, 5.0, 40.0]),
    params=PARAMS,
    data=st.data(),
)
def test_distribution_equals_the_oracle(
    seed: int, size: int, spread: float, params: SamplingParams, data: st.DataObject
) -> None:
    logits = (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)
    tokens = st.lists(st.integers(0, size - 1), max_size=12)
    prompt, output = data.draw(tokens), data.draw(tokens)
    bias = st.dictionaries(st.integers(0, size - 1), st.sampled_from([-100.0, -1.5, 0.25, 3, 100]), max_size=3)
    params = dataclasses.replace(params, logit_bias=tuple(data.draw(bias).items()))
    before = logits.copy()
    found = distribution(logits, params, history_of(prompt, output))
    assert_same(found, oracle_distribution(logits.tolist(), params, prompt, output))
    assert np.array_equal(logits, before), "the logits were changed"


def test_prompt_ids_behind_the_last_logit_have_no_penalty() -> None:
    """A prompt may hold rows of a padded vocabulary, whose logits a model does not give."""
    params = SamplingParams(repetition_penalty=4)
    assert sample(logits_of([4, 8, 1]), params, history_of([7, 1], []), seed=None, position=2) == 0


def test_a_bias_moves_greedy_answers_and_leaves_the_logits_alone() -> None:
    logits = logits_of([4, 8, 1])
    for bias, best in (((1, -100),), 0), (((2, 7.5),), 2), (((1, -4), (2, 3)), 0), (((7, 100),), 1):
        params = SamplingParams(logit_bias=bias)
        assert not params.has_penalties
        assert sample(logits, params, None, seed=None, position=0) == best
    assert logits.tolist() == [4, 8, 1]


def test_a_bias_does_not_hide_bad_logits() -> None:
    with pytest.raises(BackendError):
        sample(logits_of([1, math.nan, 2]), SamplingParams(logit_bias=((0, 1.0),)), None, seed=None, position=0)


def test_penalties_by_hand() -> None:
    """Prompt has tokens 0 and 1, output has 1 twice and 2 once; repetition 2, frequency 0.5, presence 0.25."""
    params = SamplingParams(temperature=1, repetition_penalty=2, frequency_penalty=0.5, presence_penalty=0.25)
    found = distribution(logits_of([1, 2, -1, 3]), params, history_of([0, 1], [1, 2, 1]))
    weights = np.exp([1 / 2, 2 / 2 - 2 * 0.5 - 0.25, -1 * 2 - 0.5 - 0.25, 3])
    assert found.probabilities == pytest.approx(weights / weights.sum(), rel=1e-12)


def test_presence_and_frequency_do_not_see_the_prompt() -> None:
    params = SamplingParams(presence_penalty=2, frequency_penalty=2)
    logits = logits_of([1.0, 0.5])
    assert sample(logits, params, history_of([0, 0, 0], []), seed=None, position=3) == 0
    assert sample(logits, params, history_of([1], [0]), seed=None, position=2) == 1


def test_repetition_sees_the_prompt() -> None:
    params = SamplingParams(repetition_penalty=4)
    assert sample(logits_of([1.0, 0.5]), params, history_of([0], []), seed=None, position=1) == 1


def test_filters_come_in_the_documented_order() -> None:
    """Each pair of neighbouring filters gives another set when it is swapped; the sets are worked out by hand."""
    logits = logits_of(np.log([0.4, 0.3, 0.2, 0.1]))
    kept = {
        # top-k first: {0, 1} renormalise to 4/7 and 3/7, so top-p keeps one; top-p first would keep two.
        (2, 0.5, 0.0): [0],
        # top-p first: 0.4 does not reach 0.5, two stay, min-p keeps both; min-p first: 4/7 reaches 0.5, one would stay.
        (0, 0.5, 0.6): [0, 1],
        # min-p compares with the maximum, whatever the other filters left.
        (3, 1.0, 0.45): [0, 1, 2],
    }
    for (top_k, top_p, min_p), ids in kept.items():
        params = SamplingParams(temperature=1, top_k=top_k, top_p=top_p, min_p=min_p)
        assert distribution(logits, params, None).ids.tolist() == ids
    # Temperature comes before top-p: at 2 the distribution is flatter, and the same top-p keeps more.
    warm, hot = (SamplingParams(temperature=t, top_p=0.65) for t in (1, 2))
    assert distribution(logits, warm, None).ids.tolist() == [0, 1]
    assert distribution(logits, hot, None).ids.tolist() == [0, 1, 2]


def test_greedy_takes_the_lowest_id_on_ties() -> None:
    assert greedy(logits_of([1, 3, 2, 3, 3])) == 1
    assert greedy(np.zeros(49152, dtype=np.float32)) == 0


@pytest.mark.parametrize("size", [1, 2, 7, 1000, 49152])
def test_greedy_equals_a_linear_search(size: int) -> None:
    rng = np.random.default_rng(size)
    logits = rng.integers(-5, 6, size).astype(np.float32)
    values = logits.tolist()
    assert greedy(logits) == values.index(max(values))


@pytest.mark.parametrize(
    "params", [SamplingParams(top_p=0.0, temperature=1.0), SamplingParams(top_k=1, temperature=2.0)]
)
def test_other_words_for_greedy_choose_the_same_token(params: SamplingParams) -> None:
    logits = logits_of([1, 3, 2, 3, 3])
    assert {sample(logits, params, None, seed=seed, position=9) for seed in range(50)} == {1}


@pytest.mark.parametrize("temperature", [1e-9, 1e-300, 5e-324])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    logits = logits_of([1.0, 3.0, 2.999, -1e30])
    assert {sample(logits, params, None, seed=seed, position=0) for seed in range(20)} == {1}


BAD = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("where", [0, 1, 777, 999])
@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=3, presence_penalty=1.0)],
)
def test_non_finite_logits_are_refused(bad: float, where: int, params: SamplingParams) -> None:
    logits = np.linspace(-1, 1, 1000, dtype=np.float32)
    logits[where] = bad
    with pytest.raises(BackendError, match=rf"token {where} is {bad}; all 1000"):
        sample(logits, params, history_of([1], [2]), seed=1, position=0)


def test_sampling_needs_a_seed_and_penalties_a_history() -> None:
    with pytest.raises(InvariantError, match="seed"):
        sample(logits_of([1, 2]), SamplingParams(temperature=1.0), None, seed=None, position=0)
    with pytest.raises(InvariantError, match="history"):
        sample(logits_of([1, 2]), SamplingParams(presence_penalty=1.0), None, seed=1, position=0)


def test_draw_walks_the_cumulative_distribution_in_id_order() -> None:
    candidates = Candidates(np.array([3, 5, 8, 9]), np.array([0.25, 0.0, 0.5, 0.25]))
    below_one = 1 - 2**-53
    draws = {0.0: 3, 0.2499: 3, 0.25: 8, 0.7499: 8, 0.75: 9, below_one: 9}
    assert {u: candidates.draw(u) for u in draws} == draws


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50).filter(lambda p: sum(p) > 1e-3))
def test_draw_never_gives_a_token_without_mass(weights: list[float]) -> None:
    probabilities = np.array([0.0, *weights, 0.0])
    candidates = Candidates(np.arange(len(probabilities)), probabilities / probabilities.sum())
    for u in (0.0, 0.5, 1 - 2**-53):
        assert probabilities[candidates.draw(u)] > 0


def chi_square(counts: Counter[int], expected: dict[int, float], draws: int) -> float:
    assert set(counts) <= set(expected)
    return sum((counts[token] - draws * p) ** 2 / (draws * p) for token, p in expected.items())


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.6, top_k=6),
        SamplingParams(temperature=1.5, top_p=0.8),
        SamplingParams(temperature=1.0, min_p=0.2),
        SamplingParams(temperature=1.2, top_k=7, top_p=0.9, min_p=0.05, presence_penalty=0.8, repetition_penalty=1.2),
    ],
)
@pytest.mark.parametrize("over", ["positions", "seeds"])
def test_draws_follow_the_oracle_distribution(params: SamplingParams, over: str) -> None:
    """Chi-square with fixed seeds against the 99.9 % value for up to 9 degrees of freedom (27.88)."""
    logits = logits_of([2.0, -1.0, 0.5, 1.5, 0.0, 1.9, -0.5, 0.25, 1.0, -2.0])
    prompt, output = [0, 4], [3, 3]
    expected = oracle_distribution(logits.tolist(), params, prompt, output)
    history = history_of(prompt, output)
    draws = 4000
    counts: Counter[int] = Counter()
    for i in range(draws):
        seed, position = (17, i) if over == "positions" else (i, 17)
        counts[sample(logits, params, history, seed=seed, position=position)] += 1
    assert chi_square(counts, expected, draws) < 27.88


def test_a_draw_depends_on_seed_and_position_only() -> None:
    params = SamplingParams(temperature=1.0)
    logits = np.random.default_rng(5).standard_normal(1000).astype(np.float32)
    draws = {(s, p): sample(logits, params, None, seed=s, position=p) for s in range(8) for p in range(8)}
    for (s, p), token in reversed(draws.items()):
        assert sample(logits, params, None, seed=s, position=p) == token
    assert len(set(draws.values())) > 40
