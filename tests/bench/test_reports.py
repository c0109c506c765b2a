"""Reports are rebuilt from records: goldens in both languages, every form, nothing loaded from elsewhere."""

from __future__ import annotations

import ast
import json
import re
import string
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import pytest

from make.field_report import write_field_report
from make.run_records import make_prompts, make_row, make_run, write_run
from ninfer.bench.compare.comparison import Comparison, compare
from ninfer.bench.records.reader import read_run
from ninfer.bench.records.schema import Stamps
from ninfer.bench.report.comparison_report import comparison_document
from ninfer.bench.report.document import Bullets, Document, Heading, Paragraph, Plot, Table
from ninfer.bench.report.html import to_html
from ninfer.bench.report.json_report import comparison_json
from ninfer.bench.report.markdown import to_markdown
from ninfer.bench.report.numbers import MINUS, NOTHING, fact_text, fixed, percent, signed, signed_number
from ninfer.bench.report.plots import Bar, RoundPoint, Series, dot_plot, interval_plot, rounds_plot
from ninfer.bench.report.summary import read_campaigns
from ninfer.bench.report.words import WORDS, Language
from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.main import run
from ninfer.errors import RecordError

GOLDENS = Path(__file__).parent / "goldens"
SOURCE = Path(__file__).resolve().parents[2] / "src" / "ninfer" / "bench"
PROMPTS = make_prompts("a", "b")


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compare(write_field_report(tmp_path_factory.mktemp("field")))


def write_campaign(directory: Path) -> Path:
    """Two interleaved runs of six repeats that differ in the KV format; the second decodes a tenth slower."""
    for side, (name, kv) in enumerate((("int8", "int8"), ("bf16", "bf16"))):
        rows = [
            make_row(
                prompt, repeat, decode_s=(1 + 0.1 * side) * (1 + 0.01 * ((3 * repeat + 2 * side) % 4)),
                sent_s=20.0 * repeat + 5 * side + place, finish="output_limit", ids_digest=prompt,
            )
            for repeat in range(6)
            for place, prompt in enumerate(("a", "b"))
        ]  # fmt: skip
        write_run(directory / name, make_run(name, PROMPTS, {"settings.kv_dtype": kv}), PROMPTS, rows)
    return directory


@pytest.mark.parametrize("language", get_args(Language))
def test_the_field_report_is_rebuilt_as_it_was(field: Comparison, language: Language) -> None:
    golden = GOLDENS / f"field_report.{language}.md"
    assert to_markdown(comparison_document(field, language)) == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("language", get_args(Language))
def test_a_campaign_is_rebuilt_as_it_was(tmp_path: Path, language: Language) -> None:
    write_campaign(tmp_path)
    found = compare([read_run(tmp_path / name) for name in ("int8", "bf16")])
    golden = GOLDENS / f"campaign.{language}.md"
    assert to_markdown(comparison_document(found, language)) == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("language", get_args(Language))
def test_a_page_needs_nothing_else(field: Comparison, language: Language) -> None:
    page = to_html(comparison_document(field, language))
    assert f'<html lang="{language}">' in page
    assert re.findall(r"<(?:script|link|img|iframe)\b|@import|url\(", page) == []
    assert set(re.findall(r"https?://[^\s\"]+", page)) == {"http://www.w3.org/2000/svg"}
    assert page.count("<svg") == 3
    ElementTree.fromstring(page.partition("\n")[2].replace('<meta charset="utf-8">', "").replace(
        '<meta name="viewport" content="width=device-width, initial-scale=1">', ""
    ))  # fmt: skip


def test_what_a_page_says_stands_in_markdown_too(field: Comparison) -> None:
    document = comparison_document(field)
    page, text = to_html(document), to_markdown(document)
    for figure in ("112.33", "108.71", "45.8 %", f"{MINUS}3.23 %", "19 of 25", "8 of 25"):
        assert figure in page
        assert figure in text


def test_text_of_records_cannot_break_a_page() -> None:
    nasty = "<b>|`x`\n&</b>"
    document = Document(
        nasty, "en", (Heading(2, nasty), Paragraph(nasty), Bullets((nasty,)), Table((nasty,), ((nasty,),)))
    )
    page = to_html(document)
    assert "<b>" not in page
    assert page.count("&lt;b&gt;|<code>x</code>") == 5
    (row,) = re.findall(r"^\| <b>.*\|$", to_markdown(document).splitlines()[-1])
    assert "\\|" in row


