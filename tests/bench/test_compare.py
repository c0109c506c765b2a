"""Pairs, verdicts, exact splits and the audit, on runs whose every number is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from make.run_records import make_prompts, make_row, make_run, make_sample, write_run
from ninfer.bench.compare.audit import Finding, load_state, loads_of
from ninfer.bench.compare.comparison import Comparison, compare
from ninfer.bench.compare.loops import find_loop
from ninfer.bench.compare.pairing import order_of
from ninfer.bench.compare.quantities import (
    ACCEPTANCE,
    DECODE_RATE,
    END_TO_END_RATE,
    PREFILL_RATE,
    ROUND_TIME,
    TOKENS_PER_ROUND,
)
from ninfer.bench.compare.split import rounds_of, split_decode, split_time
from ninfer.bench.records.reader import RunRecord, read_run
from ninfer.bench.records.schema import (
    Circumstances,
    RequestRow,
    Response,
    RoundSeconds,
    RowSeconds,
    RowSpeculation,
    RowUsage,
)
from ninfer.bench.records.writer import RunWriter
from ninfer.errors import ConfigError
from ninfer.metrics import (
    Phases,
    SpeculationCounts,
    Usage,
    acceptance,
    decode_rate,
    end_to_end_rate,
    prefill_rate,
    round_seconds,
    tokens_per_round,
)

PROMPTS = make_prompts("a", "b")


def record(name: str, rows: Sequence[RequestRow], changes: dict[str, Any] | None = None, **members: Any) -> RunRecord:
    """A run in memory."""
    run = make_run(name, PROMPTS, changes, **members)
    return RunRecord(Path(name), run, {prompt.id: prompt for prompt in PROMPTS}, list(rows), [])


def campaign(
    rng: np.random.Generator, ratio: float, repeats: int = 5, noise: float = 0.01, changes: Any = None
) -> Comparison:
    """Two interleaved runs over two prompts; the right one decodes `ratio` times as fast, a drift of 10 % hits both."""
    rows: tuple[list[RequestRow], list[RequestRow]] = ([], [])
    clock = 0.0
    for repeat in range(repeats):
        drift = math.exp(rng.normal(0, 0.1))
        for side, speed in enumerate((1.0, ratio)):
            for prompt in ("a", "b"):
                decode_s = drift / speed * math.exp(rng.normal(0, noise))
                rows[side].append(make_row(prompt, repeat, decode_s=decode_s, sent_s=clock))
                clock += 2.0
    return compare([record("l", rows[0]), record("r", rows[1], changes)])


def kinds(findings: Sequence[Finding]) -> list[str]:
    return [finding.kind for finding in findings]


def test_quantities_of_one_request_are_those_of_metrics() -> None:
    usage = Usage(prompt=50, cached=10, completion=21, computed=40)
    phases = Phases(load=0.0, prepare=0.1, queue=0.2, prefill=0.3, decode=4.0, total=4.7, ttft=0.6)
    counts = SpeculationCounts(8, 24, 13, (8, 8, 8), (7, 4, 2))
    row = RequestRow(
        prompt="a", repeat=0, finish="stop_token",
        usage=RowUsage.of(usage), seconds=RowSeconds.of(phases), speculation=RowSpeculation.of("mtp", 3, counts),
    )  # fmt: skip
    assert PREFILL_RATE.of([row]) == prefill_rate(usage, phases)
    assert DECODE_RATE.of([row]) == decode_rate(usage, phases)
    assert END_TO_END_RATE.of([row]) == end_to_end_rate(usage, phases)
    assert ACCEPTANCE.of([row]) == acceptance(counts)
    assert TOKENS_PER_ROUND.of([row]) == tokens_per_round(counts)
    assert ROUND_TIME.of([row]) == round_seconds(counts, phases)


def test_quantities_without_a_value() -> None:
    one_token = make_row(completion=1, rounds=0)
    unknown = RequestRow(prompt="a", repeat=0)
    for quantity in (DECODE_RATE, ACCEPTANCE, TOKENS_PER_ROUND, ROUND_TIME):
        assert quantity.of([one_token, unknown]) is None
    assert PREFILL_RATE.of([unknown]) is None
    assert PREFILL_RATE.of([make_row(usage=RowUsage(prompt_tokens=16, completion_tokens=2))]) is None


def test_rates_over_requests_are_sums_over_sums() -> None:
    rows = [make_row(completion=11, decode_s=1.0), make_row(completion=101, decode_s=4.0)]
    assert DECODE_RATE.of(rows) == 110 / 5.0


def test_a_controlled_pair_gets_a_verdict() -> None:
    found = campaign(np.random.default_rng(0), 0.9, changes={"settings.kv_dtype": "bf16"})
    (pair,) = found.pairs
    assert pair.differences.kind == "controlled"
    assert pair.order == "interleaved"
    assert pair.decode.verdict == "slower"
    assert pair.decode.change == pytest.approx(-0.1, abs=0.02)
    assert pair.num_rounds == 5
    by_name = {measure.quantity.name: measure.verdict for measure in pair.measures}
    assert by_name["request_time"] == "slower"
    assert by_name["prefill_rate"] == "no difference shown"
    assert [(s.name, s.decode.verdict) for s in pair.scenarios] == [("a", "slower"), ("b", "slower")]


def test_lower_is_better_for_times() -> None:
    """C177: the direction of a verdict is that of speed, not of the number."""
    (pair,) = campaign(np.random.default_rng(1), 1.2).pairs
    by_name = {measure.quantity.name: measure for measure in pair.measures}
    assert (by_name["request_time"].verdict, by_name["decode_rate"].verdict) == ("faster", "faster")
    assert by_name["request_time"].change is not None
    assert by_name["request_time"].change < 0


def test_equal_runs_show_no_difference_as_often_as_stated_and_five_percent_are_found() -> None:
    rng = np.random.default_rng(7)
    equal = [campaign(rng, 1.0).pairs[0].decode.verdict for _ in range(100)]
    assert equal.count("no difference shown") / 100 >= 0.9
    slower = [campaign(rng, 0.95).pairs[0].decode.verdict for _ in range(40)]
    assert slower.count("slower") >= 38


def test_one_repeat_is_a_single_sample() -> None:
    found = campaign(np.random.default_rng(0), 0.5, repeats=1)
    (pair,) = found.pairs
    assert pair.decode.effect is not None
    assert pair.decode.effect.is_single
    assert pair.decode.verdict == "no difference shown"
    assert "single" in kinds(found.findings["l"])


def test_runs_that_differ_in_more_are_only_named() -> None:
    found = campaign(np.random.default_rng(0), 0.5, changes={"settings.kv_dtype": "bf16", "machine.num_cpus": 4})
    assert found.pairs == ()
    assert [d.fact for d in found.apart[0].differences.own] == ["settings.kv_dtype", "machine.num_cpus"]


def test_too_few_runs_and_equal_names_are_refused() -> None:
    one = record("x", [make_row()])
    with pytest.raises(ConfigError, match="at least two"):
        compare([one])
    with pytest.raises(ConfigError, match="two runs are named x"):
        compare([one, one])


def test_warm_ups_and_failures_take_no_part() -> None:
    """C172, C169."""
    slow = make_row(decode_s=100.0, is_warmup=True)
    failed = make_row("b", error={"kind": "reset", "message": "gone"}, finish=None)
    left = record("l", [slow, make_row(), make_row("b")])
    right = record("r", [slow, make_row(), failed])
    found = compare([left, right])
    (pair,) = found.pairs
    assert [p.left.prompt for p in pair.pairing.pairs] == ["a"]
    assert pair.pairing.num_left_out == 2
    assert pair.decode.left == 32.0
    assert found.findings["r"][0].values == {"failed": 1, "all": 2, "kinds": "reset"}
    assert pair.decode.verdict == "invalid"  # half of the requests failed


def test_a_few_failures_limit_but_do_not_invalidate() -> None:
    rows = [make_row("a", repeat) for repeat in range(40)]
    failed = make_row("b", error={"kind": "reset", "message": ""}, finish=None)
    found = compare([record("l", [*rows, failed]), record("r", rows)])
    assert found.findings["l"][0].weight == "limits"
    assert found.pairs[0].decode.verdict == "no difference shown"


def test_prompts_pair_only_with_themselves() -> None:
    left = record("l", [make_row("a"), make_row("b")])
    changed = make_prompts("a") + make_prompts("b", max_new=9)
    run = make_run("r", changed, {"inputs.digest": left.run.inputs.digest})
    right = RunRecord(Path("r"), run, {p.id: p for p in changed}, [make_row("a"), make_row("b")], [])
    (pair,) = compare([left, right]).pairs
    assert [p.left.prompt for p in pair.pairing.pairs] == ["a"]


@pytest.mark.parametrize(
    ("left", "right", "order"),
    [
        ([0, 2, 4], [1, 3, 5], "interleaved"),
        ([0, 3, 4], [1, 2, 5], "partly interleaved"),
        ([0, 1, 2], [3, 4, 5], "one after the other"),
        ([0], [1], "one after the other"),
    ],
)
def test_how_runs_follow_each_other(left: list[int], right: list[int], order: str) -> None:
    sides = [[make_row(repeat=i, sent_s=float(t)) for i, t in enumerate(times)] for times in (left, right)]
    assert order_of(*sides) == order
    assert order_of(sides[0], [make_row(stamps=None)]) == "unrecorded"


def speculative_row(completion: int, rounds: int, accepted: int, decode_s: float, window: int, **more: Any) -> Any:
    return make_row(
        completion=completion, decode_s=decode_s,
        speculation=RowSpeculation(
            backend="mtp", draft_window=window, rounds=rounds, drafted_tokens=rounds * window,
            accepted_tokens=accepted, **more,
        ),
    )  # fmt: skip


def test_a_decode_difference_splits_exactly() -> None:
    """Fast rounds with few tokens against slow rounds with many, one answer of which ends within a round."""
    left = record("l", [speculative_row(101, 50, 50, 1.0, 2)], {"draft.backend": "mtp", "draft.tokens": 2})
    right = record("r", [speculative_row(101, 25, 78, 1.25, 7)], {"draft.backend": "mtp", "draft.tokens": 7})
    split = split_decode(*(rounds_of(run.run, run.measured) for run in (left, right)))
    assert split is not None
    assert (split.left.tokens_per_round, split.left.round_s, split.left.used) == (2.0, 0.02, 1.0)
    assert (split.right.tokens_per_round, split.right.round_s) == (103 / 25, 0.05)
    assert split.right.used == pytest.approx(100 / 103)
    total = split.log_tokens + split.log_round_time + split.log_used
    assert total == pytest.approx(split.log_rate, abs=1e-14)
    assert math.exp(split.log_rate) == pytest.approx(80 / 100)
    # With that acceptance the right run would yield the left one's 100 tok/s: (1 + 7 r) * used / 0.05 = 100.
    assert split.break_even is not None
    assert (1 + 7 * split.break_even) * split.right.used / split.right.round_s == pytest.approx(100.0)


def test_a_round_splits_into_its_recorded_parts() -> None:
    def row(scale: float) -> RequestRow:
        seconds = RoundSeconds(draft=0.1 * scale, verify=0.5, sample=0.05, rollback=0.05)
        return speculative_row(101, 50, 50, 0.9 + 0.1 * scale, 2, seconds=seconds)

    sides = [rounds_of(record("x", []).run, [row(scale)]) for scale in (1.0, 3.0)]
    split = split_decode(*sides)
    assert split is not None
    assert split.parts == pytest.approx(
        {"draft": 0.2 / 50, "verify": 0.0, "sample": 0.0, "rollback": 0.0, "other": 0.0}, abs=1e-15
    )
    assert sum(split.parts.values()) == pytest.approx(split.right.round_s - split.left.round_s, abs=1e-15)
    unrecorded = rounds_of(record("x", []).run, [speculative_row(101, 50, 50, 1.0, 2)])
    half = split_decode(sides[0], unrecorded)
    assert half is not None
    assert half.parts == {}


def test_without_drafts_rounds_are_steps() -> None:
    rounds = rounds_of(record("x", []).run, [make_row()])
    assert rounds is not None
    assert (rounds.tokens_per_round, rounds.round_s, rounds.acceptance) == (1.0, 1 / 32, None)


def test_no_split_where_nothing_is_known_of_rounds() -> None:
    row = make_row(speculation=None)
    assert rounds_of(record("x", []).run, [row]) is None
    known = record("x", [], {"draft.backend": "mtp", "draft.tokens": 3}, reported={"acceptance": 0.5}).run
    rounds = rounds_of(known, [row])
    assert rounds is not None
    assert (rounds.tokens_per_round, rounds.basis) == (2.5, "from acceptance and window")
    varied = record("x", [], {"draft.backend": "mtp", "draft.tokens": "auto"}, reported={"acceptance": 0.5}).run
    assert rounds_of(varied, [row]) is None


def test_windows_that_were_cut_count_as_they_were() -> None:
    """20 rounds of which 10 drafted 4 tokens and 10 drafted 2; none was accepted."""
    row = make_row(
        completion=21, speculation=RowSpeculation(
            backend="ngram", draft_window=4, rounds=20, drafted_tokens=60, accepted_tokens=0
        ),
    )  # fmt: skip
    rounds = rounds_of(record("x", []).run, [row])
    assert rounds is not None
    assert (rounds.drafts, rounds.acceptance, rounds.tokens_per_round) == (3.0, 0.0, 1.0)


def test_request_time_splits_without_a_rest() -> None:
    left = [make_row(completion=11, decode_s=1.0, prefill_s=0.5), make_row(completion=21, decode_s=3.0)]
    right = [make_row(completion=31, decode_s=2.0, prefill_s=0.7), make_row(completion=21, decode_s=1.5)]
    split = split_time(left, right)
    assert split is not None
    assert split.parts["prefill"] == pytest.approx(0.1)
    assert split.parts["output length"] > 0 > split.parts["decode speed"]
    decode = split.parts["output length"] + split.parts["decode speed"]
    assert decode == pytest.approx(3.5 / 2 - 4.0 / 2)
    assert sum(split.parts.values()) == pytest.approx(split.seconds, abs=1e-15)
    assert split.parts["other"] == pytest.approx(0.0, abs=1e-12)
    assert split_time([make_row(seconds=RowSeconds())], right[:1]) is None


def test_request_time_of_equal_decode_seconds() -> None:
    split = split_time([make_row(completion=11)], [make_row(completion=21)])
    assert split is not None
    assert split.seconds == 0.0
    assert split.parts["output length"] == pytest.approx(math.log(2))
    assert split.parts["decode speed"] == pytest.approx(-math.log(2))


def audit(rows: Sequence[RequestRow], **members: Any) -> dict[str, Finding]:
    found = compare([record("l", rows, **members), record("r", [make_row()])])
    return {finding.kind: finding for finding in found.findings["l"]}


def test_limits_and_empty_answers_are_counted() -> None:
    rows = [
        make_row("a", 0, finish="output_limit", is_empty=True),
        make_row("a", 1, finish="context_capacity"),
        make_row("b", 0),
    ]
    found = audit(rows)
    assert found["truncated"].values == {"num": 2, "all": 3}
    assert found["empty"].values == {"num": 1, "all": 3}
    assert "empty" not in audit([make_row()])
    assert "emptiness unrecorded" in audit([make_row(is_empty=None)])
    reported = audit([make_row(is_empty=None)], reported={"empty_answers": 1})
    assert reported["empty"].values == {"num": 1, "all": 1}


def test_short_answers_are_no_decode_rate() -> None:
    """C174."""
    left, right = record("l", [make_row(completion=8)]), record("r", [make_row()])
    found = compare([left, right])
    assert found.findings["l"][0].kind == "short"
    assert found.pairs[0].decode.verdict == "invalid"
    assert kinds(found.pairs[0].findings) == ["order", "lengths", "other output"]


def test_prefix_hits_of_one_run_make_prefill_and_ttft_invalid() -> None:
    """C171."""
    hit = make_row(usage=RowUsage(prompt_tokens=16, cached_tokens=8, computed_tokens=8, completion_tokens=33))
    found = compare([record("l", [make_row()]), record("r", [hit])])
    verdicts = {measure.quantity.name: measure.verdict for measure in found.pairs[0].measures}
    assert verdicts["prefill_rate"] == verdicts["ttft"] == "invalid"
    assert verdicts["decode_rate"] == "no difference shown"
    assert found.findings["r"][1].kind == "prefix hits"
    assert found.findings["r"][1].values == {"num": 1, "all": 1, "share": 0.5}


def test_identical_and_other_answers_are_told_apart() -> None:
    def found(left: str | None, right: str | None) -> list[str]:
        rows = [make_row(ids_digest=digest) for digest in (left, right)]
        (pair,) = compare([record("l", [rows[0]]), record("r", [rows[1]])]).pairs
        return kinds(pair.findings)

    assert "same output" in found("x", "x")
    assert "other output" in found("x", "y")
    assert "output unrecorded" in found("x", None)


def test_loads_are_cold_warm_or_unknown(tmp_path: Path) -> None:
    """C180."""
    cold, half, warm = (Circumstances(model_bytes=100, model_resident_bytes=n) for n in (0, 50, 100))
    assert [load_state(c) for c in (cold, half, warm, Circumstances(), None)] == [
        "cold", "partly cached", "warm", "unrecorded", "unrecorded"
    ]  # fmt: skip
    records = []
    for name, before in (("l", cold), ("r", warm)):
        with RunWriter(tmp_path / name, make_run(name, PROMPTS), PROMPTS) as writer:
            writer.loaded(2.5, before)
            writer.append(make_row())
        records.append(read_run(tmp_path / name))
    assert loads_of(records[0]) == [(2.5, "cold")]
    (pair,) = compare(records).pairs
    (loads,) = (finding for finding in pair.findings if finding.kind == "loads")
    assert loads.values == {"states": ["cold", "warm"]}


def test_a_busy_machine_and_another_boot_are_said() -> None:
    busy = record("l", [make_row()], circumstances=Circumstances(load_average=[3.0, 1.0, 1.0], boot="x"))
    found = compare([busy, record("r", [make_row()])])
    assert "busy" in kinds(found.findings["l"])
    assert "busy" not in kinds(found.findings["r"])
    assert "boots" in kinds(found.pairs[0].findings)


def test_loops_at_the_end_of_answers_are_found(tmp_path: Path) -> None:
    row, _ = make_sample("a", 0, range(500, 620))
    looping = Response(output_ids=[*range(60), *([7, 8, 9] * 20)])
    row = msgspec.structs.replace(row, ids_digest=None)
    left = read_run(write_run(tmp_path / "l", make_run("l", PROMPTS), PROMPTS, [(row, looping)]))
    found = compare([left, record("r", [make_row()])])
    assert "loops" in kinds(found.findings["l"])


@pytest.mark.parametrize(
    ("response", "period"),
    [
        (Response(output_ids=[*range(100), *([5] * 60), 2]), 1),
        (Response(output_ids=[*range(100), *([5, 6, 7, 8, 9] * 20)]), 5),
        (Response(output_ids=[*range(100), *([5] * 40)]), None),
        (Response(output_ids=list(range(300))), None),
        (Response(output_ids=[]), None),
        (Response(text="so it goes. " * 40), 12),
        (Response(text="a row | " * 3 + "and then something else entirely"), None),
    ],
)
def test_periods_of_loops(response: Response, period: int | None) -> None:
    assert find_loop(response) == period
