from __future__ import annotations

import dataclasses
import itertools

import pytest

from ninfer.errors import InvariantError
from ninfer.metrics import Phases, RequestTimeline

SECOND = 10**9


def full_timeline() -> RequestTimeline:
    return RequestTimeline(
        arrival_ns=100 * SECOND,
        load_start_ns=101 * SECOND,
        load_end_ns=105 * SECOND,
        submitted_ns=107 * SECOND,
        admitted_ns=110 * SECOND,
        first_token_ns=120 * SECOND,
        last_token_ns=150 * SECOND,
        ended_ns=151 * SECOND,
    )


def test_every_phase_is_the_difference_of_its_stamps() -> None:
    assert full_timeline().phases().to_dict() == pytest.approx(
        {"load": 4.0, "prepare": 3.0, "queue": 3.0, "prefill": 10.0, "decode": 30.0, "total": 51.0, "ttft": 20.0}
    )


def test_phases_tile_the_request_up_to_its_last_token() -> None:
    phases = full_timeline().phases()
    parts = phases.load + phases.prepare + phases.queue + phases.prefill + phases.decode
    assert parts == pytest.approx(50.0)
    assert phases.total - parts == pytest.approx(1.0)


def test_seconds_keep_every_nanosecond() -> None:
    phases = RequestTimeline(0, submitted_ns=1, admitted_ns=3, first_token_ns=6, last_token_ns=10, ended_ns=15).phases()
    assert [phases.prepare, phases.queue, phases.prefill, phases.decode, phases.total, phases.ttft] == [
        n * 1e-9 for n in (1, 2, 3, 4, 15, 6)
    ]
    assert phases.load == 0.0


@pytest.mark.parametrize(
    ("stamps", "expected"),
    [
        ({}, {"prepare": 9.0}),
        ({"submitted_ns": 2}, {"prepare": 2.0, "queue": 7.0}),
        ({"submitted_ns": 2, "admitted_ns": 4}, {"prepare": 2.0, "queue": 2.0, "prefill": 5.0}),
        (
            {"submitted_ns": 2, "admitted_ns": 4, "first_token_ns": 5, "last_token_ns": 5},
            {"prepare": 2.0, "queue": 2.0, "prefill": 1.0},
        ),
    ],
)
def test_a_request_that_ends_early_ends_the_phase_it_is_in(stamps: dict[str, int], expected: dict[str, float]) -> None:
    timeline = RequestTimeline(0, ended_ns=9 * SECOND, **{name: value * SECOND for name, value in stamps.items()})
    phases = timeline.phases()
    for name in ("load", "prepare", "queue", "prefill", "decode"):
        assert getattr(phases, name) == pytest.approx(expected.get(name, 0.0)), name
    assert phases.ttft == (5.0 if "first_token_ns" in stamps else None)
    assert phases.total == 9.0


STAMPS = [field.name for field in dataclasses.fields(RequestTimeline)]


@pytest.mark.parametrize(("earlier", "later"), list(itertools.pairwise(STAMPS)))
def test_stamps_out_of_order_are_our_bug(earlier: str, later: str) -> None:
    timeline = full_timeline()
    setattr(timeline, later, getattr(timeline, earlier) - 1)
    with pytest.raises(InvariantError, match="out of order"):
        timeline.phases()


def test_phases_need_an_end() -> None:
    with pytest.raises(InvariantError, match="not ended"):
        RequestTimeline(0).phases()


def test_half_a_load_is_our_bug() -> None:
    with pytest.raises(InvariantError, match="out of order"):
        RequestTimeline(0, load_start_ns=1, ended_ns=2).phases()


def test_phases_as_json_values() -> None:
    assert Phases(0.0, 0.25, 0.5, 1.0, 2.0, 3.75, None).to_dict() == {
        "load": 0.0, "prepare": 0.25, "queue": 0.5, "prefill": 1.0, "decode": 2.0, "total": 3.75, "ttft": None
    }  # fmt: skip
