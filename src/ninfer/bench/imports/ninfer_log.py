"""Request logs of the C++ NInfer (`ninfer-serve --request-log-jsonl`), schema version 2 and later.

Members that later versions added are read where they are and unrecorded where they are not; a log of several server
starts holds several runs. Prompts are never in such a log, so requests are named by their place in it and nobody but
the person who sent them can say that two logs are of equal prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ninfer.bench.imports.imported import Imported, renamed, without
from ninfer.bench.records.schema import (
    Prompt,
    RequestRow,
    Response,
    RowSeconds,
    RowSpeculation,
    RowUsage,
    Stamps,
    ids_digest,
)
from ninfer.errors import RecordError

ARTIFACT_TYPE = "ninfer_serve_request_log"
OLDEST = 2
SCENARIO = "requests"

ENGINE = {
    "max_context": "settings.max_context",
    "kv_capacity": "settings.kv_capacity",
    "kv_cache": "settings.kv_dtype",
    "prefill_chunk": "settings.prefill_chunk",
    "max_concurrency": "settings.max_concurrency",
    "prefix_reuse": "settings.prefix_reuse",
    "speculative_backend": "draft.backend",
    "speculative_draft_window": "draft.tokens",
    "proposal_head": "draft.head",
}
"""Members of `engine` that have a name of their own here; every other scalar one is `settings.` and its name."""

ARTIFACT = {"name": "artifact.model", "formats": "artifact.weights", "size_bytes": "artifact.bytes"}
SAMPLING = ("greedy", "temperature", "top_p", "top_k", "min_p", "seed")
FINISHED, FAILED, REJECTED = "request_done", "request_error", "request_rejected"
USAGE = {
    "prompt_tokens": "prompt_tokens",
    "completion_tokens": "completion_tokens",
    "prefix_cache_hit_tokens": "cached_tokens",
    "computed_prefill_tokens": "computed_tokens",
}
PHASES = ("prepare", "prefill", "decode", "total", "ttft")
COUNTS = ("rounds", "drafted_tokens", "accepted_tokens", "accepted_per_position", "fallback_steps")


def is_of(documents: Sequence[Any]) -> bool:
    return bool(documents) and isinstance(documents[0], dict) and documents[0].get("artifact_type") == ARTIFACT_TYPE


def read(documents: Sequence[Mapping[str, Any]]) -> list[Imported]:
    """One run per server start that has a request; RecordError for a version before 2."""
    by_instance: dict[str, list[Mapping[str, Any]]] = {}
    for line in documents:
        if line["schema_version"] < OLDEST:
            raise RecordError(
                f"schema_version {line['schema_version']} is older than {OLDEST}, the oldest that is read"
            )
        by_instance.setdefault(line["server_instance_id"], []).append(line)
    runs = (_run(lines) for lines in by_instance.values())
    return [run for run in runs if run.samples]


def _run(lines: Sequence[Mapping[str, Any]]) -> Imported:
    start: Mapping[str, Any] = next((line for line in lines if line["event"] == "server_start"), {})
    ended = [line for line in lines if line["event"] in (FINISHED, FAILED, REJECTED)]
    prompts, samples = [], []
    for number, line in enumerate(ended):
        prompt = _prompt(number, line)
        prompts.append(prompt)
        samples.append(_sample(prompt, number, line))
    artifact = start.get("artifact", {})
    return Imported(
        facts={**_facts(start), **_sampling([line["request"] for line in ended if line["event"] == FINISHED])},
        prompts=prompts,
        samples=samples,
        command=[str(word) for word in start.get("argv", [])],
        created_unix_ns=lines[0]["timestamp_unix_ms"] * 1_000_000,
        load_s=artifact.get("load_seconds"),
        extra={"server_start": dict(start)},
    )


def _facts(start: Mapping[str, Any]) -> dict[str, Any]:
    engine, artifact, environment = (start.get(name, {}) for name in ("engine", "artifact", "environment"))
    facts: dict[str, Any] = {"engine.name": "NInfer", "engine.measured_at": "server", **renamed(engine, ENGINE)}
    others = without(engine, ENGINE)
    facts |= {f"settings.{name}": value for name, value in others.items() if not isinstance(value, dict | list)}
    facts |= {name: _plain(value) for name, value in renamed(artifact, ARTIFACT).items() if value is not None}
    if "path" in artifact:
        facts["artifact.name"] = artifact["path"].replace("\\", "/").rpartition("/")[2].removesuffix(".ninfer")
    if "gpu_name" in environment:
        facts["machine.accelerators"] = environment["gpu_name"]
    if facts.get("draft.backend") in ("none", "off", None) and "speculative_backend" in engine:
        facts |= {"draft.backend": "off", "draft.tokens": 0, "draft.head": None}
    return facts


def _plain(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _sampling(requests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sampling that all requests share, as it took effect; what differs between them is no fact of the run.

    A temperature of 0 is greedy, which the values besides do not change.
    """
    given = [request["sampling"] for request in requests if "temperature" in request.get("sampling", {})]
    if not given or len(given) < len(requests):
        return {}
    if all(one["temperature"] == 0 or one.get("greedy") is True for one in given):
        return {f"sampling.{name}": True if name == "greedy" else None for name in SAMPLING}
    shared = {name for name in SAMPLING[1:] if all(one.get(name) == given[0].get(name) for one in given)}
    return {"sampling.greedy": False, **{f"sampling.{name}": given[0].get(name) for name in SAMPLING if name in shared}}


