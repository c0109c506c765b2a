"""Our engine measured from outside: steps, loads, starts and memory, each in fresh child processes.

Fresh processes of one binary differ by more than repeats within one (memory placement, neighbours), so every figure is
taken in several. The memory ceiling is measured in between, by the same number of threads, on a buffer of the size of
the weights: what decoding reaches of it is a ratio of one run. Nothing is printed here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ninfer.artifact import Artifact
from ninfer.backends.cpu.ceilings import NativeCeilings
from ninfer.bench import ceilings, page_cache
from ninfer.bench.machine import describe_machine, package_versions
from ninfer.bench.measurements import Measurement, Run, Scalar
from ninfer.bench.measurements import Work as Amount
from ninfer.bench.statistics import quantile
from ninfer.bench.workers.protocol import Worker
from ninfer.bench.workload import DEFAULT_WORK, Decode, Work, contexts, token_ids
from ninfer.errors import BackendError, ConfigError

STEP = "step"
LOAD = "load"
FIRST_TOKEN = "start to first token"
PEAK_MEMORY = "peak memory"
ENGINE_STEP = "engine step"
ENGINE_KERNELS = "kernels of an engine step"

OWN_WORKER = (sys.executable, "-m", "ninfer.bench.workers.own")
COMMAND = (sys.executable, "-c", "from ninfer.cli.main import main; main()")

LOOP_PROMPT_TOKENS, LOOP_NEW_TOKENS = 64, 33
LOAD_CONTEXT = 2048
"""The context `ninfer run` plans for by default; loads are timed with it."""

DEFAULT_SETTINGS: Mapping[str, Scalar] = {
    "numerics": "a8",
    "kv_dtype": "int8",
    "isa": "auto",
    "weights_memory": "auto",
    "prefill_chunk": 512,
}


@dataclass(frozen=True)
class DecodeShare:
    """What one decode step reads and how close that comes to reading as fast as this machine can."""

    work: str
    bytes_per_step: float
    bytes_per_s: float
    ceiling_bytes_per_s: float

    @property
    def share(self) -> float:
        return self.bytes_per_s / self.ceiling_bytes_per_s


@dataclass
class _Collected:
    """Raw values of every measurement while the processes come and go, by name and work."""

    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    warmups: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    ceiling: list[float] = field(default_factory=list)

    def add(self, name: str, what: str, values: Sequence[float], warmups: Sequence[float] = ()) -> None:
        self.values.setdefault((name, what), []).extend(values)
        self.warmups.setdefault((name, what), []).extend(warmups)


def measure(
    model: Path,
    *,
    threads: int,
    settings: Mapping[str, Scalar] = DEFAULT_SETTINGS,
    work: Sequence[Work] = DEFAULT_WORK,
    processes: int = 3,
    progress: Callable[[str], None] = lambda _: None,
) -> Run:
    """Measure the artifact `model` in `processes` fresh processes, one visit of every piece of `work` in each.

    Raises ConfigError for settings that cannot be, ArtifactError for a bad file, BackendError when a child fails.
    """
    if processes < 1 or not work:
        raise ConfigError("a measurement needs work and at least one process")
    with Artifact.open(model) as artifact:
        conditions = {"model": str(model), "artifact_digest": artifact.digest, "file_bytes": artifact.file_bytes}
        load_context = min(LOAD_CONTEXT, int(artifact.config["max_position"]))
    collected = _Collected()
    load = {"model": str(model), "settings": dict(settings), "threads": threads}
    for index in range(processes):
        progress(f"process {index + 1} of {processes}: steps")
        _steps(collected, load, work)
        progress(f"process {index + 1} of {processes}: ceiling, loads, starts")
        _ceiling(collected, threads)
        for state in ("cold", "warm"):
            _load(collected, model, {**load, "context": load_context}, state)
            _start(collected, model, threads, state)
    by_name = {piece.name: piece for piece in work}
    measurements = [_measurement(collected, name, what, by_name) for name, what in collected.values]
    ceiling_bytes = _ceiling_bytes(collected, threads)
    inputs: dict[str, Scalar] = {"buffer_bytes": ceiling_bytes, "huge_pages": True, "threads": threads}
    measurements.append(
        Measurement(
            ceilings.MEMORY_READ, "s", tuple(collected.ceiling), inputs=inputs, work=Amount(ceiling_bytes, "byte")
        )
    )
    plan = collected.facts.pop("plan")
    return Run(
        "engine",
        describe_machine(),
        package_versions(),
        tuple(measurements),
        plan=plan,
        conditions={**conditions, **collected.facts, "threads": threads, "processes": processes},
    )


def decode_shares(run: Run, work: Sequence[Work] = DEFAULT_WORK) -> list[DecodeShare]:
    """For every single-sequence decode of the run: bytes a step reads, its rate, and the ceiling it stands under."""
    ceiling = run.find(ceilings.MEMORY_READ)
    if ceiling is None:
        return []
    shares = []
    for piece in work:
        step = run.find(STEP, work=piece.name)
        if not isinstance(piece, Decode) or piece.sequences > 1 or step is None:
            continue
        positions = piece.depth + piece.warmups + (piece.repeats + 1) / 2  # the middle of the timed steps
        read = run.conditions["weight_bytes_per_step"] + positions * run.conditions["kv_bytes_per_token"]
        shares.append(DecodeShare(piece.name, read, read / step.summary.median, ceiling.rate.median))
    return shares


def overhead_share(run: Run) -> float | None:
    """Median share of an engine step that is not spent in kernels; None when it was not measured."""
    steps, kernels = run.find(ENGINE_STEP), run.find(ENGINE_KERNELS)
    if steps is None or kernels is None:
        return None
    return quantile([1 - k / s for s, k in zip(steps.values, kernels.values, strict=True)], 0.5)


def _steps(collected: _Collected, load: Mapping[str, Any], work: Sequence[Work]) -> None:
    """One process per number of sequences: load, warm up, visit every piece of work, then the engine's own loop."""
    for sequences, context in contexts(work).items():
        with Worker(OWN_WORKER) as worker:
            room = max(context, LOOP_PROMPT_TOKENS + LOOP_NEW_TOKENS)
            facts = worker.ask("load", **load, context=room, sequences=sequences)["facts"]
            if sequences == 1:
                collected.facts.update(facts)
            worker.seconds("decode", ids=token_ids(8), sequences=sequences, next_ids=token_ids(4))
            for piece in work:
                if piece.sequences == sequences:
                    taken = piece.run(worker)
                    collected.add(STEP, piece.name, taken.values, taken.warmups)
            if sequences == 1:
                answer = worker.ask("generate", ids=token_ids(LOOP_PROMPT_TOKENS), max_new=LOOP_NEW_TOKENS)
                collected.add(ENGINE_STEP, "greedy", answer["seconds"])
                collected.add(ENGINE_KERNELS, "greedy", answer["kernel_seconds"])
                collected.add(PEAK_MEMORY, "all work", [worker.peak_rss_bytes])


