"""Campaigns: every prompt of a set, several times, to one target or to several in turns, each sample recorded.

Targets never work at the same time. With one request in flight they take turns prompt by prompt, with several or with
planned arrivals repeat by repeat, and who begins changes from repeat to repeat: drift of the machine then meets all of
them alike. A campaign that was killed goes on where it was: what a run has recorded is not asked again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from ninfer.bench.load.suite import with_nonce
from ninfer.bench.load.target import Outcome, Target
from ninfer.bench.records.schema import (
    Prompt,
    RequestRow,
    Response,
    SampleKey,
    Stamps,
    digest_of,
    ids_digest,
)
from ninfer.bench.records.writer import RunWriter
from ninfer.errors import ConfigError

MAX_CONCURRENCY = 4096


@dataclass(frozen=True)
class LoadPattern:
    """When requests are sent.

    concurrency: requests in flight of a closed pattern; the next is sent when one ends. rate: mean requests per second
    of an open pattern with random gaps (Poisson), sent at their times whatever is still in flight; None for closed.
    seed: of the gaps and the nonces.
    """

    concurrency: int = 1
    rate: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise ConfigError(f"concurrency is {self.concurrency}; it must be in [1, {MAX_CONCURRENCY}]")
        if self.rate is not None and not 0 < self.rate < 1e6:
            raise ConfigError(f"rate is {self.rate} requests per second; it must be above 0 and below 1e6")
        if self.rate is not None and self.concurrency != 1:
            raise ConfigError("concurrency is of a closed pattern and rate of an open one; give one of them")

    @property
    def word(self) -> str:
        return "closed" if self.rate is None else "open"

    def offsets(self, count: int, repeat: int) -> list[float | None]:
        """Seconds from the start of a repeat at which its requests are to be sent; None: as soon as a place is free."""
        if self.rate is None:
            return [None] * count
        rng = random.Random(f"{self.seed} {repeat}")
        at, offsets = 0.0, []
        for _ in range(count):
            at += rng.expovariate(self.rate)
            offsets.append(at)
        return list(offsets)


@dataclass(frozen=True)
class Schedule:
    """How often and how. warmups: requests to each target before anything counts; has_nonce: whether every request
    begins with a line of its own, so that nothing is reused."""

    repeats: int = 1
    warmups: int = 1
    pattern: LoadPattern = LoadPattern()
    has_nonce: bool = True

    def __post_init__(self) -> None:
        if self.repeats < 1 or self.warmups < 0:
            raise ConfigError(f"repeats is {self.repeats} and warmups {self.warmups}; at least 1 and 0")


@dataclass(frozen=True)
class Runner:
    """One target and the run that its samples go to."""

    name: str
    target: Target
    writer: RunWriter


@dataclass(frozen=True, slots=True)
class _Sample:
    key: SampleKey
    prompt: Prompt
    order: int
    offset: float | None = None


@dataclass(frozen=True)
class _Unit:
    """Samples of one runner that belong together in time."""

    runner: Runner
    samples: tuple[_Sample, ...]


@dataclass(slots=True)
class Progress:
    """How far a campaign is; `failed` samples are among `done`, `kept` were there before this process."""

    total: int
    done: int = 0
    failed: int = 0
    kept: int = 0


async def run_campaign(
    runners: Sequence[Runner],
    prompts: Sequence[Prompt],
    schedule: Schedule,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Take every sample that is not there yet. OSError when a record cannot be written; samples taken stay.

    Whether a run is finished by it is for the caller to say.
    """
    units = list(_units(runners, prompts, schedule))
    progress = Progress(sum(len(unit.samples) for unit in units))
    with ThreadPoolExecutor(1, thread_name_prefix="ninfer-records") as disk:
        for unit in units:
            missing = [sample for sample in unit.samples if sample.key not in unit.runner.writer.done]
            progress.kept += len(unit.samples) - len(missing)
            progress.done += len(unit.samples) - len(missing)
            on_progress(progress)
            await _run_unit(unit.runner, missing, schedule, disk, progress, on_progress)
    return progress


