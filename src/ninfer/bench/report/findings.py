"""Findings of the audit as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ninfer.bench.compare.audit import Finding
from ninfer.bench.report.numbers import fixed, percent
from ninfer.bench.report.words import Words


def finding_lines(findings: Sequence[Finding], words: Words) -> list[str]:
    """One line per kind of finding: what was seen, by run where it is of a run, and what it means."""
    seen: dict[str, dict[str, list[str]]] = {}
    for finding in findings:
        runs = seen.setdefault(finding.kind, {}).setdefault(seen_text(finding, words), [])
        if finding.run is not None:
            runs.append(finding.run)
    lines = []
    for kind, texts in seen.items():
        parts = [words.list(runs) + words("colon") + text if runs else text for text, runs in texts.items()]
        lines.append(words("clause").join(parts) + words("full stop") + words("space") + words(f"means {kind}"))
    return lines


def seen_text(finding: Finding, words: Words) -> str:
    """What was seen, without the run and without an end."""
    values: dict[str, Any] = dict(finding.values)
    if "share" in values:
        values["share"] = percent(values["share"])
    for name in ("prompt", "context"):
        if name in values:
            values[name] = fixed(values[name], 0)
    if "seconds" in values:
        values["seconds"] = fixed(values["seconds"], 1)
    if "state" in values:
        values["state"] = words(values["state"])
    if "states" in values:
        values["states"] = words.list([words(state) for state in values["states"]])
    if "order" in values:
        values["order"] = words("order unrecorded" if values["order"] == "unrecorded" else values["order"])
    return words(f"saw {finding.kind}", **values)
