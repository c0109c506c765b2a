"""Sweeps: what a grid runs, and what is made of records with known times."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from make.run_records import make_run
from ninfer.bench.load.suite import load_suite
from ninfer.bench.records.schema import RequestRow, RowSeconds, RowSpeculation, RowUsage, Stamps
from ninfer.bench.records.writer import RunWriter
from ninfer.bench.report.markdown import to_markdown
from ninfer.bench.sweep.grids import Grid, concurrency_grid, decode_grid, prefill_grid
from ninfer.bench.sweep.report import sweep_document, to_csv
from ninfer.bench.sweep.results import sweep_result
from ninfer.bench.sweep.running import setting_config
from ninfer.engine import EngineConfig
from ninfer.errors import ConfigError


def words(messages: list[dict[str, str]]) -> int:
    return sum(len(message["content"].split()) for message in messages)


def decoding(windows: list[int], contexts: list[int], workloads: list[str], drafts: str = "ngram") -> Grid:
    suite = load_suite("workloads")
    return decode_grid(windows, contexts, suite, workloads, drafts=drafts, max_new=64, count_tokens=words)


def record(directory: Path, grid: Grid, row: Callable[[int, int, str], RequestRow], repeats: int = 2) -> list[Path]:
    """Runs of a grid; `row(setting, repeat, prompt)` is what each sample was."""
    places = []
    for setting in grid.settings:
        prompts = list(grid.prompts)
        places.append(directory / setting.name)
        with RunWriter(places[-1], make_run(setting.name, prompts), prompts) as writer:
            warmup = row(setting.value, 0, prompts[0].id)
            writer.append(replace_row(warmup, is_warmup=True, seconds=RowSeconds(prefill=99.0, decode=99.0)))
            for repeat in range(repeats):
                for prompt in prompts:
                    writer.append(row(setting.value, repeat, prompt.id))
    return places


def replace_row(row: RequestRow, **changes: object) -> RequestRow:
    return RequestRow(**{name: getattr(row, name) for name in row.__struct_fields__} | changes)  # type: ignore[arg-type]


def prefilled(chunk: int, repeat: int, prompt: str, *, cached: int = 0) -> RequestRow:
    """A prompt at `chunk` tok/s, twice that in repeat 1."""
    count = int(prompt.split("-")[1])
    return RequestRow(
        prompt=prompt,
        repeat=repeat,
        usage=RowUsage(prompt_tokens=count, cached_tokens=cached, computed_tokens=count - cached, completion_tokens=2),
        seconds=RowSeconds(prefill=count / chunk / (repeat + 1)),
        finish="output_limit",
    )


def test_prompts_have_the_length_they_are_called_by_and_every_chunk_gets_the_same() -> None:
    grid = prefill_grid([64, 512], [100, 2000], vocab_size=50)
    assert [len(prompt.body) for prompt in grid.prompts] == [100, 2000]
    assert max(map(max, (prompt.body for prompt in grid.prompts))) < 50
    assert [setting.changes for setting in grid.settings] == [{"prefill_chunk": 64}, {"prefill_chunk": 512}]
    config = setting_config(EngineConfig(threads=1), grid, grid.settings[0])
    assert (config.max_context, config.prefill_chunk, config.threads) == (2002, 64, 1)
    assert not config.prefix_reuse, "a prompt that was reused has no prefill rate"
    assert setting_config(EngineConfig(max_context=4000), grid, grid.settings[0]).max_context == 4000


def test_a_window_of_none_decodes_without_drafts() -> None:
    grid = decoding([0, 3], [400], ["prose", "copy"])
    assert [dict(s.changes) for s in grid.settings] == [
        {"spec": "off", "draft_tokens": "auto"},
        {"spec": "ngram", "draft_tokens": 3},
    ]
    assert [prompt.options for prompt in grid.prompts] == [
        {"workload": "prose", "context": 400},
        {"workload": "copy", "context": 400},
    ]
    assert all(380 < words(prompt.body) <= 400 for prompt in grid.prompts)


def test_there_are_as_many_prompts_as_the_most_lanes_and_no_two_are_equal() -> None:
    grid = concurrency_grid([1, 3], 9, max_new=32, vocab_size=1000)
    assert [setting.in_flight for setting in grid.settings] == [1, 3]
    assert len({tuple(prompt.body) for prompt in grid.prompts}) == 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: prefill_grid([], [1], vocab_size=9), "chunks are none; each once, >= 1"),
        (lambda: prefill_grid([64, 64], [1], vocab_size=9), "chunks are 64, 64; each once"),
        (lambda: prefill_grid([64], [0], vocab_size=9), "lengths are 0; each once, >= 1"),
        (lambda: decoding([-1], [99], ["prose"]), "windows are -1; each once, >= 0"),
        (lambda: decoding([2], [99], ["prose"], "off"), "windows are 2 and spec is off"),
        (lambda: decoding([0], [99], ["poems"]), "workload 'poems' is not in suite workloads; there are code, copy"),
        (lambda: concurrency_grid([1], 9, max_new=31, vocab_size=9), "max_new is 31; fewer than 32 tokens"),
    ],
)
def test_grids_that_cannot_be(make: Callable[[], Grid], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_peak_is_the_best_sample_and_sustained_is_all_tokens_over_all_seconds(tmp_path: Path) -> None:
    grid = prefill_grid([100, 400], [50, 90], vocab_size=9)
    result = sweep_result(grid, record(tmp_path, grid, prefilled))
    assert [cell.axes for cell in result.cells] == [
        {"chunk": chunk, "prompt tokens": length} for chunk in (100, 400) for length in (50, 90)
    ]
    for cell in result.cells:
        chunk = cell.axes["chunk"]
        assert cell.rates == pytest.approx((chunk, 2 * chunk))
        assert cell.peak == pytest.approx(2 * chunk)
        assert cell.sustained == pytest.approx(2 / (1 / chunk + 1 / (2 * chunk)))
    assert "| 90 | 200.0 / 133.3 | 800.0 / 533.3 |" in to_markdown(sweep_document(result))
    lines = list(csv.DictReader(io.StringIO(to_csv(result))))
    assert [(line["chunk"], line["prompt tokens"]) for line in lines][:2] == [("100", "50"), ("100", "90")]
    assert [float(word) for word in lines[0]["samples"].split()] == pytest.approx([100, 200])


def test_a_prompt_that_was_partly_reused_has_no_prefill_rate(tmp_path: Path) -> None:
    grid = prefill_grid([100], [50], vocab_size=9)
    places = record(tmp_path, grid, lambda *key: prefilled(*key, cached=10 * key[1]))
    (cell,) = sweep_result(grid, places).cells
    assert (cell.peak, cell.refused) == (None, "a part of the prompt was not computed but reused")


@pytest.mark.parametrize("completion", [64, 5])
def test_an_answer_of_a_few_tokens_has_no_decode_rate(tmp_path: Path, completion: int) -> None:
    grid = decoding([3], [60], ["prose"])

    def row(window: int, repeat: int, prompt: str) -> RequestRow:
        rounds = completion // 2
        counts = RowSpeculation(
            backend="ngram",
            draft_window=window,
            rounds=rounds,
            drafted_tokens=3 * rounds,
            accepted_tokens=completion - 1 - rounds,
        )
        return RequestRow(
            prompt=prompt,
            repeat=repeat,
            usage=RowUsage(prompt_tokens=60, cached_tokens=0, computed_tokens=60, completion_tokens=completion),
            seconds=RowSeconds(decode=2.0),
            speculation=counts,
            finish="output_limit",
        )

    result = sweep_result(grid, record(tmp_path, grid, row))
    (cell,) = result.cells
    text = to_markdown(sweep_document(result))
    if completion == 5:
        assert cell.rates == ()
        assert "window 3, workload prose, context 60: an answer ended after 5 tokens" in text
    else:
        assert cell.rates == pytest.approx((31.5, 31.5))
        assert (cell.tokens_per_round, cell.round_s) == (pytest.approx(63 / 32), pytest.approx(2 / 32))
        assert "1.97 / 62.50 / 32.3 %" in text


def test_lanes_are_judged_by_all_their_tokens_over_the_time_from_first_to_last(tmp_path: Path) -> None:
    grid = concurrency_grid([2], 9, max_new=32, vocab_size=9)

    def row(lanes: int, repeat: int, prompt: str) -> RequestRow:
        late = prompt == "answer-1"
        start = 10**12 * repeat
        return RequestRow(
            prompt=prompt,
            repeat=repeat,
            stamps=Stamps(sent_unix_ns=start + 10**9 * late, ended_unix_ns=start + (3 + late) * 10**9),
            usage=RowUsage(prompt_tokens=9, completion_tokens=32),
            finish="output_limit",
        )

    places = record(tmp_path / "good", grid, row)
    (cell,) = sweep_result(grid, places).cells
    assert cell.rates == pytest.approx((16.0, 16.0))
    broken = replace_row(row(2, 0, "answer-1"), error={"kind": "x", "message": "y"}, finish=None)
    places = record(tmp_path / "bad", grid, lambda *key: broken if key[1:] == (0, "answer-1") else row(*key))
    (cell,) = sweep_result(grid, places).cells
    assert (cell.peak, cell.refused) == (None, "a request failed, so not all lanes were at work")
