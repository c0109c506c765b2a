"""Rows of prompts beside decoding sequences, on a machine whose every time is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ninfer.engine.pacing import GAP_LIMIT, LEAST_ROWS, MAX_AGE_STEPS, MIN_TIMES, Pace

DECODE_S = 0.01


def known(decode_s: float = DECODE_S) -> Pace:
    """A pace that has seen steps of two decoding sequences alone."""
    pace = Pace("auto", 512)
    for _ in range(MIN_TIMES):
        pace.observe(2, 0, decode_s)
    return pace


def prefill(pace: Pace, length: int, row_s: Callable[[int], float], prompt: int = 1) -> list[tuple[int, float]]:
    """(rows, seconds) of the steps of a prompt whose rows cost `row_s(position)` seconds."""
    steps = []
    position = 0
    while position < length:
        rows = pace.rows(2, prompt)
        seconds = DECODE_S + sum(row_s(p) for p in range(position, position + rows))
        pace.observe(2, rows, seconds)
        steps.append((rows, seconds))
        position += rows
    return steps


def test_a_fixed_number_is_a_fixed_number() -> None:
    pace = Pace(7, 512)
    for _ in range(5):
        assert pace.rows(3, 1) == 7
        pace.observe(3, 7, 100.0)


def test_first_a_few_steps_show_what_decoding_takes() -> None:
    pace = Pace("auto", 512)
    for _ in range(MIN_TIMES):
        assert pace.rows(2, 1) == 0
        pace.observe(2, 0, DECODE_S)
    assert pace.rows(2, 1) == LEAST_ROWS
    assert pace.rows(3, 1) == 0, "another number of sequences is another step"


def test_old_times_are_measured_again() -> None:
    pace = known()
    for _ in range(MAX_AGE_STEPS):
        assert pace.rows(2, 1) > 0
        pace.observe(2, 4, DECODE_S)
    pace.observe(2, 4, DECODE_S)
    assert pace.rows(2, 1) == 0
    pace.observe(2, 0, DECODE_S * 9)
    assert pace.rows(2, 1) > 0


@pytest.mark.parametrize("row_ms", [0.01, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("growth", [0.0, 1e-3])
def test_steps_stay_under_the_limit_and_use_it(row_ms: float, growth: float) -> None:
    """C122: within the limit and a row's growth, whether rows cost the same or more the deeper they are."""
    steps = prefill(known(), 3000, lambda position: 1e-3 * row_ms * (1 + growth * position))
    mixed = [(rows, seconds) for rows, seconds in steps if rows]
    assert all(seconds <= GAP_LIMIT * DECODE_S * 1.15 for rows, seconds in mixed if rows > LEAST_ROWS)
    settled = mixed[8:-1]
    if row_ms < 1.0 and growth == 0.0:
        assert all(seconds > 0.8 * GAP_LIMIT * DECODE_S or rows == 512 for rows, seconds in settled)


def test_a_few_rows_that_take_longer_than_the_limit_still_run() -> None:
    assert {rows for rows, _ in prefill(known(), 40, lambda _: 1.0)} <= {LEAST_ROWS, 0}


def test_every_prompt_begins_with_few_rows() -> None:
    """It may be at any depth: the pages before it can have come from the index."""
    pace = known()
    assert prefill(pace, 300, lambda _: 1e-4)[-2][0] > LEAST_ROWS
    assert pace.rows(2, 2) == LEAST_ROWS


def test_a_hiccup_costs_one_small_step() -> None:
    pace = known()
    for seconds in (DECODE_S, DECODE_S * 50, DECODE_S, DECODE_S):
        pace.observe(2, 0, seconds)
    assert prefill(pace, 2000, lambda _: 1e-4)[-2][0] == int((GAP_LIMIT - 1) * DECODE_S / 1e-4)


def test_never_more_than_a_chunk() -> None:
    pace = Pace("auto", 6)
    for _ in range(MIN_TIMES):
        pace.observe(2, 0, DECODE_S)
    assert {rows for rows, _ in prefill(pace, 60, lambda _: 0.0)} == {LEAST_ROWS, 6}