def _load(collected: _Collected, model: Path, load: Mapping[str, Any], state: str) -> None:
    """Seconds from the open file to a model that can run, in a process that has only imported us."""
    _set_page_cache(collected, model, state)
    with Worker(OWN_WORKER) as worker:
        collected.add(LOAD, state, [worker.ask("load", **load, sequences=1)["load_s"]])


def _start(collected: _Collected, model: Path, threads: int, state: str) -> None:
    """Seconds from starting the interpreter to the first byte of `ninfer run`'s answer; the process's peak memory."""
    _set_page_cache(collected, model, state)
    arguments = ("run", str(model), "--prompt-ids", "1,2,3", "--max-new", "1", "--threads", str(threads))
    with tempfile.TemporaryFile() as log:
        started = time.perf_counter()
        child = subprocess.Popen((*COMMAND, *arguments), stdout=subprocess.PIPE, stderr=log)
        if child.stdout is None:
            raise BackendError("the child has no output pipe")
        first = child.stdout.read(1)
        seconds = time.perf_counter() - started
        child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        child.stdout.close()
        if child.returncode != 0 or not first:
            log.seek(0)
            tail = log.read()[-1000:].decode(errors="replace")
            raise BackendError(f"ninfer run ended with code {child.returncode}; its log ends:\n{tail}")
    collected.add(FIRST_TOKEN, state, [seconds])
    if state == "warm":
        collected.add(PEAK_MEMORY, "ninfer run", [usage.ru_maxrss * 1024])


def _set_page_cache(collected: _Collected, model: Path, state: str) -> None:
    (page_cache.warm if state == "warm" else page_cache.drop)(model)
    collected.facts.setdefault(f"cached_bytes_{state}", []).append(page_cache.resident_bytes(model))


def _ceiling_bytes(collected: _Collected, threads: int) -> int:
    """The weights' size as a whole number of cache lines per thread."""
    line = 64 * threads
    return -(-int(collected.facts["weight_bytes_per_step"]) // line) * line


def _ceiling(collected: _Collected, threads: int) -> None:
    read = NativeCeilings().read_memory(
        _ceiling_bytes(collected, threads), huge_pages=True, threads=threads, passes=1, repeats=2 + 5
    )
    collected.ceiling.extend(read.seconds[2:])


def _measurement(collected: _Collected, name: str, what: str, work: Mapping[str, Work]) -> Measurement:
    values, warmups = tuple(collected.values[name, what]), tuple(collected.warmups[name, what])
    if name == STEP:
        amount = Amount(work[what].tokens_per_value, "token")
        return Measurement(name, "s", values, warmups, {"work": what}, amount)
    return Measurement(name, "byte" if name == PEAK_MEMORY else "s", values, warmups, {"case": what})
