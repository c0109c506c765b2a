"""The child's side of protocol.py: read one request line, do the work, answer one line.

Standard library only, and importable both as `ninfer.bench.workers.serving` and, beside a script in this directory, as
plain `serving`: a peer's interpreter does not have ninfer. Timing is the same code for every engine.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

Answer = dict[str, Any]
Row = tuple[int, int, int]
"""One row of a step: token id, absolute position, sequence number."""


class EngineError(Exception):
    """The engine refused a request; the message is passed on as the answer."""


class Session(Protocol):
    """One loaded model with KV room for the sequences and context it was loaded with.

    `facts` are JSON values the engine says of it (its plan, the bytes a step reads), passed on with the load's answer.
    """

    facts: dict[str, Any]

    def step(self, rows: Sequence[Row], *, all_logits: bool) -> None:
        """Compute `rows`; return when the logits of the last row (or of all) can be read."""

    def forget(self, start: int) -> bool:
        """Drop what every sequence holds from position `start` on; False, and nothing dropped, where that cannot be.

        Recurrent state cannot be cut back; from 0 it always can be dropped.
        """

    def close(self) -> None: ...


class Engine(Protocol):
    """An engine that is installed: `greeting` has "engine", "version" and "system"."""

    greeting: dict[str, str]

    def load(self, request: dict[str, Any]) -> Session: ...


class Bench:
    """A session and the prompt its KV starts with, so that visits at one depth fill it once."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._filled: tuple[tuple[int, ...], int] | None = None

    def timed_step(self, rows: Sequence[Row], *, all_logits: bool) -> float:
        """Seconds of one step."""
        started = time.perf_counter()
        self.session.step(rows, all_logits=all_logits)
        return time.perf_counter() - started

    def prefill(self, ids: Sequence[int], sequences: int = 1) -> float:
        """Empty the KV, then compute `ids` in every sequence, logits of the last token only; returns seconds."""
        if not self.session.forget(0):
            raise EngineError("the engine could not be emptied")
        self._filled = (tuple(ids), sequences)
        prompts = [_rows(ids, 0, s) for s in range(sequences)]
        return sum(self.timed_step(prompt, all_logits=False) for prompt in prompts)

    def forget_prompt(self) -> None:
        """To be called by whoever writes the session's KV without going through this object."""
        self._filled = None

    def fill(self, ids: Sequence[int], sequences: int = 1) -> None:
        """Make every sequence hold `ids` and nothing else; cheap where what is there can be cut back to them."""
        if self._filled != (tuple(ids), sequences) or not self.session.forget(len(ids)):
            self.prefill(ids, sequences)


def prefill(bench: Bench, ids: Sequence[int], repeats: int) -> Answer:
    """Seconds of each whole prefill."""
    return {"seconds": [bench.prefill(ids) for _ in range(repeats)]}


def decode(bench: Bench, ids: Sequence[int], sequences: int, next_ids: Sequence[int]) -> Answer:
    """Seconds of one step per entry of `next_ids`, one row per sequence, after `ids` in every sequence."""
    bench.fill(ids, sequences)
    steps = [[(token, len(ids) + i, s) for s in range(sequences)] for i, token in enumerate(next_ids)]
    return {"seconds": [bench.timed_step(step, all_logits=True) for step in steps]}


def rows(bench: Bench, ids: Sequence[int], next_ids: Sequence[int], repeats: int) -> Answer:
    """Seconds of each of `repeats` steps, which share `next_ids` equally as rows of one sequence that follows `ids`.

    Each step goes on where the one before ended: not every engine can be cut back, and a few positions more are equal
    for all.
    """
    bench.fill(ids)
    count = len(next_ids) // repeats
    starts = range(0, count * repeats, count)
    steps = [_rows(next_ids[start : start + count], len(ids) + start, 0) for start in starts]
    return {"seconds": [bench.timed_step(step, all_logits=True) for step in steps]}


def _rows(ids: Sequence[int], position: int, sequence: int) -> list[Row]:
    """`ids` as rows of one sequence from `position` on."""
    return [(token, position + i, sequence) for i, token in enumerate(ids)]


TIMED: dict[str, Callable[..., Answer]] = {"prefill": prefill, "decode": decode, "rows": rows}


def serve(open_engine: Callable[[], Engine], words: Mapping[str, Callable[..., Answer]] = TIMED) -> None:
    """Greet, then answer requests until the input ends; an engine that cannot be imported is greeted as missing.

    words: what can be asked besides `load`, called with the Bench of the loaded session and the request's fields.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the engine's libraries print must not reach the answer pipe

    def answer(message: Answer) -> None:
        print(json.dumps(message), file=answers, flush=True)

    try:
        engine = open_engine()
    except (ImportError, OSError) as error:  # PackageNotFoundError is an ImportError
        answer({"missing": str(error)})
        return
    answer(engine.greeting)
    bench: Bench | None = None
    for line in sys.stdin:
        request = json.loads(line)
        word = request.pop("do")
        try:
            if word == "load":
                if bench is not None:
                    bench.session.close()
                bench = None
                started = time.perf_counter()
                bench = Bench(engine.load(request))
                result: Answer = {"load_s": time.perf_counter() - started, "facts": bench.session.facts}
            elif word in words and bench is not None:
                result = words[word](bench, **request)
            else:
                raise EngineError(f"cannot do {word!r} now")
            result["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        except EngineError as error:
            result = {"error": str(error)}
        answer(result)
