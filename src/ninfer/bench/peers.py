"""Our engine beside llama.cpp and ik_llama.cpp on the same model: best settings first, then interleaved rounds.

Each engine lives in child processes of its own and does the same `Work`: equal token ids, equal threads, logits of the
same rows, no sampling. A peer's settings are tried on every piece of work and its best one for that piece is kept. The
comparison then runs in rounds A B C A B C, so that drift of the machine meets every engine alike; ratios are formed
within a round. Nothing is printed here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninfer.bench.machine import describe_machine, package_versions
from ninfer.bench.records import Measurement, Run, Scalar, Unsupported
from ninfer.bench.records import Work as Amount
from ninfer.bench.statistics import Ratio, paired_ratio, quantile
from ninfer.bench.workers.protocol import Worker
from ninfer.bench.workload import Decode, Prefill, Rows, Work
from ninfer.errors import BackendError, ConfigError, UnsupportedError

Settings = Mapping[str, Scalar]
Progress = Callable[[str], None]

OWN = "ninfer"
WORKERS = Path(__file__).parent / "workers"

DEFAULT_WORK: tuple[Work, ...] = (
    *(Prefill(n) for n in (128, 512, 2048, 4096)),
    *(Decode(n) for n in (16, 512, 2048, 8000)),
    *(Rows(n) for n in (1, 2, 4, 8, 16)),
    Decode(16, sequences=8),
)

TIMED = "step"


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
    """ik_llama.cpp: flash attention x KV type x run-time repacking, which also moves weights to anonymous memory."""
    return tuple(
        {"flash_attention": fa, "kv": kv, "repack": repack, "huge_pages": False, "ubatch": 512}
        for repack in (False, True)
        for fa, kv in ((True, "f16"), (False, "f16"), (True, "q8_0"))
    )


def peer(engine: str, python: str, model: Path, *, name: str | None = None) -> Contender:
    """A peer run by the interpreter `python`; `engine` is "llama.cpp" or "ik_llama.cpp"."""
    grids = {"llama.cpp": llama_grid, "ik_llama.cpp": ik_llama_grid}
    if engine not in grids:
        raise ConfigError(f"no such peer: {engine!r}; known are {', '.join(grids)}")
    return Contender(name or engine, (python, str(WORKERS / "llama.py"), engine), model, grids[engine]())


def own(model: Path, grid: Sequence[Settings]) -> Contender:
    """Our engine, in a child process of this interpreter, reading a `.ninfer` artifact."""
    return Contender(OWN, (sys.executable, "-m", "ninfer.bench.workers.own"), model, tuple(grid))


@dataclass(frozen=True)
class Choice:
    """The settings a contender is fastest with on one piece of work, and the seconds every setting needed."""

    settings: Settings
    tried: tuple[tuple[Settings, float], ...]


@dataclass(frozen=True)
class Comparison:
    """One piece of work: seconds per round of every engine (median of its repeats in that round), round by round."""

    work: Work
    seconds: Mapping[str, tuple[float, ...]]
    settings: Mapping[str, Settings]

    def ratio(self, ours: str, theirs: str) -> Ratio:
        """How many times faster `ours` is: above 1 means it takes less time."""
        return paired_ratio(self.seconds[theirs], self.seconds[ours])

    def fastest(self, names: Sequence[str]) -> str:
        """Of `names`, the engine with the lowest median time."""
        return min(names, key=lambda name: quantile(self.seconds[name], 0.5))


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
        self._contexts = {
            count: max(w.context for w in work if w.sequences == count) for count in {w.sequences for w in work}
        }
        self._workers: dict[tuple[str, str, int], Worker] = {}

    def worker(self, contender: Contender, settings: Settings, sequences: int) -> Worker:
        key = (contender.name, repr(sorted(settings.items())), sequences)
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
    with are recorded with the reason and not used. Raises ConfigError without work or contenders.
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
    measurements: list[Measurement] = []
    choices = {c.name: _choose(c, work, threads, measurements, unsupported, progress) for c in present}
    with ExitStack() as stack:
        bench = _Bench(threads, work, stack)
        comparisons = tuple(_compare(bench, present, choices, piece, rounds, measurements, progress) for piece in work)
    conditions = {"threads": threads, "rounds": rounds, "models": {c.name: str(c.model) for c in present}}
    run = Run(
        "peers", describe_machine(), package_versions(), tuple(measurements), tuple(unsupported), conditions=conditions
    )
    return PeersResult(run, comparisons, greetings)


# How many timed repeats one visit makes: enough that a median stands, few enough that a round stays short.
REPEATS = {Prefill: 1, Decode: 16, Rows: 5}


def repeats_of(work: Work) -> int:
    """Timed repeats of one visit; the slowest prefills are their own average."""
    if isinstance(work, Prefill) and work.tokens <= 512:
        return 3
    return REPEATS[type(work)]


def _choose(
    contender: Contender,
    work: Sequence[Work],
    threads: int,
    measurements: list[Measurement],
    unsupported: list[Unsupported],
    progress: Progress,
) -> dict[str, Choice]:
    """The best settings per piece of work, found by one visit with each setting."""
    tried: dict[str, list[tuple[Settings, float]]] = {piece.name: [] for piece in work}
    for settings in contender.grid if len(contender.grid) > 1 else ():
        progress(f"{contender.name}: trying {describe_settings(settings)}")
        try:
            with ExitStack() as stack:
                bench = _Bench(threads, work, stack)
                for piece in work:
                    worker = bench.worker(contender, settings, piece.sequences)
                    values = piece.run(worker, repeats_of(piece))
                    measurements.append(_record("settings trial", contender, settings, piece, values, {}))
                    tried[piece.name].append((settings, quantile(values, 0.5)))
        except BackendError as error:
            name = f"{contender.name} with {describe_settings(settings)}"
            unsupported.append(Unsupported(name, str(error)))
    chosen: dict[str, Choice] = {}
    for piece in work:
        options = tuple(tried[piece.name])
        best = min(options, key=lambda option: option[1])[0] if options else contender.grid[0]
        chosen[piece.name] = Choice(best, options)
    return chosen


def _compare(
    bench: _Bench,
    contenders: Sequence[Contender],
    choices: Mapping[str, Mapping[str, Choice]],
    piece: Work,
    rounds: int,
    measurements: list[Measurement],
    progress: Progress,
) -> Comparison:
    """Interleaved rounds of one piece of work; a visit before the first round warms every worker up and is dropped."""
    workers = {c.name: bench.worker(c, choices[c.name][piece.name].settings, piece.sequences) for c in contenders}
    seconds: dict[str, list[float]] = {c.name: [] for c in contenders}
    for worker in workers.values():
        piece.run(worker, 1)
    for index in range(rounds):
        progress(f"{piece.name}: round {index + 1} of {rounds}")
        for contender in contenders:
            settings = choices[contender.name][piece.name].settings
            values = piece.run(workers[contender.name], repeats_of(piece))
            measurements.append(_record(TIMED, contender, settings, piece, values, {"round": index}))
            seconds[contender.name].append(quantile(values, 0.5))
    return Comparison(
        piece,
        {name: tuple(values) for name, values in seconds.items()},
        {c.name: choices[c.name][piece.name].settings for c in contenders},
    )


def _record(
    name: str, contender: Contender, settings: Settings, piece: Work, values: Sequence[float], extra: Settings
) -> Measurement:
    inputs: dict[str, Scalar] = {"engine": contender.name, "work": piece.name, **settings, **extra}
    return Measurement(name, "s", tuple(values), inputs=inputs, work=Amount(piece.tokens_per_value, "token"))


def describe_settings(settings: Settings) -> str:
    """One short line: "flash_attention=True kv=f16 ..."."""
    return " ".join(f"{key}={value}" for key, value in settings.items())