def test_the_json_has_every_figure_unrounded(field: Comparison) -> None:
    data = json.loads(json.dumps(comparison_json(field), allow_nan=False))
    (pair,) = data["pairs"]
    assert pair["measures"][0]["left"] == 19705 / sum((53.79, 30.66, 31.03, 36.13, 23.81))
    assert pair["split"]["break_even_acceptance"] == pytest.approx(0.4584, abs=1e-4)
    assert [data["runs"][i]["truncated"] for i in range(5)] == [5, 5, 3, 3, 3]
    (c1c2,) = (two for two in data["apart"] if (two["left"], two["right"]) == ("C1", "C2"))
    assert c1c2["differences"]["labels"] == ["X", "Y"]
    assert c1c2["differences"]["unrecorded"][0]["left"] == {"unrecorded": True}


def test_every_sentence_is_there_in_both_languages_with_the_same_places() -> None:
    def places(text: str) -> set[str]:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name}

    for key, (english, chinese) in WORDS.items():
        assert places(english) == places(chinese), key
        assert english, key


def test_every_finding_has_its_sentence_and_consequence() -> None:
    tree = ast.parse((SOURCE / "compare" / "audit.py").read_text(encoding="utf-8"))
    found = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding"
        and isinstance(node.args[0], ast.Constant)
    }  # fmt: skip
    assert len(found) > 15
    named = {key.partition(" ")[2] for key in WORDS if key.startswith("saw ")}
    assert found == named == {key.partition(" ")[2] for key in WORDS if key.startswith("means ")}


def test_no_sentence_is_left_over() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path.name != "words.py"]
    code = "".join(path.read_text(encoding="utf-8") for path in files) + '"separator"'
    prefixes = ("saw ", "means ", "conclude ", "pair ", "latency ")
    assert [key for key in WORDS if not key.startswith(prefixes) and f'"{key}"' not in code] == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (fixed(1234.567, 1), "1,234.6"),
        (fixed(-0.5, 2), f"{MINUS}0.50"),
        (fixed(None, 2), NOTHING),
        (percent(0.4584), "45.8 %"),
        (signed(0.0474), "+4.74 %"),
        (signed(-0.0323), f"{MINUS}3.23 %"),
        (signed(-0.00001), "0.00 %"),
        (signed(None), NOTHING),
        (signed_number(-0.0001), "0.000"),
        (signed_number(1.1546), "+1.155"),
        (fact_text(None, "?"), "none"),
        (fact_text(True, "?"), "true"),
        (fact_text([1, "a"], "?"), "1, a"),
    ],
)
def test_figures_as_they_are_read(text: str, wanted: str) -> None:
    assert text == wanted


def places_in(svg: str, tag: str, *names: str) -> list[tuple[float, ...]]:
    root = ElementTree.fromstring(svg)
    return [
        tuple(float(node.attrib[name]) for name in names) for node in root.iter(f"{{http://www.w3.org/2000/svg}}{tag}")
    ]


def test_plots_put_values_where_they_belong() -> None:
    svg = interval_plot([Bar("up <&>", 0.02, 0.01, 0.03), Bar("down", 1 / 1.02 - 1)], "t", "x")
    zero = places_in(svg, "line", "x1")[0][0]
    up, down = places_in(svg, "circle", "cx")
    assert up[0] - zero == pytest.approx(zero - down[0], abs=0.2)
    low, high = places_in(svg, "line", "x1", "x2")[1]
    assert zero < low < up[0] < high
    dots = places_in(
        dot_plot(["s"], [Series("a", [10.0]), Series("b", [20.0]), Series("c", [None])], "t", "x"), "circle", "cx"
    )
    left = 170
    assert (dots[1][0] - left) / (dots[0][0] - left) == pytest.approx(2, abs=0.01)
    points = places_in(
        rounds_plot([RoundPoint("a", 2.0, 20.0), RoundPoint("b", 4.0, 40.0)], "t", "x", "y"), "circle", "cx", "cy"
    )
    (x1, y1), (x2, y2) = points[:2]  # the others belong to the legend
    assert (x2 - 70) / (x1 - 70) == pytest.approx((270 - y2) / (270 - y1), abs=0.02)  # one speed, one line


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert run(["bench", "compare", *map(str, arguments), "--json"]) == ExitCode.OK
    return json.loads(capsys.readouterr().out)


