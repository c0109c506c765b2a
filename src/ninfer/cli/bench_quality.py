"""`ninfer bench quality`: what a format, a numeric profile or a KV format costs in predictions."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, get_args

import click

from ninfer.backends.options import KVFormat, Numerics
from ninfer.cli.fields import field_options
from ninfer.engine import EngineConfig

if TYPE_CHECKING:
    from ninfer.bench.quality import Variant

WORDS = {"numerics": get_args(Numerics), "kv-dtype": get_args(KVFormat)}
EXACT = {"numerics": "f32", "kv-dtype": "bf16"}


@click.command("quality")
@click.argument("variants", metavar="VARIANT...", nargs=-1, required=True)
@click.option("--reference", metavar="VARIANT", help="What is compared with. [default: the model of the first VARIANT]")
@click.option(
    "--text", "texts", multiple=True, default=("builtin",), help="Bundled text or file, repeatable. [default: builtin]"
)
@click.option("--context", type=click.IntRange(min=2), default=512, show_default=True, help="Tokens of a window.")
@click.option("--windows", type=click.IntRange(min=1), help="Windows, evenly spread. [default: all that fit]")
@field_options(EngineConfig, only=("numerics", "kv_dtype"))
@click.option("--threads", type=click.IntRange(min=1), help="Worker threads. [default: all CPUs of this process]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with the values of every window.")
def command(
    variants: tuple[str, ...],
    reference: str | None,
    texts: tuple[str, ...],
    context: int,
    windows: int | None,
    numerics: str,
    kv_dtype: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Perplexity, KL divergence and top-1 agreement of models beside a reference, by position, with intervals.

    VARIANT is what `ninfer run` takes, or that with settings of its own: `smollm2:numerics=a8,kv-dtype=bf16`. What a
    VARIANT does not say is taken from --numerics and --kv-dtype; what the reference does not say is f32 and bf16, the
    most exact there is.

    A text is `builtin` (English prose, code, JSON and Chinese in one), a part of it (`builtin/prose`, `builtin/code`,
    `builtin/json`, `builtin/chinese`) or a UTF-8 file.
    """
    from ninfer.bench import quality, rendering
    from ninfer.bench.quality_text import load_text

    settings = {"numerics": numerics, "kv-dtype": kv_dtype}
    result = quality.measure(
        [parse_variant(text, settings) for text in variants],
        parse_variant(reference or split_variant(variants[0])[0], EXACT),
        [load_text(name) for name in texts],
        context=context,
        num_windows=windows,
        threads=threads or len(os.sched_getaffinity(0)),
        progress=lambda text: click.echo(text, err=True),
    )
    if as_json:
        click.echo(json.dumps(result.to_json(), allow_nan=False))
    else:
        rendering.print_tables(rendering.quality_tables(result))


def split_variant(text: str) -> tuple[str, str]:
    """(model, settings): what follows the last colon is settings when it has an equals sign."""
    model, colon, settings = text.rpartition(":")
    return (model, settings) if colon and "=" in settings else (text, "")


def parse_variant(text: str, defaults: dict[str, str]) -> Variant:
    """A variant as it was typed; UsageError for unknown settings and values."""
    from ninfer.bench.quality import Variant
    from ninfer.cli.models import find_model

    model, spelled = split_variant(text)
    given: dict[str, Any] = {}
    for setting in filter(None, spelled.split(",")):
        name, _, value = setting.partition("=")
        if name not in WORDS or name in given:
            raise click.UsageError(f"{text!r}: {name!r} must be one of {', '.join(WORDS)}, each at most once")
        if value not in WORDS[name]:
            raise click.UsageError(f"{text!r}: {name} must be one of {', '.join(WORDS[name])}, got {value!r}")
        given[name] = value
    decided: dict[str, Any] = {**defaults, **given}
    return Variant(model, find_model(model), decided["numerics"], decided["kv-dtype"])
