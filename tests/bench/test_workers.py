"""The protocol from both ends: what a worker is asked, what it computes, and how its failures arrive."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ninfer.bench import workload
from ninfer.bench.workers import serving
from ninfer.bench.workers.protocol import Worker
from ninfer.bench.workload import DEFAULT_WORK, Decode, Prefill, Rows, contexts, token_ids
from ninfer.errors import BackendError, UnsupportedError

SCRIPT = Path(__file__).with_name("scripted_worker.py")


def scripted(tmp_path: Path, **script: Any) -> tuple[str, ...]:
    return (sys.executable, str(SCRIPT), "fake", str(tmp_path / "log"), json.dumps({"seconds": 0.5, **script}))


def test_greeting_times_and_memory_arrive(tmp_path: Path) -> None:
    with Worker(scripted(tmp_path)) as worker:
        assert (worker.greeting.engine, worker.greeting.version, worker.greeting.system) == ("fake", "9", "SIMD = 1")
        worker.ask("load", settings={})
        for piece in (Prefill(5), Decode(4), Rows(2)):
            taken = piece.run(worker)
            assert taken.values == (0.5,) * piece.repeats
            assert taken.warmups == (0.5,) * piece.warmups
            assert piece.warmups > 0
        assert worker.peak_rss_bytes == 1000
        assert "noise for the log" in worker.log()


def test_an_engine_that_is_not_there_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no such package"):
        Worker(scripted(tmp_path, missing="no such package"))
    with pytest.raises(UnsupportedError, match="cannot start"):
        Worker((str(tmp_path / "absent-python"), "x"))


def test_a_refusal_keeps_the_worker_a_death_does_not(tmp_path: Path) -> None:
    with Worker(scripted(tmp_path, refuse="bad", die_on="worse")) as worker:
        with pytest.raises(BackendError, match=r"cannot load: refused on purpose$"):
            worker.ask("load", settings={"x": "bad"})
        worker.ask("load", settings={"x": "good"})
        with pytest.raises(BackendError, match="ended with code 3 at 'load'; its log says: fatal"):
            worker.ask("load", settings={"x": "worse"})
        with pytest.raises(BackendError, match="gone"):
            worker.ask("load", settings={})


def test_a_peer_that_is_not_installed_says_so() -> None:
    llama = Path(serving.__file__).with_name("llama.py")
    # -I -S: no site packages at all, so no peer can be found whatever this environment has.
    with pytest.raises(UnsupportedError, match="llama_cpp"):
        Worker((sys.executable, "-S", str(llama), "llama.cpp"), env={"PYTHONPATH": ""})


class RecordingSession:
    """Keeps what it was asked to compute."""

    def __init__(self, *, can_cut_back: bool = True) -> None:
        self.facts: dict[str, Any] = {}
        self.can_cut_back = can_cut_back
        self.calls: list[tuple[Any, ...]] = []

    def step(self, rows: Sequence[serving.Row], *, all_logits: bool) -> None:
        self.calls.append(("step", list(rows), all_logits))

    def forget(self, start: int) -> bool:
        self.calls.append(("forget", start))
        return start == 0 or self.can_cut_back

    def close(self) -> None:
        self.calls.append(("close",))


def test_prefill_starts_from_nothing_every_time() -> None:
    session = RecordingSession()
    assert len(serving.prefill(serving.Bench(session), [7, 8], 2)["seconds"]) == 2
    assert session.calls == [("forget", 0), ("step", [(7, 0, 0), (8, 1, 0)], False)] * 2


def test_decode_fills_every_sequence_and_steps_them_together() -> None:
    session = RecordingSession()
    assert len(serving.decode(serving.Bench(session), [7, 8], 2, [9, 10])["seconds"]) == 2
    assert session.calls == [
        ("forget", 0),
        ("step", [(7, 0, 0), (8, 1, 0)], False),
        ("step", [(7, 0, 1), (8, 1, 1)], False),
        ("step", [(9, 2, 0), (9, 2, 1)], True),
        ("step", [(10, 3, 0), (10, 3, 1)], True),
    ]


def test_rows_go_on_where_the_step_before_ended() -> None:
    session = RecordingSession()
    assert len(serving.rows(serving.Bench(session), [7], [8, 9, 10, 11], 2)["seconds"]) == 2
    assert session.calls == [
        ("forget", 0),
        ("step", [(7, 0, 0)], False),
        ("step", [(8, 1, 0), (9, 2, 0)], True),
        ("step", [(10, 3, 0), (11, 4, 0)], True),
    ]


def test_a_prompt_that_cannot_be_cut_back_to_is_computed_again() -> None:
    session = RecordingSession(can_cut_back=False)
    bench = serving.Bench(session)
    serving.decode(bench, [7, 8], 1, [9])
    session.calls.clear()
    serving.decode(bench, [7, 8], 1, [9])
    assert session.calls == [
        ("forget", 2),
        ("forget", 0),
        ("step", [(7, 0, 0), (8, 1, 0)], False),
        ("step", [(9, 2, 0)], True),
    ]


def test_a_prompt_is_kept_between_visits_until_something_else_overwrites_it() -> None:
    session = RecordingSession()
    bench = serving.Bench(session)
    serving.decode(bench, [7, 8], 1, [9])
    session.calls.clear()
    serving.decode(bench, [7, 8], 1, [9])
    assert session.calls == [("forget", 2), ("step", [(9, 2, 0)], True)]
    for overwrite in (
        lambda: serving.prefill(bench, [7], 1),
        lambda: serving.decode(bench, [7, 8], 2, [9]),
        bench.forget_prompt,
    ):
        overwrite()
        session.calls.clear()
        serving.decode(bench, [7, 8], 1, [9])
        assert session.calls[0] == ("forget", 0)


def test_token_ids_are_fixed_distinct_and_continue() -> None:
    ids = token_ids(5000)
    assert ids == token_ids(2000) + token_ids(3000, start=2000)
    assert len(set(ids)) == 5000
    assert min(ids) >= workload.FIRST_ID
    assert max(ids) < workload.FIRST_ID + workload.ID_RANGE


def test_contexts_hold_every_piece_of_work() -> None:
    assert contexts([Prefill(100), Decode(16), Decode(30, sequences=8), Rows(4, depth=10)]) == {1: 100, 8: 50}
    assert max(contexts(DEFAULT_WORK).values()) <= 8192
    assert len({piece.name for piece in DEFAULT_WORK}) == len(DEFAULT_WORK)


def test_stand_ins_are_never_longer_than_what_they_stand_for() -> None:
    assert workload.trial(Prefill(8192)) == Prefill(2048)
    assert workload.trial(Decode(8000, sequences=2)) == Decode(2048, sequences=2)
    assert workload.trial(Rows(4)) == Rows(4)
