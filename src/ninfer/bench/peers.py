"""Our engine beside llama.cpp and ik_llama.cpp on the same model: best settings first, then interleaved rounds.

Each engine lives in child processes of its own and does the same `Work`: equal token ids, equal threads, logits of the
same rows, no sampling. A peer's settings are tried on every piece of work and its best one for that piece is kept. The
comparison then runs in rounds A B C A B C, so that drift of the machine meets every engine alike; ratios are formed
within a round. Nothing is printed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninfer.bench.engine import DEFAULT_SETTINGS, OWN_WORKER
from ninfer.bench.machine import describe_machine, package_versions
from ninfer.bench.measurements import Measurement, Repeats, Run, Scalar, Unsupported
from ninfer.bench.measurements import Work as Amount
from ninfer.bench.statistics import Ratio, paired_ratio, quantile
from ninfer.bench.workers.protocol import Worker
from ninfer.bench.workload import DEFAULT_WORK, Work, contexts, trial
from ninfer.errors import BackendError, ConfigError, UnsupportedError

Settings = Mapping[str, Scalar]
Progress = Callable[[str], None]

OWN = "ninfer"
WORKERS = Path(__file__).parent / "workers"

STEP = "step"
TRIAL = "settings trial"


@dataclass(frozen=True)
class Contender:
    """One engine in one environment: how its worker starts, which model file it reads, which settings it may use."""

    name: str
    command: tuple[str, ...]
    model: Path
    grid: tuple[Settings, ...]


def llama_grid() -> tuple[Settings, ...]:
    """llama.cpp: flash attention x KV type x weights in layouts for this CPU (repacked, AMX); q8_0 needs the first."""
    return tuple(
        {"flash_attention": fa, "kv": kv, "repack": repack, "huge_pages": False, "ubatch": 512}
        for repack in (True, False)
        for fa, kv in ((True, "f16"), (False, "f16"), (True, "q8_0"))
    )


def ik_llama_grid() -> tuple[Settings, ...]:
    """ik_llama.cpp: flash attention x KV type x weights mapped, in huge pages, or repacked at load (in huge pages)."""
    return tuple(
        {"flash_attention": fa, "kv": kv, "repack": repack, "huge_pages": huge, "ubatch": 512}
        for repack, huge in ((False, False), (False, True), (True, True))
        for fa, kv in ((True, "f16"), (False, "f16"), (True, "q8_0"))
    )


def peer(engine: str, python: str, model: Path, *, name: str | None = None) -> Contender:
    """A peer run by the interpreter `python`; `engine` is "llama.cpp" or "ik_llama.cpp"."""
    grids = {"llama.cpp": llama_grid, "ik_llama.cpp": ik_llama_grid}
    if engine not in grids:
        raise ConfigError(f"no such peer: {engine!r}; known are {', '.join(grids)}")
    return Contender(name or engine, (python, str(WORKERS / "llama.py"), engine), model, grids[engine]())


def own(model: Path, settings: Settings = DEFAULT_SETTINGS) -> Contender:
    """Our engine, in a child process of this interpreter, reading a `.ninfer` artifact; one setting, no search."""
    return Contender(OWN, OWN_WORKER, model, (settings,))


@dataclass(frozen=True)
class Comparison:
    """One piece of work: seconds per round of every engine (median of its repeats in that round), round by round."""

    work: Work
    seconds: Mapping[str, tuple[float, ...]]
    settings: Mapping[str, Settings]

    def ratio(self, ours: str, theirs: str) -> Ratio:
        """How many times faster `ours` is: above 1 means it takes less time."""
        return paired_ratio(self.seconds[theirs], self.seconds[ours])

    def fastest_peer(self) -> str | None:
        """The engine other than ours with the lowest median time; None when there is no other."""
        others = [name for name in self.seconds if name != OWN]
        return min(others, key=lambda name: quantile(self.seconds[name], 0.5)) if others else None


@dataclass(frozen=True)
class PeersResult:
    """The records of a run, the comparisons made from them, and the peers that were not there."""

    run: Run
    comparisons: tuple[Comparison, ...]
    greetings: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        names = [name for name in self.greetings if name != OWN]
        return {
            **self.run.to_json(),
            "engines": dict(self.greetings),
            "comparisons": [
                {
                    "work": c.work.name,
                    "settings": {name: dict(settings) for name, settings in c.settings.items()},
                    "ratios": {
                        name: {
                            "median": r.median,
                            "low": r.low,
                            "high": r.high,
                            "coverage": r.coverage,
                            "pairs": r.pairs,
                        }
                        for name in names
                        if OWN in c.seconds and name in c.seconds
                        for r in (c.ratio(OWN, name),)
                    },
                }
                for c in self.comparisons
            ],
        }


class _Bench:
    """Loaded workers by (contender, settings, sequences), started when first needed and ended together."""

    def __init__(self, threads: int, work: Sequence[Work], stack: ExitStack) -> None:
        self._threads = threads
        self._stack = stack
        self._contexts = contexts(work)
        self._workers: dict[tuple[str, str, int], Worker] = {}

    def worker(self, contender: Contender, settings: Settings, sequences: int) -> Worker:
        key = _worker_key(contender, settings, sequences)
        if key not in self._workers:
            worker = self._stack.enter_context(Worker(contender.command))
            worker.ask(
                "load",
                model=str(contender.model),
                settings=dict(settings),
                threads=self._threads,
                context=self._contexts[sequences],
                sequences=sequences,
            )
            self._workers[key] = worker
        return self._workers[key]

    def discard(self, contender: Contender, settings: Settings, sequences: int) -> None:
        """Forget a worker that failed; the next request starts a fresh one."""
        self._workers.pop(_worker_key(contender, settings, sequences), None)


def _worker_key(contender: Contender, settings: Settings, sequences: int) -> tuple[str, str, int]:
    return contender.name, repr(sorted(settings.items())), sequences


def measure(
    contenders: Sequence[Contender],
    *,
    work: Sequence[Work] = DEFAULT_WORK,
    threads: int = 2,
    rounds: int = 7,
    progress: Progress = lambda _: None,
) -> PeersResult:
    """Compare `contenders` on every piece of `work` in `rounds` interleaved rounds.

    A contender whose engine is not installed is listed as unsupported and left out; settings an engine refuses or dies
    with on some work are recorded with the reason and not used for it. Raises ConfigError without work or contenders.
    """
    if not work or not contenders or rounds < 1:
        raise ConfigError("a comparison needs work, contenders and at least one round")
    greetings: dict[str, str] = {}
    unsupported: list[Unsupported] = []
    present: list[Contender] = []
    for contender in contenders:
        try:
            with Worker(contender.command) as worker:
                greeting = worker.greeting
                greetings[contender.name] = f"{greeting.engine} {greeting.version} ({greeting.system.strip()})"
                present.append(contender)
        except (UnsupportedError, BackendError) as error:
            unsupported.append(Unsupported(contender.name, f"missing: {error}"))
    trials: list[Measurement] = []
    chosen: dict[str, Mapping[str, Settings]] = {}
    for contender in present:
        chosen[contender.name] = choose_settings(contender, work, threads, trials, unsupported, progress)
    steps: list[Measurement] = []
    with ExitStack() as stack:
        bench = _Bench(threads, work, stack)
        comparisons = tuple(_compare(bench, present, chosen, piece, rounds, steps, progress) for piece in work)
    conditions = {"threads": threads, "rounds": rounds, "models": {c.name: str(c.model) for c in present}}
    run = Run(
        "peers", describe_machine(), package_versions(), (*trials, *steps), tuple(unsupported), conditions=conditions
    )
    return PeersResult(run, comparisons, greetings)


def choose_settings(
    contender: Contender,
    work: Sequence[Work],
    threads: int,
    trials: list[Measurement],
    unsupported: list[Unsupported],
    progress: Progress = lambda _: None,
) -> Mapping[str, Settings]:
    """The best settings by name of work, from one visit of its stand-in with each; work that never worked is left out.

    Every trial is appended to `trials`, settings that were refused or killed the worker to `unsupported`.
    """
    if len(contender.grid) == 1:
        return {piece.name: contender.grid[0] for piece in work}
    stand_ins = list(dict.fromkeys(trial(piece) for piece in work))
    best: dict[Work, tuple[float, Settings]] = {}
    for settings in contender.grid:
        described = describe_settings(settings)
        progress(f"{contender.name}: trying {described}")
        with ExitStack() as stack:
            bench = _Bench(threads, stand_ins, stack)
            for piece in stand_ins:
                try:
                    taken = piece.run(bench.worker(contender, settings, piece.sequences))
                except BackendError as error:
                    bench.discard(contender, settings, piece.sequences)
                    unsupported.append(Unsupported(f"{contender.name} with {described}: {piece.name}", str(error)))
                    continue
                measured = _record(TRIAL, contender, settings, piece, taken)
                trials.append(measured)
                seconds = measured.summary.median
                if piece not in best or seconds < best[piece][0]:
                    best[piece] = (seconds, settings)
    return {piece.name: best[trial(piece)][1] for piece in work if trial(piece) in best}


def _compare(
    bench: _Bench,
    contenders: Sequence[Contender],
    chosen: Mapping[str, Mapping[str, Settings]],
    piece: Work,
    rounds: int,
    steps: list[Measurement],
    progress: Progress,
) -> Comparison:
    """Interleaved rounds of one piece of work among those that can do it; a visit before them warms up, untimed."""
    contenders = [c for c in contenders if piece.name in chosen[c.name]]
    settings = {c.name: chosen[c.name][piece.name] for c in contenders}
    workers = {c.name: bench.worker(c, settings[c.name], piece.sequences) for c in contenders}
    progress(f"{piece.name}: warming up")
    for worker in workers.values():
        piece.run(worker)
    seconds: dict[str, list[float]] = {c.name: [] for c in contenders}
    for index in range(rounds):
        progress(f"{piece.name}: round {index + 1} of {rounds}")
        for contender in contenders:
            taken = piece.run(workers[contender.name])
            steps.append(_record(STEP, contender, settings[contender.name], piece, taken, index))
            seconds[contender.name].append(quantile(taken.values, 0.5))
    return Comparison(piece, {name: tuple(values) for name, values in seconds.items()}, settings)


def _record(
    name: str,
    contender: Contender,
    settings: Settings,
    piece: Work,
    taken: Repeats,
    index: int | None = None,
) -> Measurement:
    inputs: dict[str, Scalar] = {"engine": contender.name, "work": piece.name, **settings}
    if index is not None:
        inputs["round"] = index
    return Measurement(name, "s", taken.values, taken.warmups, inputs, Amount(piece.tokens_per_value, "token"))


def describe_settings(settings: Settings) -> str:
    """One short line: "flash_attention=True kv=f16 ..."."""
    return " ".join(f"{key}={value}" for key, value in settings.items())
