"""What differs between two runs: the question every comparison starts with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal

from ninfer.bench.records.facts import FACTS, Declaration, Fact, Scalar, Value
from ninfer.bench.records.schema import RunFile

Kind = Literal["repeatability", "controlled", "not comparable"]


class Unrecorded(Enum):
    """The value of a fact that a run does not state; equal to nothing, not even to itself."""

    UNRECORDED = "unrecorded"


UNRECORDED: Final = Unrecorded.UNRECORDED

DERIVED_PLAN_KEYS = frozenset({"config", "choices", "memory", "total_bytes", "digest"})
"""Members of an engine's plan that say why, or how much memory, and not what runs."""


@dataclass(frozen=True)
class Difference:
    """One fact that two runs do not share."""

    fact: str
    left: Value | Unrecorded
    right: Value | Unrecorded


@dataclass(frozen=True)
class Vouched:
    """A fact that is taken as equal on somebody's word: the label of the declaration and who made it."""

    fact: str
    label: str
    by: str


@dataclass(frozen=True)
class Differences:
    """All that two runs do not share.

    own: facts that differ and follow from no other; consequences: those that do; unrecorded: facts that one or both
    runs do not state; labels: differing labels under which each run's word was given for unrecorded facts; vouched:
    facts taken as equal because both labels are equal.
    """

    own: tuple[Difference, ...]
    consequences: tuple[Difference, ...]
    unrecorded: tuple[Difference, ...]
    vouched: tuple[Vouched, ...]
    labels: tuple[str, str] | None

    @property
    def kind(self) -> Kind:
        """No difference: repeatability; exactly one: controlled; more, or anything unrecorded: not comparable."""
        if self.unrecorded or len(self.own) > 1:
            return "not comparable"
        return "controlled" if self.own else "repeatability"


def find_differences(left: RunFile, right: RunFile) -> Differences:
    """Compare two runs fact by fact.

    A differing fact is a consequence when a fact that it follows (facts.py) differs too, or when planners decided it in
    both runs and something else differs that they did not decide. Values of the engine's plans that are no facts count
    the same way as decided by a planner.
    """
    differing: list[Difference] = []
    unrecorded: list[Difference] = []
    vouched: list[Vouched] = []
    labels: tuple[str, str] | None = None
    required = [name for name, meaning in FACTS.items() if meaning.is_required]
    for name in dict.fromkeys((*FACTS, *left.facts, *right.facts)):
        a, b = left.facts.get(name), right.facts.get(name)
        if a is not None and b is not None:
            if not are_equal(a.value, b.value):
                differing.append(Difference(name, a.value, b.value))
            continue
        if a is None and b is None and name not in required:
            continue
        words = _words_for(left, name), _words_for(right, name)
        if words[0] is not None and words[1] is not None:
            if words[0].label == words[1].label:
                vouched.append(Vouched(name, words[0].label, words[0].by))
                continue
            labels = (words[0].label, words[1].label)
        unrecorded.append(Difference(name, _value(a), _value(b)))
    own, consequences = _sort_out(differing, left, right)
    return Differences(own, consequences, tuple(unrecorded), tuple(vouched), labels)


def are_equal(left: Value, right: Value) -> bool:
    """Equal in value and type: true is not 1, and "1" is not 1; a whole number equals its float."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(are_equal(a, b) for a, b in zip(left, right, strict=True))
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def _sort_out(
    differing: list[Difference], left: RunFile, right: RunFile
) -> tuple[tuple[Difference, ...], tuple[Difference, ...]]:
    """(differences of their own, consequences of those)."""
    names = {difference.fact for difference in differing}
    explained = {difference.fact for difference in differing if _is_explained(difference, names)}
    planned = {name for name in names - explained if _is_planned(left.facts[name]) and _is_planned(right.facts[name])}
    from_plans = list(_plan_differences(left.plan, right.plan))
    if names - explained - planned:
        explained |= planned
    own = [d for d in differing if d.fact not in explained]
    consequences = [d for d in differing if d.fact in explained]
    (consequences if own else own).extend(from_plans)
    return tuple(own), tuple(consequences)


def _is_explained(difference: Difference, names: set[str]) -> bool:
    """Whether a difference follows from another one among `names`."""
    meaning = FACTS.get(difference.fact)
    if meaning is None:
        return False
    does_not_apply = meaning.owner in names and None in (difference.left, difference.right)
    return does_not_apply or any(followed in names for followed in meaning.follows)


def _is_planned(fact: Fact) -> bool:
    return fact.origin == "auto"


def _plan_differences(left: Mapping[str, Any] | None, right: Mapping[str, Any] | None) -> Iterator[Difference]:
    """Values that differ between two plans; nothing where one run has none, since its facts stand for it.

    Members of what is null in the other plan do not apply there, so they are null there too.
    """
    if left is None or right is None:
        return
    a, b = dict(_leaves(left)), dict(_leaves(right))
    for name in dict.fromkeys((*a, *b)):
        if any(other.startswith(f"{name}.") for other in (*a, *b)):
            continue  # null in one plan; the members in the other one tell the difference
        x, y = _value_in(a, name), _value_in(b, name)
        if isinstance(x, Unrecorded) or isinstance(y, Unrecorded) or not are_equal(x, y):
            yield Difference(name, x, y)


def _value_in(leaves: Mapping[str, Value], name: str) -> Value | Unrecorded:
    while name not in leaves and "." in name:
        name = name.rpartition(".")[0]
        if leaves.get(name, UNRECORDED) is None:
            return None
    return leaves.get(name, UNRECORDED)


def _leaves(plan: Mapping[str, Any], prefix: str = "plan") -> Iterator[tuple[str, Value]]:
    for key, value in plan.items():
        if prefix == "plan" and key in DERIVED_PLAN_KEYS:
            continue
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}.{key}")
        else:
            yield f"{prefix}.{key}", _plain(value)


def _plain(value: Any) -> Value:
    if isinstance(value, list | tuple):
        return [_scalar(item) for item in value]
    return _scalar(value)


def _scalar(value: Any) -> Scalar:
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def _words_for(run: RunFile, name: str) -> Declaration | None:
    return next((declaration for declaration in run.declarations if declaration.does_cover(name)), None)


def _value(fact: Fact | None) -> Value | Unrecorded:
    return UNRECORDED if fact is None else fact.value
