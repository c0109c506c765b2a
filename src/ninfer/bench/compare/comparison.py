"""Runs against each other: who may be compared, and what comes of it.

Every two runs are looked at. Runs that differ in one thing, or in nothing, are compared pair by pair; all others are
only named beside each other with the reason. Nothing is ranked or averaged over runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Literal

from ninfer.bench.compare.audit import Finding, audit_pair, audit_run
from ninfer.bench.compare.differences import Differences, find_differences
from ninfer.bench.compare.pairing import Order, Pair, Pairing, order_of, pair_rows
from ninfer.bench.compare.quantities import COMPARED, DECODE_RATE, Quantity
from ninfer.bench.compare.split import DecodeSplit, TimeSplit, rounds_of, split_decode, split_time
from ninfer.bench.effects import Effect, Round, paired_effect
from ninfer.bench.records.reader import RunRecord
from ninfer.bench.records.schema import RequestRow
from ninfer.errors import ConfigError

Verdict = Literal["faster", "slower", "no difference shown", "invalid"]


@dataclass(frozen=True)
class Measure:
    """One quantity of two runs over the same pairs. effect: right over left, None where a side has no value."""

    quantity: Quantity
    left: float | None
    right: float | None
    effect: Effect | None
    verdict: Verdict

    @property
    def change(self) -> float | None:
        """By which share the right side is higher: -0.03 is 3 % lower."""
        return None if self.effect is None else self.effect.ratio - 1


@dataclass(frozen=True)
class ScenarioResult:
    """One scenario of a comparison: decode rates and where their difference comes from."""

    name: str
    decode: Measure
    split: DecodeSplit | None


@dataclass(frozen=True)
class PairComparison:
    """Two runs that differ in one thing or in nothing; `right` is judged beside `left`."""

    left: RunRecord
    right: RunRecord
    differences: Differences
    pairing: Pairing
    order: Order
    measures: tuple[Measure, ...]
    scenarios: tuple[ScenarioResult, ...]
    split: DecodeSplit | None
    time: TimeSplit | None
    findings: tuple[Finding, ...]

    @property
    def decode(self) -> Measure:
        return next(measure for measure in self.measures if measure.quantity is DECODE_RATE)

    @property
    def num_rounds(self) -> int:
        """Repeats that both runs have."""
        return len({pair.left.repeat for pair in self.pairing.pairs})


@dataclass(frozen=True)
class Apart:
    """Two runs that may not be compared, and what keeps them apart."""

    left: RunRecord
    right: RunRecord
    differences: Differences


@dataclass(frozen=True)
class Comparison:
    """All runs in the order they were named, what pairs came of them, and what every run shows by itself."""

    runs: tuple[RunRecord, ...]
    pairs: tuple[PairComparison, ...]
    apart: tuple[Apart, ...]

    @cached_property
    def findings(self) -> dict[str, tuple[Finding, ...]]:
        """By name of the run."""
        return {run.name: tuple(audit_run(run)) for run in self.runs}

    @cached_property
    def unstated(self) -> dict[str, frozenset[str]]:
        """By name of the run, the facts that comparing it needed and it does not state."""
        needed = set[str]()
        for differences in (*(p.differences for p in self.pairs), *(a.differences for a in self.apart)):
            needed |= {difference.fact for difference in differences.unrecorded}
            needed |= {vouched.fact for vouched in differences.vouched}
        return {run.name: frozenset(needed - run.run.facts.keys()) for run in self.runs}

    @property
    def scenarios(self) -> tuple[str, ...]:
        """All scenarios of all runs, in order of appearance."""
        return tuple(dict.fromkeys(prompt.scenario for run in self.runs for prompt in run.prompts.values()))


def compare(runs: Sequence[RunRecord], *, seed: int = 0) -> Comparison:
    """Compare every two of the runs, the earlier one as the left side. seed: of the bootstrap.

    ConfigError for fewer than two runs or two of one name.
    """
    names = [run.name for run in runs]
    if len(runs) < 2:
        raise ConfigError("a comparison needs at least two runs")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"two runs are named {', '.join(repeated)}: give them names of their own")
    audits = {run.name: audit_run(run) for run in runs}
    pairs, apart = [], []
    for left, right in combinations(runs, 2):
        differences = find_differences(left.run, right.run)
        if differences.kind == "not comparable":
            apart.append(Apart(left, right, differences))
        else:
            of_both = [*audits[left.name], *audits[right.name]]
            pairs.append(_compare_pair(left, right, differences, of_both, seed))
    return Comparison(tuple(runs), tuple(pairs), tuple(apart))


def _compare_pair(
    left: RunRecord, right: RunRecord, differences: Differences, of_runs: Sequence[Finding], seed: int
) -> PairComparison:
    pairing = pair_rows(left, right)
    order = order_of([pair.left for pair in pairing.pairs], [pair.right for pair in pairing.pairs])
    findings = audit_pair(left, right, pairing, order)
    invalid = {name for finding in (*of_runs, *findings) for name in finding.affects}
    by_scenario: dict[str, list[Pair]] = {}
    for pair in pairing.pairs:
        by_scenario.setdefault(left.prompts[pair.left.prompt].scenario, []).append(pair)
    return PairComparison(
        left,
        right,
        differences,
        pairing,
        order,
        measures=tuple(measure(quantity, pairing.pairs, invalid, seed) for quantity in COMPARED),
        scenarios=tuple(
            ScenarioResult(name, measure(DECODE_RATE, pairs, invalid, seed), _split(left, right, pairs))
            for name, pairs in by_scenario.items()
        ),
        split=_split(left, right, pairing.pairs),
        time=split_time(*_sides(pairing.pairs)),
        findings=tuple(findings),
    )


def measure(quantity: Quantity, pairs: Sequence[Pair], invalid: set[str], seed: int) -> Measure:
    """A quantity over pairs in which both sides have it, with rounds of one repeat each as the unit of chance."""
    rounds: dict[int, tuple[Round, Round]] = {}
    for pair in pairs:
        parts = quantity.parts(pair.left), quantity.parts(pair.right)
        if parts[0] is not None and parts[1] is not None:
            before = rounds.get(pair.left.repeat, ((0.0, 0.0), (0.0, 0.0)))
            rounds[pair.left.repeat] = (_plus(before[0], parts[0]), _plus(before[1], parts[1]))
    if not rounds:
        return Measure(quantity, None, None, None, "invalid")
    left, right = ([round_[side] for round_ in rounds.values()] for side in (0, 1))
    a, b = (sum(above for above, _ in side) / sum(below for _, below in side) for side in (left, right))
    is_positive = all(above > 0 for above, _ in (*left, *right))
    effect = paired_effect(left, right, seed=seed) if is_positive else None
    is_valid = effect is not None and not invalid & {quantity.name, "all"}
    return Measure(quantity, a, b, effect, _verdict(quantity, effect) if effect and is_valid else "invalid")


def _verdict(quantity: Quantity, effect: Effect) -> Verdict:
    if effect.shown == "no difference shown":
        return "no difference shown"
    return "faster" if effect.shown == quantity.better else "slower"


def _plus(a: Round, b: Round) -> Round:
    return a[0] + b[0], a[1] + b[1]


def _sides(pairs: Sequence[Pair]) -> tuple[list[RequestRow], list[RequestRow]]:
    return [pair.left for pair in pairs], [pair.right for pair in pairs]


def _split(left: RunRecord, right: RunRecord, pairs: Sequence[Pair]) -> DecodeSplit | None:
    """An acceptance that is known for whole runs only says nothing about some of their requests."""
    a, b = _sides(pairs)
    split = split_decode(rounds_of(left.run, a), rounds_of(right.run, b))
    if split is None:
        return None
    is_whole = len(a) == len(left.measured) and len(b) == len(right.measured)
    return split if is_whole or (split.left.basis == split.right.basis == "counted") else None
