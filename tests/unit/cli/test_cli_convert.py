"""What `ninfer convert` tells a person."""

from __future__ import annotations

from pathlib import Path

from ninfer.cli.convert import MOST_LINES_PER_CHANGE, report_lines
from ninfer.convert.report import ConversionReport, TensorReport


def report(tensors: list[TensorReport]) -> ConversionReport:
    return ConversionReport(
        path=Path("out.ninfer"),
        source=Path("in"),
        source_kind="huggingface",
        architecture="llama",
        weights=None,
        recipe="nvfp4",
        tensors=tensors,
        resources=[],
        notes=["a note"],
        source_bytes=2_000,
        file_bytes=1_000,
        digest="0",
    )


def tensor(index: int, format: str, error: float) -> TensorReport:
    return TensorReport(f"layers.{index}.up", "x", "BF16", format, error, 2 * error)


def test_few_changed_tensors_are_named_one_by_one() -> None:
    lines = report_lines(report([tensor(0, "f32", 0.0), tensor(1, "fp8", 0.026)]))
    assert lines[0].startswith("out.ninfer: 1 of 2 tensors kept exactly, 2,000 (")
    assert lines[1:] == ["a note", "layers.1.up: BF16 -> fp8, relative RMS error 0.026, largest 0.052"]


def test_many_tensors_of_one_change_share_a_line_that_names_the_worst() -> None:
    count = MOST_LINES_PER_CHANGE + 1
    changed = [tensor(i, "nvfp4", 0.09 + i / 1000) for i in range(count)]
    lines = report_lines(report([*changed, tensor(99, "fp8", 0.026)]))
    assert lines[2:] == [
        f"{count} tensors: BF16 -> nvfp4, relative RMS error 0.098 at most (layers.8.up), largest 0.196",
        "layers.99.up: BF16 -> fp8, relative RMS error 0.026, largest 0.052",
    ]
