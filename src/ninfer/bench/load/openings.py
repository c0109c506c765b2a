"""From what is to be measured to runners: models loaded in this process, or a server that is there already."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from ninfer.artifact import Artifact
from ninfer.bench.load.campaign import Runner, Schedule
from ninfer.bench.load.engine_target import EngineTarget
from ninfer.bench.load.http_target import HttpTarget, only_model
from ninfer.bench.load.suite import Suite, inputs_of
from ninfer.bench.load.target import Target
from ninfer.bench.records.conditions import (
    artifact_facts,
    build_facts,
    circumstances,
    engine_facts,
    machine_facts,
    stated,
)
from ninfer.bench.records.facts import Fact, Value
from ninfer.bench.records.schema import Circumstances, Prompt, RunFile
from ninfer.bench.records.writer import RunWriter
from ninfer.decoding import SamplingParams
from ninfer.engine import Engine, EngineConfig, detect_hardware, load_engine, plan_engine
from ninfer.errors import ConfigError
from ninfer.text.frontend import load_frontend
from ninfer.text.template import ChatTemplate

CHARACTERS_PER_TOKEN = 4
"""Taken where a server does not count tokens for us; the record has the server's own count of what was sent."""


@dataclass(frozen=True)
class Variant:
    """A model file and how it is run. name: of the run, and of its directory."""

    name: str
    path: Path
    config: EngineConfig


@dataclass(frozen=True)
class Campaign:
    """What all runs of a campaign share. directory: each run's own is below it. ignores_end: answers go on to their
    limit, whatever the model says; only our engine does that."""

    directory: Path
    suite: Suite
    prompts: Sequence[Prompt]
    schedule: Schedule
    sampling: SamplingParams
    ignores_end: bool = False


@dataclass
class Loaded:
    """A model loaded in this process."""

    variant: Variant
    artifact: Artifact
    engine: Engine
    template: ChatTemplate | None
    before: Circumstances
    load_seconds: float

    def count_tokens(self, messages: list[dict[str, str]]) -> int:
        """ConfigError for a model that cannot chat."""
        if self.template is None:
            raise ConfigError(f"{self.variant.path} has no chat template, so there is nothing to put prompts into")
        return len(self.template.encode(messages))

    def close(self) -> None:
        self.engine.close()
        self.artifact.close()


@dataclass
class Server:
    """A server that is there already. plan: of a server of ours, None for others."""

    name: str
    url: str
    model: str
    api_key: str | None
    plan: dict[str, Any] | None
    facts: dict[str, Fact] = field(default_factory=dict)

    @property
    def context(self) -> int | None:
        return None if self.plan is None else int(self.plan["max_context"])


def load_variant(variant: Variant) -> Loaded:
    """Plan and load a model; the errors of planning and loading."""
    before = circumstances(variant.path)
    started = time.perf_counter()
    artifact = Artifact.open(variant.path)
    try:
        tokenizer, template = load_frontend(artifact.find_resource)
        plan = plan_engine(variant.config, artifact, detect_hardware())
        engine = load_engine(plan, artifact, tokenizer)
    except BaseException:
        artifact.close()
        raise
    return Loaded(variant, artifact, engine, template, before, time.perf_counter() - started)


async def find_server(
    url: str, model: str | None, *, name: str, api_key: str | None, facts: Mapping[str, Value]
) -> Server:
    """Look at a server. facts: what the caller knows of it, stated as declared. ConfigError if it does not answer."""
    server = Server(name, url, model or await only_model(url, api_key=api_key), api_key, await _find_plan(url, api_key))
    if server.plan is not None:
        server.facts = {"engine.name": Fact("ninfer", "observed"), **engine_facts(server.plan)}
        server.facts["artifact.digest"] = Fact(server.plan["artifact_digest"], "observed")
    server.facts |= stated(facts, "declared", "given on the command line")
    return server