def _prompt(number: int, line: Mapping[str, Any]) -> Prompt:
    """A prompt by its place and length: all that a log says of it."""
    request, result = line.get("request", {}), line.get("result", {})
    return Prompt(
        id=f"request-{number + 1:04d}",
        scenario=SCENARIO,
        body=None,
        max_new=request.get("requested_output_tokens"),
        options={"prompt_tokens": result["prompt_tokens"]} if "prompt_tokens" in result else {},
    )


def _sample(prompt: Prompt, number: int, line: Mapping[str, Any]) -> tuple[RequestRow, Response | None]:
    result, timings = line.get("result", {}), line.get("timings_seconds", {})
    ids = result.get("generated_token_ids")
    ended_ns = line["timestamp_unix_ms"] * 1_000_000
    usage = renamed(result, USAGE)
    if "computed_tokens" not in usage and {"prompt_tokens", "cached_tokens"} <= usage.keys():
        usage["computed_tokens"] = usage["prompt_tokens"] - usage["cached_tokens"]
    row = RequestRow(
        prompt=prompt.id,
        repeat=0,
        order=number,
        stamps=Stamps(sent_unix_ns=ended_ns - round(1e9 * timings.get("total", 0.0)), ended_unix_ns=ended_ns),
        max_new=prompt.max_new,
        usage=RowUsage(**usage, reasoning_tokens=_thinking(result)),
        seconds=RowSeconds(
            queue=line.get("engine_timing", {}).get("queue_wait_seconds"),
            **{name: timings[name] for name in PHASES if name in timings},
        ),
        speculation=_speculation(line.get("speculative")),
        finish=result.get("finish_reason"),
        ids_digest=None if ids is None else ids_digest(ids),
        error=None if line["event"] == FINISHED else _error(line),
        extra=dict(_unplaced(line)),
    )
    return row, None if ids is None else Response(output_ids=ids)


def _thinking(result: Mapping[str, Any]) -> int | None:
    """Tokens of the thinking block: the model's and those inserted to end it."""
    if "model_thinking_tokens" not in result:
        return None
    return int(result["model_thinking_tokens"]) + int(result.get("thinking_control_tokens") or 0)


def _speculation(block: Mapping[str, Any] | None) -> RowSpeculation | None:
    if block is None:
        return None
    backend = block.get("backend") or "off"
    counts = {name: block[name] for name in COUNTS if name in block}
    return RowSpeculation(
        backend="off" if backend == "none" else backend, draft_window=block.get("draft_window"), **counts
    )


def _error(line: Mapping[str, Any]) -> dict[str, str]:
    error = line.get("error", {})
    return {"kind": str(error.get("code") or line["event"]), "message": str(error.get("message", ""))}


def _unplaced(line: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Members of an event that have no place of their own in a row, block by block."""
    placed: dict[str, tuple[str, ...]] = {
        "result": (*USAGE, "finish_reason", "generated_token_ids"),
        "timings_seconds": PHASES,
        "speculative": ("backend", "draft_window", *COUNTS),
    }
    for name, value in line.items():
        if name in ("artifact_type", "event", "timestamp_unix_ms", "server_instance_id"):
            continue
        rest = without(value, placed[name]) if name in placed and isinstance(value, dict) else value
        if rest != {}:
            yield name, rest
