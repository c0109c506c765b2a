"""Options that `run` and `chat` share, and the request they make."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import click

from ninfer.cli.fields import Decorated, field_options, field_values
from ninfer.cli.sampling import choose_sampling, recommended_sampling, sampling_options
from ninfer.cli.session import Session
from ninfer.decoding import SamplingParams
from ninfer.engine import EngineConfig, GenerationRequest, StopRules

ONE_SEQUENCE = ("max_concurrency", "mixed_chunk")
"""Settings that mean nothing where one request runs at a time, and so are no options there."""

ONE_REQUEST = ("prefix_reuse", "snapshot_mib")
"""Settings that mean nothing where there is only one request."""


def generation_options(function: Decorated) -> Decorated:
    """Adds the options of the answer, of sampling and of the engine."""
    return _options(function, ONE_SEQUENCE)


def single_request_options(function: Decorated) -> Decorated:
    """The same for one request and no more."""
    return _options(function, (*ONE_SEQUENCE, *ONE_REQUEST))


def _options(function: Decorated, without: Collection[str]) -> Decorated:
    for decorate in (
        field_options(EngineConfig, without=without),
        sampling_options,
        click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; repeatable."),
        click.option(
            "--max-new",
            type=int,
            metavar="N",
            help="Tokens of the answer at most; otherwise it runs until the model ends it or the context is full.",
        ),
    ):
        function = decorate(function)
    return function


def engine_config(arguments: dict[str, Any]) -> EngineConfig:
    """The engine settings among the arguments of a command."""
    return EngineConfig(**field_values(EngineConfig, arguments))


def session_sampling(session: Session, arguments: dict[str, Any], *, greedy: bool) -> SamplingParams:
    """The sampling among the arguments, over what the model recommends."""
    recommended = recommended_sampling(session.artifact.find_resource("frontend/generation_config.json"))
    return choose_sampling(arguments, greedy=greedy, recommended=recommended)


def make_request(
    prompt_ids: Sequence[int], *, sampling: SamplingParams, stop: Sequence[str], max_new: int | None
) -> GenerationRequest:
    """A request of a command; RequestError for values out of range."""
    return GenerationRequest(
        prompt_ids=tuple(prompt_ids), max_new=max_new, sampling=sampling, stop=StopRules(strings=tuple(stop))
    )
