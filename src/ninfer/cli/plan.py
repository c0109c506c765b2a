"""`ninfer plan MODEL`: everything that will be allocated, before it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.fields import field_options, field_values
from ninfer.cli.models import find_model
from ninfer.cli.output import bytes_text, complain, write_answer, write_json
from ninfer.engine import EngineConfig, EnginePlan, detect_hardware, largest_contexts, plan_engine
from ninfer.errors import CapacityError


@click.command("plan")
@click.argument("model")
@field_options(EngineConfig)
@click.option("--json", "as_json", is_flag=True, help="One JSON object: fits, and the plan or the largest value.")
def command(model: str, as_json: bool, **settings: Any) -> int:
    """Show what would run and allocate, byte by byte, without allocating it, and the largest context that fits.

    Settings that need more memory than is available end with exit code 3 and name the largest value that fits. Page
    cache counts as available, and weights count as memory even where they stay mapped: every step reads all of them.
    """
    from ninfer.artifact import Artifact

    config = EngineConfig(**field_values(EngineConfig, settings))
    hardware = detect_hardware()
    with Artifact.open(find_model(model)) as artifact:
        largest = largest_contexts(config, artifact, hardware)
        facts = {"largest_max_context": largest, "hardware": hardware.to_dict()}
        try:
            plan = plan_engine(config, artifact, hardware)
        except CapacityError as error:
            if as_json:
                refusal = {"field": error.field, "largest": error.largest, "needed_bytes": error.needed}
                write_json({"fits": False, **refusal, **facts})
            complain(str(error))
            return ExitCode.DOES_NOT_FIT
    if as_json:
        write_json({"fits": True, "plan": plan.to_dict(), **facts})
    else:
        write_answer(render(plan, hardware.available_bytes, largest))
    return ExitCode.OK


def render(plan: EnginePlan, available_bytes: int, largest: Mapping[str, int | None]) -> str:
    """The plan as text: memory, then what will run, then the reasons of automatic choices."""
    options = plan.options
    rows = [
        (f"{item.name}{' (estimate)' if item.estimate else ''}", item.num_bytes)
        for item in plan.memory
        if item.num_bytes  # a model without recurrent layers has no bytes of state
    ]
    rows += [("all", plan.total_bytes), ("available", available_bytes)]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {bytes_text(count)}" for name, count in rows]
    facts = {
        "architecture": plan.architecture,
        "max_context": f"{plan.max_context} tokens",
        "kv_capacity": f"{plan.kv_capacity} tokens in {plan.num_pages} pages",
        "kv_dtype": options.kv_format,
        "largest max_context": ", ".join(f"{value or 'none'} with {name} KV" for name, value in largest.items()),
        **_state_facts(plan),
        **_prefix_facts(plan),
        **_draft_facts(plan),
        "prefill_chunk": f"{plan.prefill_chunk} tokens",
        "mixed_chunk": "as measured" if plan.mixed_chunk == "auto" else f"{plan.mixed_chunk} tokens",
        "max_concurrency": f"{plan.max_concurrency}",
        "numerics": options.numerics,
        "threads": f"{options.threads}",
        "isa": f"{options.isa}",
        "weights_memory": options.weights_memory,
    }
    reasons = {choice.field: choice.reason for choice in plan.choices}
    lines.append("")
    for name, value in facts.items():
        reason = f"  ({reasons[name]})" if name in reasons else ""
        lines.append(f"{name:<{width}}  {value}{reason}")
    lines += ["", f"{'digest':<{width}}  {plan.digest}"]
    return "\n".join(lines) + "\n"


def _prefix_facts(plan: EnginePlan) -> dict[str, str]:
    facts = {"prefix_reuse": "off" if plan.prefix is None else "on"}
    if plan.state is not None:
        facts["snapshot_mib"] = f"{plan.state.max_snapshots} snapshots"
        if plan.prefix is not None:
            facts["snapshot_interval"] = f"{plan.prefix.snapshot_interval} tokens"
    return facts


def _draft_facts(plan: EnginePlan) -> dict[str, str]:
    made = plan.speculation
    if made is None:
        return {}
    facts = {"spec": f"{made.method}, accepted by {made.rule}", "draft_tokens": f"{made.window}"}
    if made.draft_digest is not None:
        tokens = "all tokens" if made.shortlist is None else f"a shortlist of {made.shortlist} tokens"
        facts["draft"] = f"{plan.config.draft or 'of the model itself'}, choosing from {tokens}"
    return facts


def _state_facts(plan: EnginePlan) -> dict[str, str]:
    if plan.state is None:
        return {}
    options = plan.options
    kept = f"{options.num_state_slots} slot{'s'[: options.num_state_slots > 1]}"
    if options.num_journals:
        kept += f", {options.num_journals} journals of {options.journal_rows} rows"
    return {"state": kept, "rollback": plan.state.layout.rollback}
