"""`ninfer make-checkpoint OUT`: a model with random weights, to measure with and to test."""

from __future__ import annotations

from pathlib import Path

import click

from ninfer import formats
from ninfer.cli.output import bytes_text, notice, write_answer
from ninfer.cli.progress import ProgressBar
from ninfer.convert.random_model.shapes import SHAPES
from ninfer.convert.recipes import RECIPES
from ninfer.errors import ConfigError

CUSTOM = "custom"
KINDS = ("huggingface", "ninfer")


@click.command("make-checkpoint")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--shape", type=click.Choice((*SHAPES, CUSTOM)), required=True, help="That of a published Qwen3.5 model.")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="A config.json, for --shape custom.")
@click.option("--format", "kind", type=click.Choice(KINDS), help="[default: ninfer if OUT ends with .ninfer]")
@click.option("--weights", type=click.Choice(formats.NAMES), help="Store all weight matrices so; bf16 without it.")
@click.option("--recipe", type=click.Choice(tuple(RECIPES)), help="Choose formats by place, as `ninfer convert` does.")
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed, other weights.")
def command(
    out: Path,
    shape: str,
    config_file: Path | None,
    kind: str | None,
    weights: str | None,
    recipe: str | None,
    seed: int,
) -> None:
    """Write a model of the Qwen3.5 family with random weights: the sizes and the speed of a real one, no sense.

    OUT becomes a Hugging Face directory in bf16 or a .ninfer file. The same shape and seed give the same weights in
    both; converting the directory gives the same tensors as writing the file. Both say that the weights are random.
    """
    from ninfer.convert.random_model.make import make_artifact, make_directory

    kind = kind or ("ninfer" if out.suffix == ".ninfer" else "huggingface")
    with ProgressBar(f"writing random weights of shape {shape}") as bar:
        if kind == "ninfer":
            model, report = make_artifact(
                out,
                shape,
                config_file=config_file,
                seed=seed,
                weights=weights,
                recipe=recipe,
                progress=bar.update,
            )
            nbytes = report.file_bytes
        else:
            if weights is not None or recipe is not None:
                raise ConfigError("a Hugging Face directory holds bf16; --weights and --recipe are for --format ninfer")
            model = make_directory(out, shape, config_file=config_file, seed=seed, progress=bar.update)
            nbytes = 2 * model.num_parameters
    notice(f"{out}: {model.num_parameters:,} random parameters, {bytes_text(nbytes)} bytes")
    write_answer(f"{out}\n")
