"""A field report, rebuilt from its own figures: what it found by hand, and what it got wrong."""

from __future__ import annotations

import pytest

from make.field_report import write_field_report
from ninfer.bench.compare.audit import loads_of, num_empty, num_truncated
from ninfer.bench.compare.comparison import Comparison, compare
from ninfer.bench.compare.quantities import DECODE_RATE, END_TO_END_RATE, PREFILL_RATE
from ninfer.bench.records.verify import verify_run
from ninfer.bench.report.conclusion import conclusions
from ninfer.bench.report.numbers import MINUS
from ninfer.bench.report.words import Words


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    records = write_field_report(tmp_path_factory.mktemp("field"))
    assert [problem for record in records for problem in verify_run(record.directory)] == []
    return compare(records)


def test_only_c2_and_d_may_be_compared(comparison: Comparison) -> None:
    (pair,) = comparison.pairs
    assert (pair.left.name, pair.right.name, pair.differences.kind) == ("C2", "D", "controlled")
    assert [d.fact for d in pair.differences.own] == ["draft.backend"]
    assert [(d.fact, d.left, d.right) for d in pair.differences.consequences] == [("draft.tokens", 3, 7)]
    assert len(comparison.apart) == 9


def test_c1_is_apart_although_its_figures_are_those_of_c2(comparison: Comparison) -> None:
    (two,) = (t for t in comparison.apart if (t.left.name, t.right.name) == ("C1", "C2"))
    assert two.differences.own == ()
    assert two.differences.labels == ("X", "Y")


def test_b_differs_in_head_container_and_weights(comparison: Comparison) -> None:
    (two,) = (t for t in comparison.apart if (t.left.name, t.right.name) == ("B", "C2"))
    assert {d.fact for d in two.differences.own} == {"draft.head", "artifact.container", "artifact.weights"}


def test_figures_are_those_of_the_report(comparison: Comparison) -> None:
    reported = {  # decode, end to end, prefill; the latter from seconds that are rounded to 10 ms
        "A": (112.77, 87.84, 949.5), "B": (107.48, 84.57, 948.2), "C1": (112.43, 86.35, 947.5),
        "C2": (112.33, 86.28, 947.8), "D": (108.71, 83.41, 936.1),
    }  # fmt: skip
    for run in comparison.runs:
        figures = [quantity.of(run.measured) for quantity in (DECODE_RATE, END_TO_END_RATE, PREFILL_RATE)]
        assert figures == pytest.approx(reported[run.name], rel=4e-4)


def test_the_round_time_is_the_cause(comparison: Comparison) -> None:
    """The report blames the lower acceptance; its own figures say that rounds yield more and take longer still."""
    (pair,) = comparison.pairs
    split = pair.split
    assert split is not None
    assert pair.decode.change == pytest.approx(-0.0322, abs=1e-4)
    assert [s.tokens_per_round for s in (split.left, split.right)] == pytest.approx([3.11, 4.07], abs=0.005)
    assert [1000 * s.round_s for s in (split.left, split.right)] == pytest.approx([27.7, 37.5], abs=0.05)
    assert split.break_even == pytest.approx(0.458, abs=5e-4)
    assert split.log_tokens > 0 > split.log_round_time
    assert split.log_tokens + split.log_round_time + split.log_used == pytest.approx(split.log_rate, abs=1e-14)


def test_scenarios_change_as_in_the_report(comparison: Comparison) -> None:
    changes = [scenario.decode.change for scenario in comparison.pairs[0].scenarios]
    assert changes == pytest.approx([0.0474, -0.0007, -0.1391, -0.0443, -0.0489], abs=3e-4)


def test_every_verdict_is_that_of_single_samples(comparison: Comparison) -> None:
    for measure in comparison.pairs[0].measures:
        assert measure.effect is not None
        assert measure.effect.is_single
        assert measure.verdict == "no difference shown"


def test_cut_and_empty_answers_are_counted_over_all_variants(comparison: Comparison) -> None:
    """The report says 13 of 15 and 5, which leaves out two of its five variants."""
    assert sum(num_truncated(run) for run in comparison.runs) == 19
    assert sum(num_empty(run) or 0 for run in comparison.runs) == 8
    assert sum(len(run.measured) for run in comparison.runs) == 25


def test_load_times_are_not_comparable(comparison: Comparison) -> None:
    assert {state for run in comparison.runs for _, state in loads_of(run)} == {"unrecorded"}
    assert "loads" in {finding.kind for finding in comparison.pairs[0].findings}


def test_more_tokens_and_faster_decoding_are_not_mixed_up(comparison: Comparison) -> None:
    """D takes 0.35 s longer per request: slower decoding costs 1.15 s, shorter answers save 0.93 s."""
    time = comparison.pairs[0].time
    assert time is not None
    assert time.seconds == pytest.approx(0.346)
    assert time.parts["decode speed"] == pytest.approx(1.155, abs=1e-3)
    assert time.parts["output length"] == pytest.approx(-0.927, abs=1e-3)


def test_one_sentence_says_it(comparison: Comparison) -> None:
    sentence, apart = conclusions(comparison, Words("en"))
    for part in ("C2 and D", f"{MINUS}3.23 %", "no verdict", "3.11 → 4.07", "27.7 → 37.5 ms", "45.8 %, it was 43.9 %"):
        assert part in sentence
    assert "the round time is the cause" in sentence
    assert apart == "Not comparable with any other run: A, B, C1."
