"""How many answers of a run are right, from its record alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ninfer.bench.records.reader import RunRecord
from ninfer.bench.tasks.checks import Verdict, check_answer
from ninfer.errors import ConfigError


@dataclass(frozen=True)
class TaskResult:
    """One sample. cut: the answer was ended by its limit, so what it would have become is not known."""

    prompt: str
    scenario: str
    repeat: int
    verdict: Verdict
    cut: bool


@dataclass(frozen=True)
class Tally:
    """Samples of a group. right + wrong + unjudged + failed are all of them; `cut` ones are among them."""

    right: int
    wrong: int
    unjudged: int
    failed: int
    cut: int

    @property
    def judged(self) -> int:
        """Failed requests are no right answers, and count."""
        return self.right + self.wrong + self.failed

    @property
    def share(self) -> float | None:
        return self.right / self.judged if self.judged else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the share (Wilson's)."""
        return wilson(self.right, self.judged) if self.judged else None


@dataclass(frozen=True)
class Score:
    """The results of a run, and how many requests failed by scenario."""

    name: str
    results: Sequence[TaskResult]
    failures: dict[str, int]

    @property
    def scenarios(self) -> list[str]:
        return list(dict.fromkeys([*(result.scenario for result in self.results), *self.failures]))

    def tally(self, scenario: str | None = None) -> Tally:
        """Of one scenario, or of all."""
        chosen = [result for result in self.results if scenario in (None, result.scenario)]
        words = [result.verdict.judgement for result in chosen]
        failed = sum(count for name, count in self.failures.items() if scenario in (None, name))
        cut = sum(result.cut for result in chosen)
        return Tally(words.count("right"), words.count("wrong"), words.count("unjudged"), failed, cut)

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.name,
            "failures": self.failures,
            "results": [
                {
                    "prompt": result.prompt,
                    "scenario": result.scenario,
                    "repeat": result.repeat,
                    "judgement": result.verdict.judgement,
                    "reason": result.verdict.reason,
                    "cut": result.cut,
                }
                for result in self.results
            ],
        }


def score_run(record: RunRecord) -> Score:
    """Judge every answer, warm-ups aside. ConfigError for a run without a prompt that says how it is checked."""
    checks = {name: prompt.options["check"] for name, prompt in record.prompts.items() if "check" in prompt.options}
    if not checks:
        raise ConfigError(f"run {record.name} has no prompt whose answers can be checked; suite `tasks` has")
    results: list[TaskResult] = []
    failures: dict[str, int] = {}
    for row in record.measured:
        if row.prompt not in checks:
            continue
        scenario = record.prompts[row.prompt].scenario
        if row.error is not None:
            failures[scenario] = failures.get(scenario, 0) + 1
            continue
        response = record.response(row)
        verdict = Verdict("unjudged", "the answer was not kept")
        if response is not None and response.text is not None:
            verdict = check_answer(checks[row.prompt], response.text)
        cut = row.finish in ("output_limit", "context_capacity")
        results.append(TaskResult(row.prompt, scenario, row.repeat, verdict, cut))
    return Score(record.name, results, failures)


def wilson(right: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Interval of a share of `right` in `count` >= 1 (Wilson 1927); it stays in [0, 1] and is none of zero width."""
    share, square = right / count, z * z
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = z / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)
