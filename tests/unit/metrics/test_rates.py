"""Rates on the seed reports' numbers and at the borders where they are not defined."""

from __future__ import annotations

import pytest

from ninfer import metrics
from ninfer.errors import InvariantError
from ninfer.metrics import FinishReason, Phases, SpeculationCounts, Usage


def phases(*, prefill: float = 1.0, decode: float = 1.0, total: float = 3.0) -> Phases:
    return Phases(load=0.0, prepare=0.0, queue=0.0, prefill=prefill, decode=decode, total=total, ttft=prefill)


def usage(*, prompt: int = 10, cached: int = 0, completion: int = 5, computed: int | None = None) -> Usage:
    return Usage(prompt, cached, completion, prompt - cached if computed is None else computed)


def test_decode_rate_of_a_seed_report() -> None:
    rate = metrics.decode_rate(usage(completion=6144), phases(decode=54.75))
    assert rate == pytest.approx(112.20, abs=0.005)


def test_decode_rate_leaves_out_the_first_token() -> None:
    assert metrics.decode_rate(usage(completion=5), phases(decode=2.0)) == 2.0


@pytest.mark.parametrize("completion", [0, 1])
def test_decode_rate_is_undefined_below_two_tokens(completion: int) -> None:
    assert metrics.decode_rate(usage(completion=completion), phases(decode=1.0)) is None


def test_prefill_rate_never_counts_cached_tokens() -> None:
    assert metrics.prefill_rate(usage(prompt=100, cached=64), phases(prefill=0.5)) == 72.0


def test_prefill_rate_is_undefined_without_a_first_token() -> None:
    assert metrics.prefill_rate(usage(completion=0, computed=4), phases()) is None


def test_end_to_end_rate_counts_everything() -> None:
    assert metrics.end_to_end_rate(usage(completion=6), phases(total=4.0)) == 1.5
    assert metrics.end_to_end_rate(usage(completion=0), phases()) is None


@pytest.mark.parametrize("rate", [metrics.prefill_rate, metrics.decode_rate, metrics.end_to_end_rate])
def test_a_rate_over_no_time_is_undefined(rate: object) -> None:
    assert callable(rate)
    assert rate(usage(), phases(prefill=0.0, decode=0.0, total=0.0)) is None


def speculation(per_position: tuple[int, ...], rounds: int) -> SpeculationCounts:
    """Counts of a constant draft window."""
    return SpeculationCounts(
        rounds=rounds,
        drafted=rounds * len(per_position),
        accepted=sum(per_position),
        rounds_with_draft=(rounds,) * len(per_position),
        accepted_per_position=per_position,
    )


@pytest.mark.parametrize(("per_position", "rate"), [((67, 30, 12), 0.363), ((67, 37), 0.52), ((100, 94, 89), 0.943)])
def test_acceptance_of_the_seed_reports(per_position: tuple[int, ...], rate: float) -> None:
    counts = speculation(per_position, 100)
    assert metrics.acceptance(counts) == pytest.approx(rate, abs=6e-4)
    assert metrics.position_acceptance(counts) == tuple(n / 100 for n in per_position)
    assert metrics.tokens_per_round(counts) == 1 + sum(per_position) / 100


def test_decode_rate_splits_into_tokens_per_round_and_round_time() -> None:
    counts = speculation((67, 30, 12), 100)
    time = phases(decode=7.5)
    completion = 1 + counts.rounds + counts.accepted
    rate = metrics.decode_rate(usage(completion=completion), time)
    tokens, seconds = metrics.tokens_per_round(counts), metrics.round_seconds(counts, time)
    assert None not in (rate, tokens, seconds)
    assert rate == pytest.approx(tokens / seconds, rel=1e-15)


def test_rounds_that_did_not_draft_a_position_say_nothing_about_it() -> None:
    counts = SpeculationCounts(
        rounds=10, drafted=12, accepted=6, rounds_with_draft=(8, 4), accepted_per_position=(4, 2)
    )
    assert metrics.position_acceptance(counts) == (0.5, 0.5)
    assert metrics.tokens_per_round(counts) == 1.6


def test_speculation_rates_without_speculation_are_undefined() -> None:
    counts = SpeculationCounts(rounds=0, drafted=0, accepted=0)
    assert metrics.acceptance(counts) is None
    assert metrics.tokens_per_round(counts) is None
    assert metrics.round_seconds(counts, phases()) is None
    assert metrics.position_acceptance(counts) == ()


@pytest.mark.parametrize(
    "counts",
    [
        {"rounds": 10, "drafted": 10, "accepted": 11, "rounds_with_draft": (10,), "accepted_per_position": (11,)},
        {"rounds": 10, "drafted": 20, "accepted": 9, "rounds_with_draft": (10, 10), "accepted_per_position": (4, 5)},
        {"rounds": 10, "drafted": 20, "accepted": 5, "rounds_with_draft": (10,), "accepted_per_position": (5,)},
        {"rounds": 10, "drafted": 10, "accepted": 4, "rounds_with_draft": (10,), "accepted_per_position": (5,)},
        {"rounds": 10, "drafted": 10, "accepted": 5, "rounds_with_draft": (10,), "accepted_per_position": (5, 0)},
        {"rounds": 9, "drafted": 10, "accepted": 5, "rounds_with_draft": (10,), "accepted_per_position": (5,)},
    ],
)
def test_impossible_speculation_counts_are_our_bug(counts: dict[str, object]) -> None:
    with pytest.raises(InvariantError, match="impossible"):
        SpeculationCounts(**counts)  # type: ignore[arg-type]  # the dict mixes field types


@pytest.mark.parametrize("counts", [(-1, 0, 0, 0), (4, 3, 0, 2), (4, 0, -1, 4), (4, 5, 0, 0)])
def test_impossible_usage_is_our_bug(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(InvariantError, match="impossible"):
        Usage(*counts)


def test_peak_is_the_best_defined_rate() -> None:
    assert metrics.peak([None, 3.0, 9.5, None, 4.0]) == 9.5
    assert metrics.peak([None, None]) is None
    assert metrics.peak([]) is None


def test_finish_words() -> None:
    words = [str(reason) for reason in FinishReason]
    assert words == ["stop_token", "stop_string", "output_limit", "context_capacity", "cancelled"]


def test_every_measured_word_is_defined_once() -> None:
    words = [definition.word for definition in metrics.DEFINITIONS]
    assert len(set(words)) == len(words) == 14
