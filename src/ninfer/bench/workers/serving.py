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

    def forget(self, start: int) -> None:
        """Drop every sequence's KV from position `start`."""

    def close(self) -> None: ...


class Engine(Protocol):
    """An engine that is installed: `greeting` has "engine", "version" and "system"."""

    greeting: dict[str, str]

    def load(self, request: dict[str, Any]) -> Session: ...


def timed_step(session: Session, rows: Sequence[Row], *, all_logits: bool) -> float:
    """Seconds of one step."""
    started = time.perf_counter()
    session.step(rows, all_logits=all_logits)
    return time.perf_counter() - started


def fill(session: Session, ids: Sequence[int], sequences: int) -> float:
    """Empty the KV, then prefill `ids` into every sequence, logits of the last token only; returns seconds."""
    session.forget(0)
    prompts = [[(token, position, s) for position, token in enumerate(ids)] for s in range(sequences)]
    return sum(timed_step(session, prompt, all_logits=False) for prompt in prompts)


def prefill(session: Session, ids: Sequence[int], repeats: int) -> Answer:
    """Seconds of each whole prefill."""
    return {"seconds": [fill(session, ids, 1) for _ in range(repeats)]}


def decode(session: Session, ids: Sequence[int], sequences: int, next_ids: Sequence[int]) -> Answer:
    """Seconds of one step per entry of `next_ids`, one row per sequence, after `ids` in every sequence."""
    fill(session, ids, sequences)
    seconds = [
        timed_step(session, [(token, len(ids) + i, s) for s in range(sequences)], all_logits=True)
        for i, token in enumerate(next_ids)
    ]
    return {"seconds": seconds}


def rows(session: Session, ids: Sequence[int], next_ids: Sequence[int], repeats: int) -> Answer:
    """Seconds of a step with all `next_ids` as rows of one sequence after `ids`; the KV is cut back between repeats."""
    fill(session, ids, 1)
    step = [(token, len(ids) + i, 0) for i, token in enumerate(next_ids)]
    seconds = []
    for _ in range(repeats):
        seconds.append(timed_step(session, step, all_logits=True))
        session.forget(len(ids))
    return {"seconds": seconds}


TIMED: dict[str, Callable[..., Answer]] = {"prefill": prefill, "decode": decode, "rows": rows}


def serve(open_engine: Callable[[], Engine], words: Mapping[str, Callable[..., Answer]] = TIMED) -> None:
    """Greet, then answer requests until the input ends; an engine that cannot be imported is greeted as missing.

    words: what can be asked of a loaded session besides `load`, called with the session and the request's fields.
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
    session: Session | None = None
    for line in sys.stdin:
        request = json.loads(line)
        word = request.pop("do")
        try:
            if word == "load":
                if session is not None:
                    session.close()
                session = None
                started = time.perf_counter()
                session = engine.load(request)
                result = {"load_s": time.perf_counter() - started, "facts": session.facts}
            elif word in words and session is not None:
                result = words[word](session, **request)
            else:
                raise EngineError(f"cannot do {word!r} now")
            result["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        except EngineError as error:
            result = {"error": str(error)}
        answer(result)
