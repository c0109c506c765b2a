"""`ninfer bench scenarios`: a suite of prompts to our engine or to any server, every sample recorded."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import click

from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.fields import click_type, field_help, field_options, field_values
from ninfer.cli.output import notice
from ninfer.cli.sampling import choose_sampling, sampling_options
from ninfer.engine import EngineConfig

if TYPE_CHECKING:
    from ninfer.bench.load.campaign import Progress, Runner, Schedule
    from ninfer.bench.load.openings import Campaign, Variant
    from ninfer.bench.load.suite import CountTokens, Suite
    from ninfer.decoding import SamplingParams


@click.command("scenarios")
@click.argument("variants", metavar="VARIANT...", nargs=-1)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Where runs are recorded.")
@click.option("--suite", "suite_name", default="scenarios", show_default=True, help="Bundled suite, or a file of one.")
@click.option("--language", "languages", multiple=True, help="Only prompts in it, repeatable. [default: all]")
@click.option("--scenario", "scenarios", multiple=True, help="Only its prompts, repeatable. [default: all]")
@click.option("--max-new", type=click.IntRange(min=1), help="Tokens of an answer at most. [default: each prompt's own]")
@click.option("--repeats", type=int, default=3, show_default=True, help="Samples of every prompt, >= 1.")
@click.option("--warmups", type=int, default=1, show_default=True, help="Requests before anything counts, >= 0.")
@click.option("--concurrency", type=int, default=1, show_default=True, help="Requests in flight.")
@click.option("--rate", type=float, help="Send at random times, so many per second on average, whatever is in flight.")
@click.option("--reuse", is_flag=True, help="Send prompts as they are; otherwise each gets a first line of its own.")
@click.option("--load-seed", type=int, default=0, show_default=True, help="Of random times and first lines.")
@click.option("--url", help="A server of OpenAI's chat completions instead of models; times are the client's.")
@click.option("--model-name", help="Its model. [default: the only one it has]")
@click.option("--api-key", envvar="NINFER_API_KEY", help="Its key; better given as NINFER_API_KEY.")
@click.option("--name", help="Name of the server's run. [default: its address]")
@click.option("--context", type=click.IntRange(min=2), help="Tokens that the server holds, if it does not tell.")
@click.option("--fact", "facts", multiple=True, metavar="NAME=VALUE", help="What is known of the server, repeatable.")
@click.option(
    "--failure-limit",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Share of samples that may fail before the command does.",
)
@sampling_options
@field_options(EngineConfig)
def command(
    variants: tuple[str, ...],
    out: Path,
    suite_name: str,
    languages: tuple[str, ...],
    scenarios: tuple[str, ...],
    max_new: int | None,
    repeats: int,
    warmups: int,
    concurrency: int,
    rate: float | None,
    reuse: bool,
    load_seed: int,
    url: str | None,
    model_name: str | None,
    api_key: str | None,
    name: str | None,
    context: int | None,
    facts: tuple[str, ...],
    failure_limit: float,
    greedy: bool,
    **settings: Any,
) -> int:
    """Send every prompt of a suite several times and record what comes back, for `ninfer bench compare`.

    VARIANT is what `ninfer run` takes, or that with settings of its own: `smollm2:spec=ngram,draft-tokens=4`. Several
    are loaded side by side and take turns. Or give --url for a server that is there already.

    Each variant's samples go to a directory below --out. The same command again goes on where it was interrupted. The
    exit code is 1 when more samples failed than --failure-limit allows.
    """
    from ninfer.bench import rendering
    from ninfer.bench.load.campaign import LoadPattern, Schedule
    from ninfer.bench.load.latency import latencies
    from ninfer.bench.load.suite import load_suite
    from ninfer.bench.records.reader import read_run

    if bool(variants) == (url is not None):
        raise click.UsageError("give models as VARIANT..., or a server by --url")
    suite = load_suite(suite_name)
    schedule = Schedule(repeats, warmups, LoadPattern(concurrency, rate, load_seed), not reuse)
    sampling = choose_sampling(settings, greedy=greedy, recommended={})
    choice = {"languages": languages, "scenarios": scenarios, "max_new": max_new}
    if url is None:
        parsed = [parse_variant(text, field_values(EngineConfig, settings)) for text in variants]
        done = asyncio.run(_models(parsed, partial(_campaign, out, suite, choice, schedule, sampling)))
    else:
        server = {"name": name or url, "model": model_name, "api_key": api_key, "facts": parse_facts(facts)}
        done = asyncio.run(_server(url, server, context, partial(_campaign, out, suite, choice, schedule, sampling)))
    progress, directories = done
    rendering.print_tables(rendering.latency_table(latencies(read_run(directory)) for directory in directories))
    taken = progress.done - progress.kept
    notice(f"{taken} samples taken, {progress.failed} of them failed, {progress.kept} were there already: {out}")
    return ExitCode.RUNTIME if progress.failed > failure_limit * taken else ExitCode.OK


def _campaign(
    out: Path,
    suite: Suite,
    choice: dict[str, Any],
    schedule: Schedule,
    sampling: SamplingParams,
    *,
    context: int | None,
    count_tokens: CountTokens,
) -> Campaign:
    """The campaign for targets of a context."""
    from ninfer.bench.load.openings import Campaign
    from ninfer.bench.load.suite import make_prompts

    prompts = make_prompts(suite, context=context, count_tokens=count_tokens, **choice)
    return Campaign(out, suite, prompts, schedule, sampling)


async def _models(variants: Sequence[Variant], make: Callable[..., Campaign]) -> tuple[Progress, list[Path]]:
    from contextlib import ExitStack

    from ninfer.bench.load.openings import engine_runner, load_variant

    with ExitStack() as stack:
        loaded = []
        for variant in variants:
            loaded.append(load_variant(variant))
            stack.callback(loaded[-1].artifact.close)
        # Variants with unequal prompts could not be compared, so the smallest context and the first tokenizer decide.
        context = min(one.engine.plan.max_context for one in loaded)
        campaign = make(context=context, count_tokens=loaded[0].count_tokens)
        return await _run([engine_runner(one, campaign) for one in loaded], campaign)


async def _server(
    url: str, server: dict[str, Any], context: int | None, make: Callable[..., Campaign]
) -> tuple[Progress, list[Path]]:
    from ninfer.bench.load.openings import estimated_tokens, find_server, server_runner

    found = await find_server(url, **server)
    campaign = make(context=context or found.context, count_tokens=estimated_tokens)
    return await _run([server_runner(found, campaign)], campaign)


async def _run(runners: Sequence[Runner], campaign: Campaign) -> tuple[Progress, list[Path]]:
    from ninfer.bench.load.campaign import run_campaign
    from ninfer.bench.load.openings import close_all
    from ninfer.cli.progress import ProgressBar

    try:
        with ProgressBar(", ".join(runner.name for runner in runners), counts="pieces") as bar:
            progress = await run_campaign(
                runners, campaign.prompts, campaign.schedule, lambda p: bar.update(p.done, p.total)
            )
        for runner in runners:
            runner.writer.finish()
    finally:
        await close_all([runner.target for runner in runners])
        for runner in runners:
            runner.writer.close()
    return progress, [runner.writer.directory for runner in runners]


def parse_variant(text: str, defaults: dict[str, Any]) -> Variant:
    """A variant as it was typed: a model, and behind the last colon settings of its own; UsageError for others."""
    from ninfer.bench.load.openings import Variant
    from ninfer.cli.bench_quality import split_variant
    from ninfer.cli.models import find_model

    model, spelled = split_variant(text)
    hints, known = get_type_hints(EngineConfig), field_help(EngineConfig)
    names = {
        field.name.replace("_", "-"): field.name for field in dataclasses.fields(EngineConfig) if field.name in known
    }
    given: dict[str, Any] = {}
    for setting in filter(None, spelled.split(",")):
        flag, _, value = setting.partition("=")
        if flag not in names or names[flag] in given:
            raise click.UsageError(f"{text!r}: {flag!r} must be one of {', '.join(names)}, each at most once")
        kind = click_type(hints[names[flag]]) or click.BOOL
        try:
            given[names[flag]] = kind.convert(value, None, None)
        except click.BadParameter as error:
            raise click.UsageError(f"{text!r}: {flag}: {error.message}") from error
    return Variant(text, find_model(model), EngineConfig(**{**defaults, **given}))


def parse_facts(given: Sequence[str]) -> dict[str, Any]:
    """Facts as they were typed; a value that is JSON is taken as such, any other one is text."""
    import json

    facts: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--fact takes NAME=VALUE, got {text!r}")
        try:
            facts[name] = json.loads(value)
        except ValueError:
            facts[name] = value
        if isinstance(facts[name], dict):
            raise click.UsageError(f"--fact {name}: an object is no value; give a number, a text, true, false or null")
    return facts
