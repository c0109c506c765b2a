"""The pairs that may be compared: verdicts, where differences come from, what was seen besides."""

from __future__ import annotations

from collections.abc import Iterator

from ninfer.bench.compare.comparison import Comparison, Measure, PairComparison
from ninfer.bench.compare.split import DecodeSplit
from ninfer.bench.report import plots
from ninfer.bench.report.conclusion import one_difference
from ninfer.bench.report.document import Block, Bullets, Heading, Paragraph, Plot, Table
from ninfer.bench.report.findings import finding_lines
from ninfer.bench.report.numbers import NOTHING, fixed, percent, quantity_digits, signed, signed_number
from ninfer.bench.report.words import Words


def pairs_section(comparison: Comparison, words: Words) -> Iterator[Block]:
    yield Heading(2, words("section pairs"))
    if not comparison.pairs:
        yield Paragraph(words("no pairs note"))
    for pair in comparison.pairs:
        yield from _pair(pair, words)


def _pair(pair: PairComparison, words: Words) -> Iterator[Block]:
    names = {"left": pair.left.name, "right": pair.right.name}
    yield Heading(3, words(f"pair {pair.differences.kind}", **names))
    yield Paragraph(" ".join(_basis(pair, words)))
    header = tuple(words(key) for key in ("change", "interval", "smallest", "verdict"))
    measures = [(words(measure.quantity.name), measure) for measure in pair.measures]
    yield Table(
        (words("quantity"), pair.left.name, pair.right.name, *header),
        tuple((name, *_measure_cells(measure, words)) for name, measure in measures),
    )
    with_splits = tuple(words(key) for key in ("tokens_per_round", "round_time"))
    yield Table(
        (words("scenario"), pair.left.name, pair.right.name, *header, *with_splits),
        tuple((s.name, *_measure_cells(s.decode, words), *_split_cells(s.split)) for s in pair.scenarios),
    )
    bars = [
        plots.Bar(
            name,
            measure.change,
            None if measure.effect.low is None else measure.effect.low - 1,
            None if measure.effect.high is None else measure.effect.high - 1,
        )
        for name, measure in (*measures, *((s.name, s.decode) for s in pair.scenarios))
        if measure.change is not None and measure.effect is not None
    ]
    if bars:
        title = words("plot changes", **names)
        yield Plot(plots.interval_plot(bars, title, words("plot change axis")), title)
    yield from _splits(pair, words)
    if pair.findings:
        yield Bullets(tuple(finding_lines(pair.findings, words)))


def _basis(pair: PairComparison, words: Words) -> Iterator[str]:
    """What differs, what follows from it, and what rests on somebody's word."""
    differences = pair.differences
    if differences.own:
        yield words("one difference", difference=one_difference(differences.own[0], words))
    else:
        yield words("no difference")
    if differences.consequences:
        facts = [one_difference(difference, words) for difference in differences.consequences]
        yield words("consequences", facts=words.list(facts))
    if differences.vouched:
        first = differences.vouched[0]
        facts = [f"`{vouched.fact}`" for vouched in differences.vouched]
        yield words("vouched", num=len(facts), by=first.by, label=first.label, facts=words.list(facts))


def _measure_cells(measure: Measure, words: Words) -> tuple[str, ...]:
    digits, effect = quantity_digits(measure.quantity), measure.effect
    interval = smallest = NOTHING
    verdict = words(measure.verdict)
    if effect is not None and effect.is_single and measure.verdict != "invalid":
        verdict = words("single sample")
    if effect is not None and effect.low is not None and effect.high is not None:
        interval = f"{signed(effect.low - 1)} … {signed(effect.high - 1)}"
        smallest = percent(effect.smallest)
    return (
        fixed(measure.left, digits),
        fixed(measure.right, digits),
        signed(measure.change),
        interval,
        smallest,
        verdict,
    )


def _split_cells(split: DecodeSplit | None) -> tuple[str, str]:
    if split is None:
        return NOTHING, NOTHING
    a, b = split.left, split.right
    return (
        f"{fixed(a.tokens_per_round, 2)} → {fixed(b.tokens_per_round, 2)}",
        f"{fixed(1000 * a.round_s, 1)} → {fixed(1000 * b.round_s, 1)}",
    )


def _splits(pair: PairComparison, words: Words) -> Iterator[Block]:
    """Where decode and request time differences come from."""
    split = pair.split
    if split is not None:
        sentences = [
            words(
                "split",
                rate=fixed(split.log_rate, 3),
                tokens=fixed(split.log_tokens, 3),
                time=fixed(split.log_round_time, 3),
                used=fixed(split.log_used, 3),
            )
        ]
        if "from acceptance and window" in (split.left.basis, split.right.basis):
            sentences.append(words("split basis"))
        if split.left.drafts != split.right.drafts:
            sentences.append(words("acceptance warning"))
        if split.parts:
            parts = [f"{words(name)} {signed_number(1000 * s)}" for name, s in split.parts.items()]
            sentences.append(words("round parts", parts=words.list(parts)))
        yield Paragraph(" ".join(sentences))
    if pair.time is not None:
        yield Paragraph(words("time", seconds=signed_number(pair.time.seconds)))
        rows = [(words(name), signed_number(s)) for name, s in pair.time.parts.items()]
        rows.append((words("sum"), signed_number(pair.time.seconds)))
        yield Table((words("part"), words("seconds")), tuple(rows))
