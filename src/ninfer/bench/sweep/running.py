"""Running a grid: an engine per setting, all settings in every round, so that drift of the machine meets all alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ninfer.bench.load.campaign import LoadPattern, Schedule, run_campaign
from ninfer.bench.load.openings import Campaign, Variant, engine_runner, load_variant
from ninfer.bench.load.suite import Suite
from ninfer.bench.sweep.grids import Grid, Setting
from ninfer.decoding import SamplingParams
from ninfer.engine import EngineConfig

VERSION = "1"

Progress = Callable[[int, int], None]


def setting_config(base: EngineConfig, grid: Grid, setting: Setting) -> EngineConfig:
    """The configuration of a setting: prompts are never reused, and the context holds the longest of the grid if nobody
    asked for another."""
    context = grid.context if base.max_context == "auto" else base.max_context
    return replace(base, **{"max_context": context, "prefix_reuse": False, **setting.changes})


async def run_grid(
    model: Path, base: EngineConfig, grid: Grid, directory: Path, *, rounds: int, on_progress: Progress
) -> list[Path]:
    """Take every sample that is not there yet; the directories of the runs, by setting."""
    total, done = rounds * len(grid.settings), 0
    suite = Suite(name=f"sweep {grid.kind}", version=VERSION, about="", prompts=[])
    places = []
    for turn in range(rounds):
        for setting in grid.settings:
            variant = Variant(setting.name, model, setting_config(base, grid, setting))
            pattern = LoadPattern(setting.in_flight)
            # A round has a warm-up of its own, because its engine is new.
            schedule = Schedule(turn + 1, turn + 1, pattern, has_nonce=False)
            campaign = Campaign(directory, suite, grid.prompts, schedule, SamplingParams(), grid.ignores_end)
            places.append(await _run_setting(variant, campaign, is_last=turn == rounds - 1))
            done += 1
            on_progress(done, total)
    return places[: len(grid.settings)]


async def _run_setting(variant: Variant, campaign: Campaign, *, is_last: bool) -> Path:
    loaded = load_variant(variant)
    try:
        runner = engine_runner(loaded, campaign)
        try:
            await run_campaign([runner], campaign.prompts, campaign.schedule)
            if is_last:
                runner.writer.finish()
        finally:
            await runner.target.close()
            runner.writer.close()
    finally:
        loaded.artifact.close()
    return runner.writer.directory