async def _find_plan(url: str, api_key: str | None) -> dict[str, Any] | None:
    """The plan of a server of ours. Others may have such a page too, and it will be no plan."""
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    try:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=10.0, trust_env=False) as client:
            plan = (await client.get("/plan")).raise_for_status().json()
            engine_facts(plan)
            return dict(plan) if {"artifact_digest", "max_context"} <= plan.keys() else None
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        return None


def estimated_tokens(messages: list[dict[str, str]]) -> int:
    """A guess at the tokens of a conversation, for servers that do not count."""
    return -(-sum(len(message["content"]) for message in messages) // CHARACTERS_PER_TOKEN)


def load_facts(campaign: Campaign) -> dict[str, Fact]:
    """How requests are made and sent."""
    schedule, sampling = campaign.schedule, campaign.sampling
    pattern = schedule.pattern
    is_open = pattern.rate is not None
    values: dict[str, Value] = {
        "load.pattern": pattern.word,
        "load.concurrency": None if is_open else pattern.concurrency,
        "load.rate": pattern.rate,
        "load.nonce": schedule.has_nonce,
        "load.seed": pattern.seed if is_open or schedule.has_nonce else None,
        "load.ignores_end": campaign.ignores_end,
        "sampling.greedy": sampling.is_greedy,
    }
    given = asdict(sampling)
    del given["logit_bias"]
    random_only = ("temperature", "top_p", "top_k", "min_p", "seed")
    values |= {
        f"sampling.{name}": None if sampling.is_greedy and name in random_only else value
        for name, value in given.items()
    }
    return stated(values, "chosen")


def engine_runner(loaded: Loaded, campaign: Campaign) -> Runner:
    """A loaded model as a target, and the run that its samples go to."""
    plan = loaded.engine.plan.to_dict()
    facts = {
        **build_facts(),
        **artifact_facts(loaded.artifact),
        **machine_facts(),
        **engine_facts(plan),
        **stated({"engine.measured_at": "engine"}, "default"),
    }
    writer = _writer(loaded.variant.name, campaign, facts, loaded.before, plan)
    if not writer.is_finished:
        writer.loaded(loaded.load_seconds, loaded.before)
    target = EngineTarget(loaded.engine, loaded.template, campaign.sampling, ignores_end=campaign.ignores_end)
    return Runner(loaded.variant.name, target, writer)


def server_runner(server: Server, campaign: Campaign) -> Runner:
    """A server as a target, and the run that its samples go to. What it does not tell is not recorded."""
    facts = {**stated({"engine.measured_at": "client"}, "default"), **server.facts}
    writer = _writer(server.name, campaign, facts, circumstances(), server.plan)
    target = HttpTarget(server.url, server.model, request_fields(campaign.sampling), api_key=server.api_key)
    return Runner(server.name, target, writer)


def request_fields(sampling: SamplingParams) -> dict[str, Any]:
    """Sampling as OpenAI-compatible servers take it; what is at its neutral value is left out."""
    neutral = SamplingParams()
    changed = {name: value for name, value in asdict(sampling).items() if value != getattr(neutral, name)}
    return {"temperature": sampling.temperature, **changed}


def _writer(
    name: str, campaign: Campaign, facts: dict[str, Fact], before: Circumstances, plan: dict[str, Any] | None
) -> RunWriter:
    inputs = inputs_of(campaign.suite, campaign.prompts)
    run = RunFile(
        name=name,
        created_unix_ns=time.time_ns(),
        command=list(sys.argv),
        facts={
            **facts,
            **load_facts(campaign),
            "inputs.digest": Fact(inputs.digest, "observed"),
        },
        inputs=inputs,
        circumstances=before,
        plan=plan,
    )
    return RunWriter(campaign.directory / directory_name(name), run, campaign.prompts)


def directory_name(name: str) -> str:
    """A run's name as a directory: what is no letter, digit or one of `._=-` becomes an underscore."""
    return re.sub(r"[^\w.=-]+", "_", name)


async def close_all(targets: Sequence[Target]) -> None:
    """Close every target, also when one of them cannot be."""
    results = await asyncio.gather(*(target.close() for target in targets), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
