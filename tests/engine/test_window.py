"""Windows that set themselves: the decision on invented tables, what is learned, and what all of it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from ninfer.engine.window import (
    EXPLORE_EVERY,
    HYSTERESIS,
    Acceptance,
    AutoWindow,
    DraftResult,
    FixedWindow,
    Lane,
    RoundCosts,
    StepCost,
    best_window,
)

MEASURED_T = (24.4, 24.9, 25.4, 26.6, 29.35, 32.1)
LINEAR_T = tuple(24.4 + 2.7 * k for k in range(6))
PROSE_P = (0.67, 0.30, 0.12, 0.04, 0.02)
JSON_P = (1.0, 0.94, 0.89, 0.84, 0.79)
"""The worked example of spec/speculative.md section 5."""

MAX_WINDOW = 8


def tokens(shares: Sequence[float]) -> list[float]:
    return [1 + sum(shares[:k]) for k in range(len(shares) + 1)]


@pytest.mark.parametrize(
    ("shares", "seconds", "window"),
    [
        (PROSE_P, MEASURED_T, 3),
        (PROSE_P, LINEAR_T, 2),
        (JSON_P, MEASURED_T, 5),
        (JSON_P, LINEAR_T, 5),
        ((0.0,) * 5, MEASURED_T, 0),
        ((0.05,) * 5, (1, 2, 3, 4, 5, 6), 0),
        ((1.0,) * 5, (1, 2, 3, 4, 5, 6), 0),
    ],
)
def test_the_window_with_most_tokens_per_second(shares: Sequence[float], seconds: Sequence[float], window: int) -> None:
    assert best_window(tokens(shares), seconds) == window


def test_a_window_changes_only_for_a_real_gain() -> None:
    seconds = [1.0, 1.0, 1.0]
    assert best_window([1.0, 1.0 + 0.5 * (HYSTERESIS - 1), 1.0], seconds, current=0) == 0
    assert best_window([1.0, 1.0 + 2.0 * (HYSTERESIS - 1), 1.0], seconds, current=0) == 1


def test_acceptance_is_the_share_of_drafts_that_hold_where_they_were_tested() -> None:
    """Windows that change with the luck of a draft would bias unconditional shares; conditional ones stay."""
    rng = np.random.default_rng(1)
    truth = (0.8, 0.5, 0.9)
    acceptance = Acceptance(3)
    for round_index in range(4000):
        drafted = 1 + round_index % 3
        accepted = 0
        while accepted < drafted and rng.random() < truth[accepted]:
            accepted += 1
        acceptance.record(drafted, accepted)
    assert acceptance.conditional() == pytest.approx(truth, abs=0.25), "an average of the last 32 or so"


def test_deeper_positions_go_on_as_the_last_known_one() -> None:
    acceptance = Acceptance(4)
    for _ in range(200):
        acceptance.record(1, 1)
    assert all(rate > 0.9 for rate in acceptance.conditional())
    for _ in range(200):
        acceptance.record(1, 0)
    assert all(rate < 0.1 for rate in acceptance.conditional())


def test_a_new_sequence_starts_from_what_others_had() -> None:
    shared = Acceptance(3)
    first = Acceptance(3, shared)
    for _ in range(100):
        first.record(3, 3)
    assert Acceptance(3, shared).conditional()[0] > 0.9
    assert Acceptance(3).conditional()[0] == 0.5


def test_costs_are_interpolated_and_go_on_as_before() -> None:
    costs = RoundCosts({256: {1: 10.0, 5: 14.0, 9: 22.0}})
    assert [costs.seconds(rows, 256) for rows in (1, 3, 5, 7, 9, 11)] == [10.0, 12.0, 14.0, 18.0, 22.0, 26.0]
    assert RoundCosts({256: {1: 10.0}}).seconds(7, 256) == 10.0


def test_contexts_have_costs_of_their_own() -> None:
    costs = RoundCosts({256: {1: 10.0, 9: 12.0}, 5000: {1: 20.0, 9: 40.0}})
    assert costs.seconds(9, 100) == 12.0
    assert costs.seconds(9, 4000) == 40.0
    assert costs.seconds(9, 60000) == 40.0, "a range without a measurement is like the nearest"
    costs.record(9, 60000, 80.0)
    assert costs.seconds(9, 60000) > costs.seconds(9, 4000) == 40.0


def test_a_machine_that_slows_down_changes_no_ratio_for_long() -> None:
    costs = RoundCosts({256: {1: 10.0, 3: 12.0, 9: 20.0}})
    for _ in range(200):
        costs.record(3, 256, 36.0)
    assert costs.seconds(3, 256) == pytest.approx(36.0, rel=0.01)
    assert costs.seconds(9, 256) / costs.seconds(3, 256) == pytest.approx(20 / 12, rel=0.08)


def test_costs_learn_what_was_measured_wrong() -> None:
    truth = {1: 10.0, 5: 30.0, 9: 50.0}
    costs = RoundCosts({256: {1: 10.0, 5: 11.0, 9: 12.0}})
    for i in range(1500):
        rows = (1, 5, 9)[i % 3]
        costs.record(rows, 256, truth[rows])
    for rows in (5, 9):
        ratio = costs.seconds(rows, 256) / costs.seconds(1, 256)
        assert ratio == pytest.approx(truth[rows] / truth[1], rel=0.05)


def test_one_interrupted_step_is_no_new_machine() -> None:
    costs = RoundCosts({256: {1: 10.0, 9: 20.0}})
    costs.record(9, 256, 10_000.0)
    assert costs.seconds(9, 256) < 30.0


def test_a_fixed_window_is_the_same_for_all_grades_within_the_room() -> None:
    lanes = [Lane(0, 100, 50), Lane(1, 100, 2), Lane(2, 100, 0)]
    assert FixedWindow(4, 2).windows(lanes, 0) == [(4, 4), (2, 2), (0, 0)]


class Simulation:
    """Rounds of one sequence whose drafts hold as `shares` say by grade, on a machine with costs `seconds`."""

    def __init__(
        self, shares: Sequence[Sequence[float]], seconds: Mapping[int, float], *, believed: Mapping[int, float]
    ) -> None:
        self.rng = np.random.default_rng(7)
        self.shares = shares
        self.truth = RoundCosts({256: seconds})
        self.believed = believed

    def speed(self, policy: AutoWindow | FixedWindow, rounds: int) -> float:
        """Tokens per second; each grade comes as often as any other."""
        total_tokens, total_seconds = 0, 0.0
        for _ in range(rounds):
            (windows,) = policy.windows([Lane(0, 256, 1000)], 0)
            grade = int(self.rng.integers(len(self.shares)))
            drafted, accepted = windows[grade], 0
            luck = self.rng.random()
            while accepted < drafted and luck < self.shares[grade][accepted]:
                accepted += 1
            cost = self.truth.seconds(1 + drafted, 256)
            total_tokens += 1 + accepted
            total_seconds += cost
            noisy = cost * float(self.rng.lognormal(0.0, 0.05))
            policy.record([DraftResult(0, grade, drafted, accepted)], StepCost(1 + drafted, 256, noisy, 0.0))
        return total_tokens / total_seconds

    def auto(self) -> AutoWindow:
        return AutoWindow(MAX_WINDOW, len(self.shares), RoundCosts({256: self.believed}))

    def best_fixed(self, rounds: int) -> float:
        return max(
            self.speed(FixedWindow(window, len(self.shares)), rounds) if window else 1 / self.truth.seconds(1, 256)
            for window in range(MAX_WINDOW + 1)
        )


CHEAP_ROWS = {1: 10.0, 2: 10.5, 3: 11.0, 5: 12.5, 9: 20.0}
DEAR_ROWS = {1: 10.0, 2: 14.0, 3: 18.0, 5: 26.0, 9: 44.0}
ALWAYS = (1.0,) * MAX_WINDOW
NEVER = (0.02,) * MAX_WINDOW
HALVES = tuple(0.6**i for i in range(1, MAX_WINDOW + 1))


@pytest.mark.parametrize("seconds", [CHEAP_ROWS, DEAR_ROWS])
@pytest.mark.parametrize("shares", [(ALWAYS,), (NEVER,), (HALVES,), (NEVER, ALWAYS), (HALVES, ALWAYS, NEVER)])
@pytest.mark.parametrize("believed", [CHEAP_ROWS, DEAR_ROWS])
def test_auto_is_as_fast_as_the_best_fixed_window(
    shares: Sequence[Sequence[float]], seconds: Mapping[int, float], believed: Mapping[int, float]
) -> None:
    """Within 3 % after a while, or 5 % where what was believed of the costs was wrong; better where grades differ."""
    simulation = Simulation(shares, seconds, believed=believed)
    policy = simulation.auto()
    simulation.speed(policy, 1000)
    share = 0.97 if believed is seconds else 0.95
    assert simulation.speed(policy, 3000) >= share * simulation.best_fixed(3000)


def test_worthless_drafts_cost_nearly_nothing_from_the_start() -> None:
    simulation = Simulation((NEVER,), DEAR_ROWS, believed=DEAR_ROWS)
    assert simulation.speed(simulation.auto(), 1000) >= 0.98 / 10.0


def test_drafts_that_become_good_are_found_again() -> None:
    simulation = Simulation((NEVER,), CHEAP_ROWS, believed=CHEAP_ROWS)
    policy = simulation.auto()
    simulation.speed(policy, 500)
    assert policy.windows([Lane(0, 256, 100)], 0)[0][0] <= 1
    simulation.shares = (ALWAYS,)
    simulation.speed(policy, 12 * EXPLORE_EVERY)
    assert policy.windows([Lane(0, 256, 100)], 0)[0][0] >= 4


def test_a_draft_that_costs_more_than_it_wins_is_not_made() -> None:
    policy = AutoWindow(MAX_WINDOW, 1, RoundCosts({256: CHEAP_ROWS}))
    for _ in range(60):
        (windows,) = policy.windows([Lane(0, 256, 100)], 0)
        drafted = windows[0]
        policy.record(
            [DraftResult(0, 0, drafted, min(drafted, 1))],
            StepCost(1 + drafted, 256, 10.0 + 0.5 * drafted, 30.0 * drafted),
        )
    assert policy.windows([Lane(0, 256, 100)], 0)[0][0] <= 1


def test_company_makes_windows_shorter_where_rows_are_dear() -> None:
    """Rows of other sequences are computed anyway; each drafted one is then a smaller part of the step's tokens."""
    seconds = {1: 10.0, 2: 10.2, 4: 10.8, 8: 16.0, 16: 32.0, 64: 128.0}
    alone = AutoWindow(MAX_WINDOW, 1, RoundCosts({256: seconds}))
    crowd = AutoWindow(MAX_WINDOW, 1, RoundCosts({256: seconds}))
    for _ in range(100):
        alone.record([DraftResult(0, 0, 8, 2)], None)
        crowd.record([DraftResult(i, 0, 8, 2) for i in range(6)], None)
    lanes = [Lane(i, 256, 100) for i in range(6)]
    assert alone.windows(lanes[:1], 0)[0][0] >= 2
    assert max(crowd.windows(lanes, 0))[0] <= alone.windows(lanes[:1], 0)[0][0]


def test_a_forgotten_sequence_leaves_only_what_all_share() -> None:
    policy = AutoWindow(4, 1, RoundCosts({256: CHEAP_ROWS}))
    for _ in range(50):
        policy.record([DraftResult(0, 0, 4, 4)], None)
    policy.forget(0)
    policy.forget(3)
    assert policy.windows([Lane(1, 256, 100)], 0) == [(4,)]
