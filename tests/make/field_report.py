"""A field report's figures as run records: typed once, as they stand in its tables.

Five variants of one 27B model on a C++ engine, five scenarios, one request each. What the report does not state is not
stated here either; the windows of settings that it calls X and Y are declarations by its author.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from make.run_records import write_run
from ninfer.bench.records.facts import Declaration, Fact
from ninfer.bench.records.reader import RunRecord, read_run
from ninfer.bench.records.schema import (
    Circumstances,
    Inputs,
    Prompt,
    PromptIdentity,
    RequestRow,
    RowSeconds,
    RowUsage,
    RunFile,
    Source,
)

SCENARIOS = {"s1_geometry": 131, "s2_impl": 235, "s3_debug": 759, "s4_refactor": 609, "s5_long_context": 48_056}
MAX_NEW = {"s1_geometry": 6144, "s2_impl": 4096, "s3_debug": 4096, "s4_refactor": 4096, "s5_long_context": 2560}

PROFILE: dict[str, Any] = {
    "engine.name": "NInfer",
    "engine.build": "git b0c7ffc05e854acdbf3d88377d2393c5fd01785d, serve FFD20B9D",
    "engine.measured_at": "server",
    "settings.tp": 2,
    "settings.devices": "0,1",
    "settings.kv_dtype": "int8",
    "settings.max_context": 196_608,
    "settings.kv_capacity": 196_608,
    "settings.prefill_chunk": 2048,
    "settings.max_concurrency": 1,
    "settings.prefix_reuse": False,
    "settings.reasoning_effort": "medium",
    "sampling.greedy": True,
}
"""The line at the head of the report."""


class Variant(NamedTuple):
    """One column of the overview. requests: generated, TTFT, prefill, decode and total seconds, by scenario."""

    name: str
    window: str | None
    facts: dict[str, Any]
    reported: dict[str, float | int]
    requests: tuple[tuple[int, float, float, float, float], ...]


V3 = {
    "artifact.name": "Qwen3.8-27B-Coder390-EfficientThink-W4A4-MTP-DFlash2",
    "artifact.container": "v3",
    "artifact.weights": "Coder390 W4A4 V3 (vision-capable)",
    "artifact.bytes": 23_773_675_264,
}
MTP3 = {"draft.backend": "mtp", "draft.tokens": 3, "draft.head": "optimized"}

VARIANTS = (
    Variant(
        "A",
        None,
        {
            "artifact.name": "qwen3_8_27b_nvfp4",
            "artifact.weights": "official Qwen3.8-27B NVFP4",
            "artifact.bytes": 23_719_715_844,
            **MTP3,
        },
        {"acceptance": 0.706, "empty_answers": 2, "load_s": 71.9, "process_s": 313.3},
        (
            (6144, 0.365, 0.36, 54.75, 55.18),
            (4096, 0.393, 0.39, 34.45, 34.88),
            (4096, 0.832, 0.83, 37.22, 38.10),
            (4096, 0.696, 0.69, 35.49, 36.23),
            (2560, 50.373, 50.16, 24.20, 74.60),
        ),
    ),
    Variant(
        "B",
        None,
        {
            "artifact.name": "Qwen3.8-27B-Coder390-W4A4-MTP-DFlash2-NInferV2-NOT-FOR-V3",
            "artifact.container": "v2",
            "artifact.weights": "Coder390 W4A4 V2 (text)",
            "artifact.bytes": 23_477_696_516,
            **MTP3,
            "draft.head": "full",
        },
        {"acceptance": 0.713, "empty_answers": 1, "load_s": 31.2, "process_s": 281.8},
        (
            (6144, 0.368, 0.37, 56.51, 56.94),
            (4096, 0.397, 0.39, 36.42, 36.86),
            (4096, 0.833, 0.83, 39.92, 40.80),
            (4096, 0.699, 0.70, 37.92, 38.66),
            (2560, 50.443, 50.23, 24.49, 74.96),
        ),
    ),
    Variant(
        "C1",
        "X",
        {**V3, **MTP3},
        {"acceptance": 0.703, "empty_answers": 2, "load_s": 73.5, "process_s": 304.0},
        (
            (6144, 0.365, 0.36, 53.74, 54.16),
            (3588, 0.394, 0.39, 30.61, 31.04),
            (3322, 0.833, 0.83, 31.00, 31.86),
            (4096, 0.697, 0.69, 36.11, 36.85),
            (2560, 50.502, 50.27, 23.81, 74.34),
        ),
    ),
    Variant(
        "C2",
        "Y",
        {**V3, **MTP3},
        {"acceptance": 0.703, "empty_answers": 2, "load_s": 74.1, "process_s": 305.0},
        (
            (6144, 0.368, 0.37, 53.79, 54.23),
            (3588, 0.394, 0.39, 30.66, 31.09),
            (3322, 0.835, 0.83, 31.03, 31.91),
            (4096, 0.697, 0.69, 36.13, 36.87),
            (2560, 50.485, 50.25, 23.81, 74.33),
        ),
    ),
    Variant(
        "D",
        "Y",
        {**V3, "draft.backend": "dflash2", "draft.tokens": 7, "draft.head": "optimized"},
        {"acceptance": 0.439, "empty_answers": 1, "load_s": 79.7, "process_s": 312.4},
        (
            (6144, 0.362, 0.36, 51.36, 51.77),
            (3069, 0.397, 0.39, 26.24, 26.66),
            (3329, 0.841, 0.84, 36.12, 37.00),
            (4096, 0.703, 0.70, 37.80, 38.54),
            (2560, 51.137, 50.90, 25.04, 76.19),
        ),
    ),
)


def make_prompts() -> list[Prompt]:
    """The scenarios; their texts are not in the report."""
    return [Prompt(id=name, scenario=name, body=None, max_new=MAX_NEW[name]) for name in SCENARIOS]


def make_row(scenario: str, request: tuple[int, float, float, float, float]) -> RequestRow:
    completion, ttft, prefill, decode, total = request
    return RequestRow(
        prompt=scenario,
        repeat=0,
        max_new=MAX_NEW[scenario],
        usage=RowUsage(
            prompt_tokens=SCENARIOS[scenario],
            cached_tokens=0,  # prefix reuse was off
            computed_tokens=SCENARIOS[scenario],
            completion_tokens=completion,
        ),
        seconds=RowSeconds(prefill=prefill, decode=decode, total=total, ttft=ttft),
        finish="output_limit" if completion == MAX_NEW[scenario] else "stop_token",
    )


def write_field_report(directory: Path) -> list[RunRecord]:
    """The records of all five variants, in the order of the report."""
    prompts = make_prompts()
    inputs = Inputs(
        name="field report", version=None, prompts=[PromptIdentity(id=p.id, digest=p.digest) for p in prompts]
    )
    records = []
    for variant in VARIANTS:
        facts = {**PROFILE, **variant.facts}
        declared = []
        if variant.window is not None:
            word = "the report, section 0: settings of the window are equal, only the draft configuration differs"
            declared.append(Declaration(label=variant.window, by=word))
        run = RunFile(
            name=variant.name,
            created_unix_ns=0,
            command=["ninfer-serve"],
            facts={name: Fact(value, "observed") for name, value in facts.items()},
            inputs=inputs,
            circumstances=Circumstances(),
            declarations=declared,
            reported=dict(variant.reported),
            resolution_s=0.01,
            source=Source(kind="field report", file="field-report-comparison.txt", digest=""),
        )
        rows = [make_row(*pair) for pair in zip(SCENARIOS, variant.requests, strict=True)]
        records.append(read_run(write_run(directory / variant.name, run, prompts, rows)))
    return records
