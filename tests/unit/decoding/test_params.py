from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from ninfer.decoding import SamplingParams
from ninfer.errors import RequestError

LIMITS: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.1, 10.0),
}
INTEGER_LIMITS = {"top_k": (-1, 2**31 - 1), "seed": (0, 2**64 - 1)}


def test_defaults_are_greedy_and_change_nothing() -> None:
    params = SamplingParams()
    assert params.is_greedy
    assert not params.has_penalties
    assert params == SamplingParams(0.0, 0, 1.0, 0.0, 0.0, 0.0, 1.0, None, ())


@pytest.mark.parametrize("field", LIMITS)
def test_limits_themselves_are_legal(field: str) -> None:
    for value in LIMITS[field]:
        assert getattr(SamplingParams(**{field: value}), field) == value


@pytest.mark.parametrize("field", INTEGER_LIMITS)
def test_integer_limits_themselves_are_legal(field: str) -> None:
    for value in INTEGER_LIMITS[field]:
        arguments: dict[str, Any] = {field: value}
        assert getattr(SamplingParams(**arguments), field) == value


def bad_values() -> list[tuple[str, object]]:
    cases: list[tuple[str, object]] = []
    for field, (low, high) in LIMITS.items():
        outside = [math.nextafter(low, -math.inf), math.nextafter(high, math.inf), math.inf, -math.inf, math.nan]
        cases += [(field, value) for value in (*outside, True, "hot", "1", None, [0.5])]
    for field, (low, high) in INTEGER_LIMITS.items():
        cases += [(field, value) for value in (low - 1, high + 1, 1.0, True, "1", math.nan)]
    return cases


@pytest.mark.parametrize(("field", "value"), bad_values())
def test_a_bad_value_is_named_with_its_limits(field: str, value: object) -> None:
    arguments: dict[str, Any] = {field: value}
    with pytest.raises(RequestError) as caught:
        SamplingParams(**arguments)
    error = caught.value
    low, high = {**LIMITS, **INTEGER_LIMITS}[field]
    assert (error.param, error.kind) == (field, "bad_value")
    for word in (field, repr(value), f"{low:g}" if field in LIMITS else str(low), str(high).removesuffix(".0")):
        assert word in str(error)


def test_params_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().temperature = 1.0  # type: ignore[misc]  # what the test is about


@pytest.mark.parametrize("field", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_any_penalty_needs_the_history(field: str) -> None:
    assert SamplingParams(**{field: 0.5}).has_penalties


@pytest.mark.parametrize(
    "bias", [((-1, 0.0),), ((1, 100.5),), ((1, math.nan),), ((1.0, 1.0),), ((True, 1.0),), ((3, 1.0), (3, 2.0)),
             tuple((i, 0.0) for i in range(1025))],
)  # fmt: skip
def test_a_bad_bias_is_named(bias: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(logit_bias=bias)
    assert caught.value.param == "logit_bias"
