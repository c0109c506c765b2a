from __future__ import annotations

import itertools
import math

import pytest
from sampler_oracle import oracle_philox

from ninfer.decoding.random import Purpose, fresh_seed, uniform

DOMAIN = 0x4E496E666572


def test_the_oracle_gives_the_published_known_answers() -> None:
    """Known-answer vectors of philox4x64-10 from the authors' Random123 distribution (kat_vectors)."""
    assert oracle_philox((0, 0), (0, 0, 0, 0)) == (
        0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B
    )  # fmt: skip
    ones = 2**64 - 1
    assert oracle_philox((ones, ones), (ones, ones, ones, ones)) == (
        0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0
    )  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 7, 2**63, 2**63 + 1, 2**64 - 1])
@pytest.mark.parametrize("position", [0, 1, 37, 2**31, 2**62])
def test_numbers_are_philox_of_seed_and_position(seed: int, position: int) -> None:
    word = oracle_philox((seed, DOMAIN), (position + 1, int(Purpose.TOKEN), 0, 0))[0]
    assert uniform(seed, position, Purpose.TOKEN) == (word >> 11) / 2**53


def test_numbers_are_uniform() -> None:
    """Kolmogorov-Smirnov over positions of one seed and over seeds at one position; the 0.1 % critical value."""
    count = 4000
    for numbers in (
        [uniform(7, position, Purpose.TOKEN) for position in range(count)],
        [uniform(seed, 7, Purpose.TOKEN) for seed in range(count)],
    ):
        numbers.sort()
        distance = max(max((i + 1) / count - u, u - i / count) for i, u in enumerate(numbers))
        assert distance < 1.95 / math.sqrt(count)


def test_neighbouring_positions_are_uncorrelated() -> None:
    count = 4000
    numbers = [uniform(3, position, Purpose.TOKEN) - 0.5 for position in range(count + 1)]
    correlation = sum(a * b for a, b in itertools.pairwise(numbers)) / count * 12
    assert abs(correlation) < 4 / math.sqrt(count)


def test_fresh_seeds_differ_and_are_legal() -> None:
    seeds = {fresh_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**64 for seed in seeds)
