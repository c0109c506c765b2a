"""What a measuring tool hands back: immutable raw values with everything needed to judge them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from ninfer.bench.machine import Machine
from ninfer.bench.statistics import Summary, summarize

Scalar = str | int | float | bool | None

RECORD_VERSION = 1


@dataclass(frozen=True)
class Work:
    """How much one value of a measurement stands for: `amount` of `unit` ("byte", "operation", "token")."""

    amount: float
    unit: str


@dataclass(frozen=True)
class Measurement:
    """Raw values of one quantity under one set of inputs.

    values: every timed repeat in the order taken, in `unit`.
    warmups: repeats taken before them, never part of a statistic.
    inputs: the variables of this measurement (threads, depth, ...), scalars only.
    work: what each value stands for when `unit` is "s", so that a rate can be derived.
    """

    name: str
    unit: str
    values: tuple[float, ...]
    warmups: tuple[float, ...] = ()
    inputs: Mapping[str, Scalar] = field(default_factory=dict)
    work: Work | None = None

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError(f"measurement {self.name!r} has no values")
        object.__setattr__(self, "inputs", MappingProxyType(dict(self.inputs)))

    def number(self, key: str) -> float:
        """An input that is a number; raises ValueError when it is something else or absent."""
        value = self.inputs.get(key)
        if isinstance(value, str | None):
            raise ValueError(f"input {key!r} of measurement {self.name!r} is {value!r}, not a number")
        return float(value)

    @property
    def summary(self) -> Summary:
        """Median and spread of the values."""
        return summarize(self.values)

    @property
    def rates(self) -> tuple[float, ...]:
        """`work` per second of every value; raises ValueError where there is none to derive."""
        if self.work is None or self.unit != "s":
            raise ValueError(f"measurement {self.name!r} has no rate")
        return tuple(self.work.amount / value for value in self.values)

    @property
    def rate(self) -> Summary:
        """Median and spread of the rates, in work units per second."""
        return summarize(self.rates)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: the raw numbers, and beside them the statistics derived from them."""
        fields: dict[str, Any] = {
            "name": self.name,
            "inputs": dict(self.inputs),
            "unit": self.unit,
            "values": list(self.values),
            "warmups": list(self.warmups),
            "summary": asdict(self.summary),
        }
        if self.work is not None:
            fields["work"] = asdict(self.work)
            if self.unit == "s":
                fields["rate"] = asdict(self.rate)
        return fields


@dataclass(frozen=True)
class Unsupported:
    """A measurement that could not be taken here, and why."""

    name: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "unsupported": self.reason}


@dataclass(frozen=True)
class Run:
    """All measurements of one call of a tool and the conditions they share.

    plan: the resolved plan of the engine that was measured, None for tools without one.
    conditions: what else was fixed for the whole run (model digest, page-cache state, ...).
    """

    tool: str
    machine: Machine
    versions: Mapping[str, str]
    measurements: tuple[Measurement, ...]
    unsupported: tuple[Unsupported, ...] = ()
    plan: Mapping[str, Any] | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)

    def find(self, name: str, **inputs: Scalar) -> Measurement | None:
        """The first measurement of that name whose inputs include all of `inputs`."""
        for measurement in self.measurements:
            if measurement.name == name and inputs.items() <= measurement.inputs.items():
                return measurement
        return None

    def to_json(self) -> dict[str, Any]:
        return {
            "record_version": RECORD_VERSION,
            "tool": self.tool,
            "machine": asdict(self.machine),
            "versions": dict(self.versions),
            "conditions": dict(self.conditions),
            "plan": None if self.plan is None else dict(self.plan),
            "measurements": [m.to_json() for m in self.measurements],
            "unsupported": [u.to_json() for u in self.unsupported],
        }


@dataclass(frozen=True)
class Repeats:
    """Seconds of `repeat`'s calls: warm-ups apart."""

    warmups: tuple[float, ...]
    values: tuple[float, ...]


def repeat(work: Callable[[], object], *, warmups: int, repeats: int, clock_ns: Callable[[], int]) -> Repeats:
    """Call `work` `warmups + repeats` times and time each call with a monotonic nanosecond clock."""

    def timed() -> float:
        start = clock_ns()
        work()
        return (clock_ns() - start) / 1e9

    return Repeats(tuple(timed() for _ in range(warmups)), tuple(timed() for _ in range(repeats)))


def split_warmups(values: Sequence[float], warmups: int) -> Repeats:
    """The same for values that arrive as one list: the first `warmups` are set apart."""
    if len(values) <= warmups:
        raise ValueError(f"{len(values)} values leave none after {warmups} warm-ups")
    return Repeats(tuple(values[:warmups]), tuple(values[warmups:]))