def test_the_command_writes_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, out = write_campaign(tmp_path / "runs"), tmp_path / "report"
    assert run(["bench", "compare", str(runs / "int8"), str(runs / "bf16"), "--out", str(out)]) == ExitCode.OK
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "report.json", "report.md"]
    assert capsys.readouterr().out == ""
    (pair,) = run_json(capsys, runs / "int8", runs / "bf16")["pairs"]
    assert pair == json.loads((out / "report.json").read_text())["pairs"][0]
    assert (pair["kind"], pair["order"], pair["measures"][0]["verdict"]) == ("controlled", "interleaved", "slower")
    assert run(["bench", "compare", str(runs), "--lang", "zh"]) == ExitCode.OK  # a directory of records, by name
    assert capsys.readouterr().out.startswith("# 2 组运行对比")


def test_a_summary_grows_by_every_campaign_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, summary = write_campaign(tmp_path / "runs"), tmp_path / "summary.jsonl"
    for name in ("monday", "tuesday", "monday"):
        assert run(["bench", "compare", str(runs), "--summary", str(summary), "--name", name]) == ExitCode.OK
    assert "already in" in capsys.readouterr().err
    campaigns = read_campaigns(summary)
    assert [campaign.name for campaign in campaigns] == ["monday", "tuesday"]
    assert [(pair.left, pair.right, pair.verdict) for pair in campaigns[0].pairs] == [("bf16", "int8", "faster")]
    page = summary.with_suffix(".md").read_text(encoding="utf-8")
    assert page.index("## monday") < page.index("## tuesday")
    assert campaigns[0].conclusions["en"][0] in page
    summary.write_text('{"name":1}\n')
    with pytest.raises(RecordError, match="line 1"):
        read_campaigns(summary)


def test_damaged_records_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = write_campaign(tmp_path)
    rows = runs / "int8" / "requests.jsonl"
    rows.write_text(rows.read_text().replace('"prefill":0.1', '"prefill":0.2', 1))
    assert run(["bench", "compare", str(runs)]) == ExitCode.BAD_FILE
    assert "line 1: it or a line before it was changed" in capsys.readouterr().err
    assert run(["bench", "compare", str(tmp_path / "none")]) == ExitCode.BAD_FILE


def test_failed_requests_show_at_the_top_and_in_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """C169."""
    failed = make_row("b", 0, error={"kind": "stream cut", "message": ""}, finish=None)
    write_run(tmp_path / "l", make_run("l", PROMPTS), PROMPTS, [make_row("a"), failed])
    write_run(tmp_path / "r", make_run("r", PROMPTS), PROMPTS, [make_row("a"), make_row("b")])
    assert run(["bench", "compare", str(tmp_path)]) == ExitCode.INVALID
    top = capsys.readouterr().out.partition("\n## ")[0]
    assert "is invalid: l: 1 of 2 requests failed (stream cut)" in top
    assert "1 of 4 requests failed" in top


def test_waiting_in_the_client_counts_from_the_planned_time(tmp_path: Path) -> None:
    """C170: a request that was planned for second 0 and sent at second 3 took 4.1 s, not 1.1 s."""
    stamps = Stamps(planned_unix_ns=0, sent_unix_ns=3_000_000_000, ended_unix_ns=4_100_000_000)
    for name in ("l", "r"):
        write_run(tmp_path / name, make_run(name, PROMPTS), PROMPTS, [make_row(stamps=stamps)])
    text = to_markdown(comparison_document(compare([read_run(tmp_path / name) for name in ("l", "r")])))
    assert "| request | 1,100.0 / 1,100.0 |" in text
    assert "| request, from its planned time | 4,100.0 / 4,100.0 |" in text
    assert "| sent late | 1 / 1 | 1 / 1 |" in text


def test_empty_answers_that_nobody_counted_are_not_counted_as_none(tmp_path: Path) -> None:
    for name in ("l", "r"):
        write_run(tmp_path / name, make_run(name, PROMPTS), PROMPTS, [make_row(is_empty=None)])
    text = to_markdown(comparison_document(compare([read_run(tmp_path / name) for name in ("l", "r")])))
    assert "how many answers are empty was not recorded, 0 of 2 requests failed." in text


def test_plots_are_part_of_a_page_only(tmp_path: Path) -> None:
    document = Document("t", "en", (Plot("<svg/>", "what it shows"),))
    assert "what it shows" not in to_markdown(document)
    assert "<svg/>" in to_html(document)
