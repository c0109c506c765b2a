"""The comparison: best settings kept, rounds interleaved, what is missing named; workers with scripted times."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ninfer.bench import peers, rendering
from ninfer.bench.peers import Contender, measure
from ninfer.bench.workload import Decode, Prefill
from ninfer.errors import ConfigError

SCRIPT = Path(__file__).with_name("scripted_worker.py")
WORK = (Prefill(4), Decode(2))


def contender(
    tmp_path: Path, name: str, grid: tuple[dict[str, Any], ...] = ({"kv": "f16"},), **script: Any
) -> Contender:
    command = (sys.executable, str(SCRIPT), name, str(tmp_path / "log"), json.dumps({"seconds": 1.0, **script}))
    return Contender(name, command, tmp_path / "model", grid)


def test_ratio_is_how_many_times_faster_ours_is(tmp_path: Path) -> None:
    ours = contender(tmp_path, peers.OWN, seconds=0.5)
    result = measure([ours, contender(tmp_path, "slowpoke", seconds=1.0)], work=WORK, rounds=6)
    for comparison in result.comparisons:
        ratio = comparison.ratio(peers.OWN, "slowpoke")
        assert (ratio.median, ratio.low, ratio.high, ratio.verdict) == (2.0, 2.0, 2.0, "faster")
        assert len(ratio.pairs) == 6


def test_rounds_are_interleaved(tmp_path: Path) -> None:
    measure([contender(tmp_path, "a"), contender(tmp_path, "b")], work=(Prefill(4),), rounds=3)
    words = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines() if line.endswith("prefill")]
    assert words == ["a", "b"] * 4  # one warm-up, then three rounds


def test_the_best_settings_are_used_and_all_trials_kept(tmp_path: Path) -> None:
    grid = ({"kv": "slow"}, {"kv": "fast"})
    result = measure([contender(tmp_path, "tuned", grid, slow=3.0)], work=WORK, rounds=1)
    assert [dict(c.settings["tuned"]) for c in result.comparisons] == [{"kv": "fast"}] * 2
    trials = [m for m in result.run.measurements if m.name == peers.TRIAL]
    assert [(m.inputs["kv"], m.summary.median) for m in trials] == [("slow", 3.0)] * 2 + [("fast", 1.0)] * 2


def test_long_work_uses_what_its_stand_in_found(tmp_path: Path) -> None:
    grid = ({"kv": "slow"}, {"kv": "fast"})
    result = measure([contender(tmp_path, "tuned", grid, slow=2.0)], work=(Prefill(5000), Decode(3000)), rounds=1)
    assert [c.work.name for c in result.comparisons] == ["prefill 5000", "decode at 3000"]
    assert [dict(c.settings["tuned"]) for c in result.comparisons] == [{"kv": "fast"}] * 2
    trials = [m.inputs["work"] for m in result.run.measurements if m.name == peers.TRIAL]
    assert trials == ["prefill 2048", "decode at 2048"] * 2


def test_settings_that_kill_or_are_refused_are_named_and_not_used(tmp_path: Path) -> None:
    grid = ({"kv": "deadly"}, {"kv": "bad"}, {"kv": "fine"})
    result = measure([contender(tmp_path, "frail", grid, die_on="deadly", refuse="bad")], work=WORK, rounds=1)
    assert [u.name for u in result.run.unsupported] == [
        f"frail with kv={word}: {piece.name}" for word in ("deadly", "bad") for piece in WORK
    ]
    assert "ended with code 3" in result.run.unsupported[0].reason
    assert "its log says: fatal: scripted death" in result.run.unsupported[0].reason
    assert "refused on purpose" in result.run.unsupported[2].reason
    assert dict(result.comparisons[0].settings["frail"]) == {"kv": "fine"}


def test_a_missing_peer_is_named_and_the_rest_runs(tmp_path: Path) -> None:
    absent = contender(tmp_path, "absent", missing="not installed here")
    hopeless = contender(tmp_path, "hopeless", ({"kv": "x"}, {"kv": "x"}), die_on="x")
    result = measure([contender(tmp_path, peers.OWN), absent, hopeless], work=WORK, rounds=2)
    reasons = {u.name: u.reason for u in result.run.unsupported}
    assert reasons["absent"] == "missing: not installed here"
    assert set(result.comparisons[0].seconds) == {peers.OWN}
    assert result.comparisons[0].fastest_peer() is None
    assert list(result.greetings) == [peers.OWN, "hopeless"]
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(rendering.peers_tables(result))
    assert "cannot" in console.export_text()


def test_table_and_json_say_the_same(tmp_path: Path) -> None:
    result = measure(
        [
            contender(tmp_path, peers.OWN, seconds=0.25),
            contender(tmp_path, "rival"),
            contender(tmp_path, "gone", missing="x"),
        ],
        work=WORK,
        rounds=6,
    )
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(rendering.peers_tables(result))
    text = console.export_text()
    assert "4.00 (4.00 to 4.00)" in text
    assert "not used: gone: missing: x" in text
    document = json.loads(json.dumps(result.to_json()))
    assert document["comparisons"][0]["ratios"]["rival"]["median"] == 4.0
    assert document["conditions"]["rounds"] == 6


def test_grids_only_hold_what_the_peers_accept() -> None:
    for grid in (peers.llama_grid(), peers.ik_llama_grid()):
        assert len({json.dumps(settings, sort_keys=True) for settings in grid}) == len(grid)
        assert all(settings["flash_attention"] for settings in grid if settings["kv"] == "q8_0")


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such peer: 'other'"):
        peers.peer("other", sys.executable, tmp_path)
    with pytest.raises(ConfigError, match="needs work"):
        measure([], work=WORK)
