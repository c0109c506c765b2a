"""`ninfer serve MODEL`: one model for many clients over HTTP."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any

import click

from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.fields import field_options, field_values
from ninfer.cli.output import write_answer
from ninfer.cli.sampling import recommended_sampling, sampling_options
from ninfer.cli.session import open_session
from ninfer.decoding import SamplingParams
from ninfer.engine import EngineConfig
from ninfer.errors import RequestError
from ninfer.server.settings import ServerSettings

PROTOCOL_TEMPERATURE = 1.0
"""What the OpenAI protocols mean by a request without a temperature."""
MAX_FILES = 65_536


@click.command("serve")
@click.argument("model")
@field_options(ServerSettings)
@field_options(EngineConfig)
@sampling_options
def command(model: str, greedy: bool, **settings: Any) -> int:
    """Serve a model to OpenAI and Anthropic clients: chat completions, completions, responses, messages.

    One line on stdout says where, once the model is loaded. Requests that run at once share every step; see
    --max-concurrency. SIGTERM or Ctrl-C lets the open requests end first.

    Sampling options are defaults for requests that do not say; without them the generation config in the model file
    counts, and without one temperature 1, as the protocol has it.
    """
    from ninfer.server import ServedModel, serve
    from ninfer.server.request_log import RequestLog
    from ninfer.server.run import RunningServer, bind

    if settings["api_key"] is None:
        settings["api_key"] = os.environ.get("NINFER_API_KEY")
    raise_file_limit()
    server_settings = ServerSettings(**field_values(ServerSettings, settings))
    config = EngineConfig(**field_values(EngineConfig, settings))
    log = RequestLog(server_settings.request_log_jsonl)
    stored = {"stored responses, at most": server_settings.response_store_bytes}
    with bind(server_settings) as bound, open_session(model, config, besides=stored) as session:
        recommended = recommended_sampling(session.artifact.find_resource("frontend/generation_config.json"))
        served = ServedModel(
            id=server_settings.model_id or Path(model).stem,
            plan=session.engine.plan,
            tokenizer=session.tokenizer,
            template=session.template,
            sampling=default_sampling(settings, greedy=greedy, recommended=recommended),
            identity=session.identity(),
        )
        if session.template is not None:
            session.template.prepare()

        def ready(running: RunningServer) -> None:
            plan = served.plan
            facts = (
                f"context {plan.max_context}",
                f"{plan.max_concurrency} at once",
                f"KV {plan.kv_capacity} tokens",
                f"{plan.total_bytes / 2**20:.0f} MiB",
                f"plan {plan.digest[:16]}",
            )
            write_answer(f"ninfer: serving {served.id} at {running.url} ({', '.join(facts)})\n")

        serve(server_settings, served, session.engine, bound, log, on_ready=ready, argv=sys.argv)
    return ExitCode.OK


def raise_file_limit() -> None:
    """Let this process open as many files as it may: every connection is one, and the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def default_sampling(arguments: dict[str, Any], *, greedy: bool, recommended: dict[str, Any]) -> dict[str, Any]:
    """The sampling fields that requests start from: options over the model's own over the protocol's temperature.

    RequestError for values out of range and for `--greedy` with a temperature.
    """
    given = {name: value for name, value in field_values(SamplingParams, arguments).items() if value is not None}
    if greedy and given.get("temperature", 0) != 0:
        raise RequestError("--greedy and --temperature contradict each other", param="temperature")
    greedily = {"temperature": 0.0} if greedy else {}
    found = {"temperature": PROTOCOL_TEMPERATURE, **recommended, **greedily, **given}
    SamplingParams(**found)
    return found
