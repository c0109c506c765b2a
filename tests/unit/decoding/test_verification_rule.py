"""The rejection rule against exact probabilities.

Statistic: Pearson's chi-square of token counts against the target's probabilities, cells of an expected count below 5
pooled. Threshold: the 1 - 1e-6 quantile of the chi-square distribution, by Wilson and Hilferty's approximation. All
randomness is keyed, so a pass stays one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from ninfer.decoding import Candidates, SamplingParams, TokenHistory, distribution
from ninfer.decoding.random import Purpose, uniform
from ninfer.decoding.verification import probability, verify_drawn
from ninfer.errors import InvariantError

VOCAB = 5
SAMPLES = 8_000
TEXTS = 3_000
NORMAL_QUANTILE = 4.753
"""Of 1 - 1e-6."""
PARAMS = SamplingParams(temperature=0.8, top_k=4, top_p=0.9, frequency_penalty=0.4, seed=1)


_RNG = np.random.default_rng(9)
TARGET_LOGITS = _RNG.normal(0, 1.5, (VOCAB, VOCAB)).astype(np.float32)
"""By the token before."""
PROPOSALS = [Candidates(np.arange(VOCAB), weights / weights.sum()) for weights in _RNG.random((VOCAB, VOCAB))]


def candidates(weights: dict[int, float]) -> Candidates:
    ids = sorted(weights)
    values = np.array([weights[i] for i in ids])
    return Candidates(np.array(ids), values / values.sum())


def chi_square_fits(counts: Counter[tuple[int, ...]], exact: dict[tuple[int, ...], float]) -> bool:
    assert set(counts) <= {cell for cell, p in exact.items() if p > 0}, "a token without probability was chosen"
    total = sum(counts.values())
    observed, wanted, rest = [], [], [0.0, 0.0]
    for cell, p in exact.items():
        if p * total >= 5:
            observed.append(float(counts[cell]))
            wanted.append(p * total)
        else:
            rest[0] += counts[cell]
            rest[1] += p * total
    if rest[1] > 0:
        observed.append(rest[0])
        wanted.append(rest[1])
    statistic = sum((o - w) ** 2 / w for o, w in zip(observed, wanted, strict=True))
    freedom = max(1, len(wanted) - 1)
    return bool(statistic < freedom * (1 - 2 / (9 * freedom) + NORMAL_QUANTILE * (2 / (9 * freedom)) ** 0.5) ** 3)


PAIRS = [
    ({0: 0.5, 1: 0.3, 2: 0.2}, {0: 0.2, 1: 0.5, 2: 0.3}),
    ({0: 0.5, 1: 0.5}, {1: 0.1, 2: 0.9}),
    ({0: 1.0}, {0: 0.01, 3: 0.99}),
    ({1: 0.25, 2: 0.25, 4: 0.5}, {1: 0.25, 2: 0.25, 4: 0.5}),
    ({0: 0.7, 4: 0.3}, {4: 1.0}),
]


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_one_position_has_the_target_s_distribution(p: dict[int, float], q: dict[int, float]) -> None:
    target, proposal = candidates(p), candidates(q)
    counts: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for seed in range(SAMPLES):
        draft = proposal.draw(uniform(seed, 7, Purpose.DRAFT))
        token, holds = verify_drawn(target, draft, proposal, seed=seed, position=7)
        assert not holds or token == draft
        counts[(token,)] += 1
        accepted += holds
    assert chi_square_fits(counts, {(i,): w for i, w in p.items()})
    share = sum(min(w, q.get(i, 0.0)) for i, w in p.items())
    deviation = max(1.0, (SAMPLES * share * (1 - share)) ** 0.5)
    assert abs(accepted - SAMPLES * share) < 5 * deviation, "accepted as often as the distributions overlap"


def walk(seed: int, window: int, length: int, verify: Callable[..., tuple[int, bool]]) -> tuple[int, ...]:
    """Tokens of a toy model of order one by rounds of `window` drafts, as the engine walks them."""
    history = TokenHistory([0])
    tokens = [0]
    while len(tokens) <= length:
        drafts, proposals = [], []
        for i in range(window):
            proposals.append(PROPOSALS[(tokens + drafts)[-1]])
            drafts.append(proposals[-1].draw(uniform(seed, len(tokens) + i, Purpose.DRAFT)))
        holds = True
        for i in range(window + 1):
            position = len(tokens)
            target = distribution(TARGET_LOGITS[tokens[-1]], PARAMS, history)
            if i < window:
                token, holds = verify(target, drafts[i], proposals[i], seed=seed, position=position)
            else:
                token = target.draw(uniform(seed, position, Purpose.TOKEN))
            tokens.append(token)
            history.append(token)
            if not holds:
                break
    return tuple(tokens[1 : length + 1])


def exact_texts(length: int) -> dict[tuple[int, ...], float]:
    """The probability of every text, by the full pipeline with its penalties, row by row."""
    found = {(): 1.0}
    for _ in range(length):
        longer = {}
        for text, share in found.items():
            history = TokenHistory([0])
            for token in text:
                history.append(token)
            target = distribution(TARGET_LOGITS[(0, *text)[-1]], PARAMS, history)
            for token in range(VOCAB):
                longer[*text, token] = share * probability(target, token)
        found = longer
    return found


@pytest.mark.parametrize("window", [1, 2, 3])
def test_texts_have_the_distribution_of_plain_sampling(window: int) -> None:
    counts = Counter(walk(seed, window, 3, verify_drawn) for seed in range(TEXTS))
    assert chi_square_fits(counts, exact_texts(3))


def test_the_statistic_sees_a_wrong_rule() -> None:
    """Correcting by the target itself and not by what is left of it doubles what the draft likes."""

    def wrong(target: Candidates, draft: int, proposal: Candidates, *, seed: int, position: int) -> tuple[int, bool]:
        token, holds = verify_drawn(target, draft, proposal, seed=seed, position=position)
        return (token, True) if holds else (target.draw(uniform(seed, position, Purpose.RESIDUAL)), False)

    counts = Counter(walk(seed, 2, 3, wrong) for seed in range(TEXTS))
    assert not chi_square_fits(counts, exact_texts(3))


def test_a_rest_without_mass_gives_way_to_the_target() -> None:
    """By rounding a proposal can be above the target everywhere it is asked about."""
    target = Candidates(np.array([1, 2]), np.array([0.5, 0.5]))
    above = Candidates(np.array([1, 2]), np.array([0.6, 0.6]))
    seen = {verify_drawn(target, 1, above, seed=seed, position=3) for seed in range(200)}
    assert seen == {(1, True), (1, False), (2, False)}


def test_a_draft_that_its_distribution_does_not_have_is_our_bug() -> None:
    with pytest.raises(InvariantError, match="token 3"):
        verify_drawn(candidates({0: 1.0}), 3, candidates({0: 1.0}), seed=0, position=0)