def _units(runners: Sequence[Runner], prompts: Sequence[Prompt], schedule: Schedule) -> list[_Unit]:
    """All samples in the order of the campaign."""
    order = 0
    units: list[_Unit] = []

    def add(runner: Runner, samples: list[tuple[SampleKey, Prompt, float | None]]) -> None:
        nonlocal order
        numbered = tuple(_Sample(key, prompt, order + i, at) for i, (key, prompt, at) in enumerate(samples))
        order += len(samples)
        units.append(_Unit(runner, numbered))

    for runner in runners:
        warmups = [prompts[i % len(prompts)] for i in range(schedule.warmups)]
        add(runner, [(SampleKey(p.id, i // len(prompts), 0, True), p, None) for i, p in enumerate(warmups)])
    for repeat in range(schedule.repeats):
        first = repeat % len(runners)
        turn = [*runners[first:], *runners[:first]]
        offsets = schedule.pattern.offsets(len(prompts), repeat)
        together = [(SampleKey(p.id, repeat), p, at) for p, at in zip(prompts, offsets, strict=True)]
        if schedule.pattern.rate is None and schedule.pattern.concurrency == 1:
            for sample in together:
                for runner in turn:
                    add(runner, [sample])
        else:
            for runner in turn:
                add(runner, together)
    return units


async def _run_unit(
    runner: Runner,
    samples: Sequence[_Sample],
    schedule: Schedule,
    disk: Executor,
    progress: Progress,
    on_progress: Callable[[Progress], None],
) -> None:
    loop = asyncio.get_running_loop()
    started, started_unix_ns = loop.time(), time.time_ns()
    waiting = iter(samples)
    written: list[asyncio.Future[RequestRow]] = []

    async def take(sample: _Sample) -> None:
        planned = None if sample.offset is None else started_unix_ns + int(sample.offset * 1e9)
        row, response = await _ask(runner.target, sample, schedule, planned)
        # Another thread waits for the disk, so that the next request does not.
        written.append(loop.run_in_executor(disk, partial(runner.writer.append, row, response)))
        progress.done += 1
        progress.failed += row.error is not None
        on_progress(progress)

    async def work() -> None:
        for sample in waiting:
            await take(sample)

    try:
        async with asyncio.TaskGroup() as group:
            if schedule.pattern.rate is None:
                for _ in range(min(schedule.pattern.concurrency, len(samples))):
                    group.create_task(work())
            else:
                for sample in samples:
                    await asyncio.sleep(started + (sample.offset or 0.0) - loop.time())
                    group.create_task(take(sample))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        await asyncio.gather(*written)


async def _ask(
    target: Target, sample: _Sample, schedule: Schedule, planned_unix_ns: int | None
) -> tuple[RequestRow, Response]:
    body: Any = sample.prompt.body
    if schedule.has_nonce:
        body = with_nonce(body, digest_of([schedule.pattern.seed, list(sample.key)])[:12])
    sent = time.time_ns()
    outcome = await target.answer(body, sample.prompt.max_new)
    return _recorded(
        sample, outcome, Stamps(sent_unix_ns=sent, ended_unix_ns=time.time_ns(), planned_unix_ns=planned_unix_ns)
    )


def _recorded(sample: _Sample, outcome: Outcome, stamps: Stamps) -> tuple[RequestRow, Response]:
    key, error = sample.key, outcome.error
    row = RequestRow(
        prompt=key.prompt,
        repeat=key.repeat,
        client=key.client,
        is_warmup=key.is_warmup,
        order=sample.order,
        stamps=stamps,
        max_new=sample.prompt.max_new,
        usage=outcome.usage,
        seconds=outcome.seconds,
        speculation=outcome.speculation,
        finish=outcome.finish,
        is_empty=None if error else not (outcome.text.strip() or outcome.has_tool_call),
        ids_digest=None if outcome.output_ids is None else ids_digest(list(outcome.output_ids)),
        text_digest=digest_of([outcome.reasoning, outcome.text]),
        error=None if error is None else {"kind": error[0], "message": error[1]},
        extra=outcome.extra or {},
    )
    response = Response(
        output_ids=None if outcome.output_ids is None else list(outcome.output_ids),
        text=outcome.text,
        reasoning=outcome.reasoning or None,
        token_seconds=list(outcome.token_seconds),
        chunk_tokens=None if outcome.chunk_tokens is None else list(outcome.chunk_tokens),
    )
    return row, response
