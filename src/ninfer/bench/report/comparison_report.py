"""A comparison as a document: the tables a reader of benchmarks looks for, and a sentence for each conclusion."""

from __future__ import annotations

from collections.abc import Iterator

from ninfer.bench.compare.audit import num_empty, num_truncated
from ninfer.bench.compare.comparison import Comparison
from ninfer.bench.compare.quantities import ACCEPTANCE, DECODE_RATE, ROUND_TIME, TOKENS_PER_ROUND
from ninfer.bench.report.conclusion import conclusions, one_difference
from ninfer.bench.report.document import Block, Bullets, Document, Heading, Paragraph, Table
from ninfer.bench.report.findings import finding_lines
from ninfer.bench.report.numbers import NOTHING, fact_text, fixed, percent
from ninfer.bench.report.overview import latency_section, overview_section, runs_section, scenarios_section
from ninfer.bench.report.pair_sections import pairs_section
from ninfer.bench.report.words import Language, Words

LISTED_FACTS = 12
"""Unrecorded facts that a reason names before it says how many there are; the appendix has all that was recorded."""


def comparison_document(comparison: Comparison, language: Language = "en") -> Document:
    """The whole report on a comparison."""
    words = Words(language)
    blocks: list[Block] = [Paragraph(sentence, is_lead=True) for sentence in conclusions(comparison, words)]
    blocks.append(Paragraph(_totals(comparison, words)))
    sections = (
        runs_section,
        overview_section,
        latency_section,
        scenarios_section,
        pairs_section,
        _apart,
        _limits,
        _appendix,
    )
    for part in sections:
        blocks += part(comparison, words)
    return Document(words("title", num=len(comparison.runs)), language, tuple(blocks))


def _totals(comparison: Comparison, words: Words) -> str:
    rows = [row for run in comparison.runs for row in run.measured]
    counts = [num_empty(run) for run in comparison.runs]
    num = sum(count or 0 for count in counts)
    empty = words("totals empty unrecorded") if None in counts else words("totals empty", num=num, all=len(rows))
    return words(
        "totals",
        all=len(rows),
        truncated=sum(num_truncated(run) for run in comparison.runs),
        empty=empty,
        failed=sum(row.error is not None for row in rows),
    )


def _apart(comparison: Comparison, words: Words) -> Iterator[Block]:
    yield Heading(2, words("section apart"))
    if not comparison.apart:
        yield Paragraph(words("no pairs note"))
        return
    yield Paragraph(words("apart note"))
    rows = []
    for two in comparison.apart:
        reasons = []
        own = [one_difference(difference, words) for difference in two.differences.own]
        if len(own) == 1:
            reasons.append(words("reason differs one", facts=own[0]))
        elif own:
            reasons.append(words("reason differs", num=len(own), facts=words.list(own)))
        if two.differences.labels is not None:
            left, right = two.differences.labels
            reasons.append(words("reason labels", left=left, right=right))
        if missing := [f"`{difference.fact}`" for difference in two.differences.unrecorded]:
            shown = [*missing[:LISTED_FACTS], *(["…"] if len(missing) > LISTED_FACTS else [])]
            reasons.append(words("reason unrecorded", num=len(missing), facts=words.list(shown)))
        rows.append((f"{two.left.name} / {two.right.name}", words("clause").join(reasons)))
    yield Table((words("pair"), words("reason")), tuple(rows), is_text=True)


def _limits(comparison: Comparison, words: Words) -> Iterator[Block]:
    yield Heading(2, words("section limits"))
    num = sum(
        measure.effect is not None and not measure.effect.is_single
        for pair in comparison.pairs
        for measure in (*pair.measures, *(scenario.decode for scenario in pair.scenarios))
    )
    items = [_totals(comparison, words)]
    if num:
        items.append(words("verdict count", num=num))
    items += finding_lines([f for run in comparison.runs for f in comparison.findings[run.name]], words)
    items += [f"{run.name}: {note}" for run in comparison.runs for note in run.run.notes]
    yield Bullets(tuple(items))


def _appendix(comparison: Comparison, words: Words) -> Iterator[Block]:
    yield Heading(2, words("section appendix"))
    yield Paragraph(
        words("sources", runs=words.list([f"{run.name} `{run.run.digest[:16]}`" for run in comparison.runs]))
    )
    keys = ("scenario", "repeat", "prompt tokens", "completion tokens", "ttft", "prefill s", "decode s", "total s")
    of_rounds = ("decode_rate", "acceptance", "tokens_per_round", "round_time")
    for run in comparison.runs:
        yield Heading(3, run.name)
        rows = [
            (
                run.prompts[row.prompt].scenario if run.prompts[row.prompt].scenario == row.prompt else row.prompt,
                str(row.repeat),
                fixed(row.usage.prompt_tokens, 0),
                fixed(row.usage.completion_tokens, 0),
                *(fixed(getattr(row.seconds, name), 3) for name in ("ttft", "prefill", "decode", "total")),
                fixed(DECODE_RATE.of([row]), 2),
                percent(ACCEPTANCE.of([row])),
                fixed(TOKENS_PER_ROUND.of([row]), 2),
                fixed(None if (round_s := ROUND_TIME.of([row])) is None else 1000 * round_s, 1),
                row.finish or (row.error or {}).get("kind", NOTHING),
            )
            for row in run.measured
        ]
        yield Table(tuple(map(words, (*keys, *of_rounds, "finish"))), tuple(rows))
        facts = [
            (f"`{name}`", fact_text(fact.value, ""), words(fact.origin), fact.reason or "")
            for name, fact in run.run.facts.items()
        ]
        header = (words("fact"), words("value"), words("origin"), "")
        yield Table(header, tuple(facts), is_text=True)
