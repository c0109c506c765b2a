"""Records keep raw values apart from warm-ups and derive rates once; clocks are fake."""

from __future__ import annotations

import dataclasses
import json

import pytest

from ninfer.bench.machine import Machine
from ninfer.bench.measurements import Measurement, Run, Unsupported, Work, repeat, split_warmups

MACHINE = Machine("Chip 9", "x86_64", 2, 3 << 30, "6.1", "madvise", ("avx2",), ("L1 Data 48K",))


class FakeClock:
    """Gives the next of a list of nanosecond stamps."""

    def __init__(self, *stamps: int) -> None:
        self.stamps = list(stamps)

    def __call__(self) -> int:
        return self.stamps.pop(0)


def test_repeat_times_every_call_and_sets_warmups_apart() -> None:
    calls: list[int] = []
    clock = FakeClock(0, 5_000_000_000, 6_000_000_000, 8_000_000_000, 9_000_000_000, 9_500_000_000)
    taken = repeat(lambda: calls.append(1), warmups=1, repeats=2, clock_ns=clock)
    assert taken.warmups == (5.0,)
    assert taken.values == (2.0, 0.5)
    assert len(calls) == 3
    assert clock.stamps == []


def test_split_warmups_leaves_at_least_one_value() -> None:
    assert split_warmups([3.0, 2.0, 1.0], 2).values == (1.0,)
    with pytest.raises(ValueError, match="leave none"):
        split_warmups([3.0, 2.0], 2)


def test_rates_come_from_values_and_never_from_warmups() -> None:
    measurement = Measurement("read", "s", (0.5, 0.25), warmups=(100.0,), work=Work(10, "byte"))
    assert measurement.rates == (20.0, 40.0)
    assert measurement.rate.median == 30.0


@pytest.mark.parametrize(
    "measurement", [Measurement("rss", "byte", (1.0,), work=Work(1, "x")), Measurement("t", "s", (1.0,))]
)
def test_no_rate_without_seconds_and_work(measurement: Measurement) -> None:
    with pytest.raises(ValueError, match="has no rate"):
        _ = measurement.rates


def test_measurements_cannot_be_edited() -> None:
    inputs = {"threads": 2}
    measurement = Measurement("read", "s", (1.0,), inputs=inputs)
    inputs["threads"] = 3
    assert measurement.inputs["threads"] == 2
    with pytest.raises(TypeError):
        measurement.inputs["threads"] = 4  # type: ignore[index]  # the point of the test
    with pytest.raises(dataclasses.FrozenInstanceError):
        measurement.name = "other"  # type: ignore[misc]  # the point of the test


def test_a_measurement_without_values_is_refused() -> None:
    with pytest.raises(ValueError, match="'read' has no values"):
        Measurement("read", "s", ())


def test_json_has_the_raw_values_and_survives_a_round_trip() -> None:
    run = Run(
        "ceilings",
        MACHINE,
        {"ninfer": "1"},
        (Measurement("read", "s", (0.5, 0.25), (9.0,), {"threads": 2, "huge": True}, Work(10, "byte")),),
        (Unsupported("peak x", "needs y"),),
        conditions={"page_cache": "warm"},
    )
    loaded = json.loads(json.dumps(run.to_json()))
    assert loaded["machine"]["processor"] == "Chip 9"
    assert loaded["conditions"] == {"page_cache": "warm"}
    assert loaded["unsupported"] == [{"name": "peak x", "unsupported": "needs y"}]
    (read,) = loaded["measurements"]
    assert (read["values"], read["warmups"], read["unit"]) == ([0.5, 0.25], [9.0], "s")
    assert read["work"] == {"amount": 10, "unit": "byte"}
    assert read["rate"]["median"] == 30.0


def test_find_matches_name_and_inputs() -> None:
    first = Measurement("read", "s", (1.0,), inputs={"threads": 1})
    second = Measurement("read", "s", (1.0,), inputs={"threads": 2})
    run = Run("t", MACHINE, {}, (first, second))
    assert run.find("read", threads=2) is second
    assert run.find("read") is first
    assert run.find("write") is None
    assert run.find("read", threads=3) is None
