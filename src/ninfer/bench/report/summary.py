"""The summary file: one line per campaign that was compared, and a page that shows them all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ninfer.bench.compare.comparison import Comparison
from ninfer.bench.records.reader import decode
from ninfer.bench.report.conclusion import conclusions
from ninfer.bench.report.document import Block, Document, Heading, Paragraph, Table
from ninfer.bench.report.markdown import to_markdown
from ninfer.bench.report.numbers import fixed, signed
from ninfer.bench.report.words import Language, Words
from ninfer.metrics.line_file import LineFile, whole_lines


class PairLine(msgspec.Struct, frozen=True):
    """One compared pair: decode rates, their change, and the verdict."""

    left: str
    right: str
    left_rate: float | None
    right_rate: float | None
    change: float | None
    verdict: str
    is_single: bool


class Campaign(msgspec.Struct, frozen=True):
    """One line of the file. runs: name and digest of each; unix_ns: when the last of them was begun."""

    name: str
    unix_ns: int
    runs: list[tuple[str, str]]
    pairs: list[PairLine]
    conclusions: dict[Language, list[str]]


def add_campaign(path: Path, comparison: Comparison, name: str, language: Language) -> bool:
    """Append the comparison to `path` (JSON lines) and rewrite the page beside it: the same name, ending in .md.

    A comparison of the same records under the same name is there once; False when it was there. RecordError when the
    file holds something else, OSError when it cannot be written.
    """
    campaign = _campaign(comparison, name)
    campaigns = read_campaigns(path) if path.exists() else []
    is_new = campaign not in campaigns
    if is_new:
        file = LineFile(path)
        try:
            file.append(msgspec.json.encode(campaign))
            file.sync()
        finally:
            file.close()
        campaigns.append(campaign)
    path.with_suffix(".md").write_text(to_markdown(summary_document(campaigns, language)), encoding="utf-8")
    return is_new


def read_campaigns(path: Path) -> list[Campaign]:
    """All lines of a summary file; RecordError for one that is none."""
    return [decode(Campaign, line, f"{path}, line {i}") for i, line in enumerate(whole_lines(path), 1)]


def summary_document(campaigns: Sequence[Campaign], language: Language) -> Document:
    """All campaigns, the latest first; figures of different campaigns are not compared."""
    words = Words(language)
    blocks: list[Block] = [Paragraph(words("summary note"))]
    header = tuple(words(key) for key in ("pair", "decode_rate", "change", "verdict"))
    for campaign in sorted(campaigns, key=lambda campaign: campaign.unix_ns, reverse=True):
        blocks.append(Heading(2, campaign.name))
        blocks += [Paragraph(sentence) for sentence in campaign.conclusions[language]]
        rows = tuple(
            (
                f"{pair.left} / {pair.right}",
                f"{fixed(pair.left_rate, 2)} → {fixed(pair.right_rate, 2)}",
                signed(pair.change),
                words("single sample" if pair.is_single and pair.verdict != "invalid" else pair.verdict),
            )
            for pair in campaign.pairs
        )
        if rows:
            blocks.append(Table(header, rows))
        runs = [f"{name} `{digest[:16]}`" for name, digest in campaign.runs]
        blocks.append(Paragraph(words("sources", runs=words.list(runs))))
    return Document(words("summary title"), language, tuple(blocks))


def _campaign(comparison: Comparison, name: str) -> Campaign:
    languages: tuple[Language, ...] = ("en", "zh")
    return Campaign(
        name,
        max(run.run.created_unix_ns for run in comparison.runs),
        [(run.name, run.run.digest) for run in comparison.runs],
        [
            PairLine(
                pair.left.name,
                pair.right.name,
                pair.decode.left,
                pair.decode.right,
                pair.decode.change,
                pair.decode.verdict,
                pair.decode.effect is not None and pair.decode.effect.is_single,
            )
            for pair in comparison.pairs
        ],
        {language: conclusions(comparison, Words(language)) for language in languages},
    )
