"""Campaigns over targets whose every answer is known: order, repeats, planned times, failures, going on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from make.run_records import make_prompts, make_run
from ninfer.bench.load.campaign import LoadPattern, Runner, Schedule, run_campaign
from ninfer.bench.load.latency import latencies
from ninfer.bench.load.target import Outcome
from ninfer.bench.records.reader import RunRecord, read_run
from ninfer.bench.records.schema import Prompt, RowSeconds, RowUsage
from ninfer.bench.records.verify import verify_run
from ninfer.bench.records.writer import RunWriter
from ninfer.errors import ConfigError

PROMPTS = [
    Prompt(id=name, scenario=name, body=[{"role": "user", "content": f"say {name}"}], max_new=4) for name in "abc"
]


class FakeTarget:
    """Answers after `seconds`; `limit` requests at a time, the others wait in it unseen."""

    def __init__(self, log: list[str], name: str, *, seconds: float = 0.0, limit: int = 1000) -> None:
        self._log, self._name, self._seconds = log, name, seconds
        self._free = asyncio.Semaphore(limit)
        self.bodies: list[str] = []
        self.active = self.most_active = 0
        self.answers: Callable[[int], Outcome] = lambda n: Outcome(
            usage=RowUsage(prompt_tokens=3, cached_tokens=0, computed_tokens=3, completion_tokens=1),
            seconds=RowSeconds(ttft=seconds, decode=0.0, total=seconds),
            finish="stop_token",
            output_ids=(n,),
            text="x",
            token_seconds=(seconds,),
        )

    async def answer(self, body: Any, max_new: int | None) -> Outcome:
        self._log.append(self._name + body[0]["content"][-1])
        self.bodies.append(body[0]["content"])
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        async with self._free:
            await asyncio.sleep(self._seconds)
        self.active -= 1
        return self.answers(len(self.bodies))

    async def close(self) -> None:
        pass


def campaign(
    directory: Path,
    schedule: Schedule,
    *,
    names: str = "X",
    prepare: Callable[[FakeTarget], None] = lambda target: None,
    **how: Any,
) -> tuple[list[str], list[RunRecord], list[FakeTarget]]:
    """Run one over fake targets; what was asked in order (target and prompt), the records, the targets."""

    async def run() -> tuple[list[str], list[FakeTarget]]:
        log: list[str] = []
        targets = [FakeTarget(log, name, **how) for name in names]
        runners = [
            Runner(name, target, RunWriter(directory / name, make_run(name, PROMPTS), PROMPTS))
            for name, target in zip(names, targets, strict=True)
        ]
        for target in targets:
            prepare(target)
        try:
            await run_campaign(runners, PROMPTS, schedule)
            for runner in runners:
                runner.writer.finish()
        finally:
            for runner in runners:
                runner.writer.close()
        return log, targets

    log, targets = asyncio.run(run())
    records = [read_run(directory / name) for name in names]
    assert [problem for record in records for problem in verify_run(record.directory)] == []
    return log, records, targets


def test_targets_take_turns_and_who_begins_changes(tmp_path: Path) -> None:
    log, records, _ = campaign(tmp_path, Schedule(repeats=2, warmups=1), names="XY")
    assert log[:2] == ["Xa", "Ya"], "warm-ups come first"
    assert log[2:] == ["Xa", "Ya", "Xb", "Yb", "Xc", "Yc", "Ya", "Xa", "Yb", "Xb", "Yc", "Xc"]
    orders = [row.order for record in records for row in record.rows]
    assert sorted(orders) == list(range(14))
    assert [len(record.measured) for record in records] == [6, 6], "warm-ups are recorded apart"


def test_every_request_begins_differently_unless_reuse_is_asked_for(tmp_path: Path) -> None:
    _, _, (target,) = campaign(tmp_path / "nonce", Schedule(repeats=3))
    assert len({body.splitlines()[0] for body in target.bodies}) == len(target.bodies)
    _, _, (again,) = campaign(tmp_path / "again", Schedule(repeats=3))
    assert again.bodies == target.bodies, "the same campaign sends the same"
    _, _, (reusing,) = campaign(tmp_path / "reuse", Schedule(repeats=2, warmups=0, has_nonce=False))
    assert reusing.bodies == ["say a", "say b", "say c"] * 2


def test_a_closed_pattern_keeps_as_many_in_flight_as_were_asked(tmp_path: Path) -> None:
    pattern = LoadPattern(concurrency=2)
    log, _, targets = campaign(tmp_path, Schedule(repeats=2, warmups=0, pattern=pattern), names="XY", seconds=0.01)
    assert [target.most_active for target in targets] == [2, 2]
    assert "".join(entry[0] for entry in log) == "XXXYYYYYYXXX", "never two targets at once"


def test_waiting_in_the_client_counts_in_the_latency_as_planned(tmp_path: Path) -> None:
    schedule = Schedule(repeats=4, warmups=0, pattern=LoadPattern(rate=2000.0))
    _, (record,), _ = campaign(tmp_path, schedule, seconds=0.02, limit=1)
    found = latencies(record)
    assert found.values["latency"] == pytest.approx([0.02] * 12), "what the target says of itself"
    planned = sorted(found.values["latency as planned"])
    assert planned[-1] >= 3 * 0.02, "three in a repeat wait for one another"
    assert planned[0] < planned[-1] / 2


def test_planned_times_are_random_repeatable_and_as_many_as_asked() -> None:
    offsets = [offset for offset in LoadPattern(rate=50.0, seed=3).offsets(4000, 0) if offset is not None]
    assert offsets == LoadPattern(rate=50.0, seed=3).offsets(4000, 0)
    assert offsets != LoadPattern(rate=50.0, seed=3).offsets(4000, 1)
    gaps = [after - before for before, after in pairwise(offsets)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 50, rel=0.1)
    assert sum(gap > 2 * mean for gap in gaps) / len(gaps) == pytest.approx(0.135, abs=0.03), "exponential gaps"


def test_failed_and_empty_answers_are_counted_apart_from_good_ones(tmp_path: Path) -> None:
    def spoil(target: FakeTarget) -> None:
        good = target.answers
        bad = Outcome(error=("cut", "the stream ended"), seconds=RowSeconds(ttft=99.0, total=99.0))
        empty = Outcome(finish="output_limit", text=" ", reasoning="hm", seconds=RowSeconds(total=0.5))
        target.answers = lambda n: bad if n % 3 == 0 else empty if n % 3 == 1 else good(n)

    _, (record,), _ = campaign(tmp_path, Schedule(repeats=2, warmups=0), prepare=spoil)
    found = latencies(record)
    assert (found.requests, found.failed, found.empty) == (6, 2, 2)
    assert max(found.values["latency"]) == 0.5, "no latency of a failure"
    assert [row.is_empty for row in record.rows] == [True, False, None] * 2


def test_a_killed_campaign_goes_on_without_asking_twice(tmp_path: Path) -> None:
    def dies(target: FakeTarget) -> None:
        good = target.answers

        def answers(n: int) -> Outcome:
            if n == 5:
                raise KeyboardInterrupt
            return good(n)

        target.answers = answers

    schedule = Schedule(repeats=3, warmups=1)
    with pytest.raises(KeyboardInterrupt):
        campaign(tmp_path, schedule, prepare=dies)
    assert len(read_run(tmp_path / "X").rows) == 4
    log, (record,), _ = campaign(tmp_path, schedule)
    assert log == ["Xa", "Xb", "Xc", "Xa", "Xb", "Xc"]
    assert [row.order for row in record.rows] == list(range(10))
    log, _, _ = campaign(tmp_path, schedule)
    assert log == [], "nothing is left to ask"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LoadPattern(concurrency=0), r"concurrency is 0; it must be in \[1, 4096\]"),
        (lambda: LoadPattern(rate=0.0), "rate is 0.0 requests per second"),
        (lambda: LoadPattern(rate=float("nan")), "rate is nan requests per second"),
        (lambda: LoadPattern(concurrency=2, rate=1.0), "give one of them"),
        (lambda: Schedule(repeats=0), "repeats is 0"),
        (lambda: Schedule(warmups=-1), "warmups -1"),
    ],
)
def test_patterns_that_cannot_be(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_records_of_other_prompts_are_not_mixed_in(tmp_path: Path) -> None:
    campaign(tmp_path, Schedule())
    other = make_prompts("z")
    with pytest.raises(ConfigError, match="inputs"):
        RunWriter(tmp_path / "X", make_run("X", other), other)
