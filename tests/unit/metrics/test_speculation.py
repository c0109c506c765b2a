"""Rounds as they are counted, joined and reported."""

from __future__ import annotations

import pytest

from ninfer.metrics import (
    NO_ROUNDS,
    Rounds,
    RoundTally,
    RoundTimes,
    SpeculationCounts,
    joined_rounds,
    speculation_report,
)


def tallied(rounds: list[tuple[int, int]], method: str = "ngram") -> Rounds:
    tally = RoundTally(method, 4)
    for window, accepted in rounds:
        tally.add(window, accepted)
        tally.charge(RoundTimes(draft=1_000_000, verify=20_000_000, sample=3_000_000, rollback=1000))
    return tally.result()


def test_a_tally_counts_windows_and_positions() -> None:
    counts = tallied([(0, 0), (3, 0), (3, 2), (4, 4), (1, 1)]).counts
    assert counts == SpeculationCounts(5, 11, 7, (4, 3, 3, 1), (3, 2, 1, 1))
    assert counts.windows == (1, 1, 0, 2, 1)
    assert counts.fallback_steps == 1


def test_a_tally_charges_every_round() -> None:
    seconds = tallied([(0, 0), (2, 1)]).seconds
    assert (seconds.draft, seconds.verify, seconds.sample) == pytest.approx((0.002, 0.04, 0.006))
    assert seconds.total == pytest.approx(0.048002)


def test_joined_rounds_are_those_of_one_tally() -> None:
    first, second = [(0, 0), (3, 2)], [(4, 1), (4, 4)]
    joined = joined_rounds([tallied(first), NO_ROUNDS, tallied(second)])
    assert joined.counts == tallied(first + second).counts
    assert joined.seconds.total == pytest.approx(tallied(first + second).seconds.total)
    assert (joined.method, joined.max_window) == ("ngram", 4)
    assert joined_rounds([NO_ROUNDS]) == NO_ROUNDS


def test_a_report_has_acceptance_beside_what_it_means_nothing_without() -> None:
    report = speculation_report(tallied([(0, 0), (3, 0), (3, 3)]), decode_seconds=0.6)
    assert report["backend"] == "ngram"
    assert report["draft_window"] == 4
    assert report["acceptance"] == 0.5
    assert report["tokens_per_round"] == 2.0
    assert report["round_seconds"] == pytest.approx(0.2)
    assert report["windows"] == [1, 0, 0, 2]
    assert report["accepted_per_position"] == [1, 1, 1]
    assert report["position_acceptance"] == [0.5, 0.5, 0.5]


def test_a_report_without_rounds_defines_nothing() -> None:
    report = speculation_report(NO_ROUNDS, 0.0)
    assert (report["backend"], report["draft_window"], report["rounds"]) == ("off", 0, 0)
    assert report["acceptance"] is report["tokens_per_round"] is report["round_seconds"] is None
