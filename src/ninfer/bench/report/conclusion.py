"""One sentence per pair and one for what stands apart, made from verdicts."""

from __future__ import annotations

from ninfer.bench.compare.comparison import Comparison, PairComparison
from ninfer.bench.compare.differences import Difference, Differences
from ninfer.bench.compare.split import DecodeSplit
from ninfer.bench.report.findings import seen_text
from ninfer.bench.report.numbers import fact_text, fixed, percent, signed
from ninfer.bench.report.words import Words


def conclusions(comparison: Comparison, words: Words) -> list[str]:
    """What may be concluded, the pairs in order, then the runs that no other may be compared with."""
    sentences = [pair_conclusion(comparison, pair, words) for pair in comparison.pairs]
    compared = {run.name for pair in comparison.pairs for run in (pair.left, pair.right)}
    alone = [run.name for run in comparison.runs if run.name not in compared]
    if not comparison.pairs:
        sentences.append(words("conclude nothing comparable"))
    elif alone:
        sentences.append(words("conclude apart", names=words.list(alone)))
    return [sentence + words("full stop") for sentence in sentences]


def pair_conclusion(comparison: Comparison, pair: PairComparison, words: Words) -> str:
    """Verdict on decode, and where the difference comes from."""
    decode, effect = pair.decode, pair.decode.effect
    names = {"left": pair.left.name, "right": pair.right.name, "difference": difference_text(pair.differences, words)}
    if effect is None or decode.verdict == "invalid":
        return words("conclude invalid", **names, why=_why_invalid(comparison, pair, words))
    figures = {
        "change": signed(decode.change),
        "a": fixed(decode.left, 2),
        "b": fixed(decode.right, 2),
        "rounds": effect.num_rounds,
        "low": signed(None if effect.low is None else effect.low - 1),
        "high": signed(None if effect.high is None else effect.high - 1),
        "smallest": percent(effect.smallest),
    }
    key = "conclude single" if effect.is_single else f"conclude {decode.verdict}"
    clauses = [words(key, **names, **figures)]
    if pair.split is not None and pair.differences.own:
        has_direction = effect.is_single or decode.verdict != "no difference shown"
        clauses += cause(pair.split, words, has_direction=has_direction)
    return words("clause").join(clauses)


def cause(split: DecodeSplit, words: Words, *, has_direction: bool) -> list[str]:
    """Tokens per round and round time of both sides, which of them decides (where something is decided), and the
    break-even acceptance."""
    a, b = split.left, split.right
    clauses = [
        words(
            "because rounds",
            e1=fixed(a.tokens_per_round, 2),
            e2=fixed(b.tokens_per_round, 2),
            e_change=signed(b.tokens_per_round / a.tokens_per_round - 1, 1),
            t1=fixed(1000 * a.round_s, 1),
            t2=fixed(1000 * b.round_s, 1),
            t_change=signed(b.round_s / a.round_s - 1, 1),
        )
    ]
    if has_direction and split.log_tokens * split.log_round_time > 0:
        clauses.append(words("cause both"))
    elif has_direction and split.log_rate != 0:
        is_round_time = split.log_round_time * split.log_rate > 0
        clauses.append(words("cause round time" if is_round_time else "cause tokens"))
    if split.break_even is not None and b.acceptance is not None:
        even, seen = percent(split.break_even), percent(b.acceptance)
        clauses.append(words("break even", window=f"{b.drafts:.3g}", even=even, acceptance=seen))
    return clauses


def difference_text(differences: Differences, words: Words) -> str:
    """The one thing that differs, with its values; "nothing" for repeatability."""
    if not differences.own:
        return words("nothing")
    return words.list([one_difference(difference, words) for difference in differences.own])


def one_difference(difference: Difference, words: Words) -> str:
    left, right = (fact_text(value, words("unrecorded")) for value in (difference.left, difference.right))
    return f"`{difference.fact}` ({left} → {right})"


def _why_invalid(comparison: Comparison, pair: PairComparison, words: Words) -> str:
    of_runs = [finding for run in (pair.left, pair.right) for finding in comparison.findings[run.name]]
    reasons = [
        (f"{finding.run}{words('colon')}" if finding.run else "") + seen_text(finding, words)
        for finding in (*of_runs, *pair.findings)
        if {"all", "decode_rate"} & set(finding.affects)
    ]
    return words("clause").join(reasons or [words("no values")])
