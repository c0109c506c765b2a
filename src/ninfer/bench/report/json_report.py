"""A comparison as JSON: every figure unrounded, for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ninfer.bench.compare.audit import Finding, loads_of, num_empty, num_truncated
from ninfer.bench.compare.comparison import Comparison, Measure, PairComparison
from ninfer.bench.compare.differences import Difference, Differences, Unrecorded
from ninfer.bench.compare.quantities import ACCEPTANCE, COMPARED
from ninfer.bench.compare.split import DecodeSplit, Rounds, rounds_of
from ninfer.bench.records.reader import RunRecord
from ninfer.bench.report.conclusion import conclusions
from ninfer.bench.report.words import Words

SCHEMA, SCHEMA_VERSION = "ninfer.comparison", 1


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Plain JSON values; an unrecorded value of a fact is the object `{"unrecorded": true}`, since null is a value."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "conclusions": conclusions(comparison, Words("en")),
        "runs": [_run(run, comparison.findings[run.name]) for run in comparison.runs],
        "pairs": [_pair(pair) for pair in comparison.pairs],
        "apart": [
            {"left": two.left.name, "right": two.right.name, "differences": _differences(two.differences)}
            for two in comparison.apart
        ],
    }


def _run(run: RunRecord, findings: Sequence[Finding]) -> dict[str, Any]:
    good = [row for row in run.measured if row.error is None]
    rounds = rounds_of(run.run, good)
    return {
        "name": run.name,
        "digest": run.run.digest,
        "requests": len(run.measured),
        "failed": len(run.measured) - len(good),
        "truncated": num_truncated(run),
        "empty": num_empty(run),
        "loads": [{"seconds": seconds, "state": state} for seconds, state in loads_of(run)],
        "figures": {quantity.name: quantity.of(good) for quantity in (*COMPARED, ACCEPTANCE)},
        "rounds": None if rounds is None else asdict(rounds),
        "findings": _findings(findings),
    }


def _pair(pair: PairComparison) -> dict[str, Any]:
    return {
        "left": pair.left.name,
        "right": pair.right.name,
        "kind": pair.differences.kind,
        "differences": _differences(pair.differences),
        "order": pair.order,
        "num_pairs": len(pair.pairing.pairs),
        "num_left_out": pair.pairing.num_left_out,
        "measures": [_measure(measure) for measure in pair.measures],
        "scenarios": [{"name": s.name, "decode": _measure(s.decode), "split": _split(s.split)} for s in pair.scenarios],
        "split": _split(pair.split),
        "request_time": None if pair.time is None else asdict(pair.time),
        "findings": _findings(pair.findings),
    }


def _measure(measure: Measure) -> dict[str, Any]:
    return {
        "quantity": measure.quantity.name,
        "unit": measure.quantity.unit,
        "better": measure.quantity.better,
        "left": measure.left,
        "right": measure.right,
        "effect": None if measure.effect is None else asdict(measure.effect),
        "verdict": measure.verdict,
    }


def _split(split: DecodeSplit | None) -> dict[str, Any] | None:
    if split is None:
        return None
    sides: dict[str, Rounds] = {"left": split.left, "right": split.right}
    return {
        **{name: asdict(rounds) for name, rounds in sides.items()},
        "log_rate": split.log_rate,
        "log_tokens_per_round": split.log_tokens,
        "log_round_time": split.log_round_time,
        "log_used": split.log_used,
        "break_even_acceptance": split.break_even,
        "parts_s": split.parts,
    }


def _differences(differences: Differences) -> dict[str, Any]:
    return {
        "own": [_difference(difference) for difference in differences.own],
        "consequences": [_difference(difference) for difference in differences.consequences],
        "unrecorded": [_difference(difference) for difference in differences.unrecorded],
        "vouched": [asdict(vouched) for vouched in differences.vouched],
        "labels": differences.labels,
    }


def _difference(difference: Difference) -> dict[str, Any]:
    sides = {"left": difference.left, "right": difference.right}
    return {
        "fact": difference.fact,
        **{name: {"unrecorded": True} if isinstance(value, Unrecorded) else value for name, value in sides.items()},
    }


def _findings(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [asdict(finding) for finding in findings]
