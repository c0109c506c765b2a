"""Random models as files: a Hugging Face directory, or an artifact in any format or recipe with the same weights."""

from __future__ import annotations

import os
from pathlib import Path

from ninfer.convert.convert import ProgressCallback, check_target, write_artifact
from ninfer.convert.format_choice import FormatChoice
from ninfer.convert.random_model.checkpoint import random_checkpoint
from ninfer.convert.random_model.directory import write_directory
from ninfer.convert.random_model.model import RandomModel, random_model
from ninfer.convert.report import ConversionReport

PathLike = str | os.PathLike[str]


def make_directory(
    out: PathLike,
    shape: str,
    *,
    config_file: Path | None = None,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> RandomModel:
    """Write a random model as a Hugging Face directory in bf16; raises as `random_model` and `write_directory`."""
    model = random_model(shape, config_file=config_file, seed=seed)
    write_directory(model, Path(out), progress=progress)
    return model


def make_artifact(
    out: PathLike,
    shape: str,
    *,
    config_file: Path | None = None,
    seed: int = 0,
    weights: str | None = None,
    recipe: str | None = None,
    progress: ProgressCallback | None = None,
) -> tuple[RandomModel, ConversionReport]:
    """Write the artifact that converting the directory of the same shape and seed gives, provenance apart.

    `weights`, `recipe`: as for `convert`. Memory is bounded by the largest tensor as it is stored. Raises as
    `random_model` and `convert`.
    """
    target = Path(out)
    check_target(target)
    choice = FormatChoice.of(weights, recipe)
    model = random_model(shape, config_file=config_file, seed=seed)
    checkpoint = random_checkpoint(model, Path(f"shape {shape}") if config_file is None else config_file)
    return model, write_artifact(checkpoint, target, choice, progress)
