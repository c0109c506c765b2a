"""Small run records with chosen facts and times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ninfer.bench.records.facts import Declaration, Fact
from ninfer.bench.records.schema import (
    Circumstances,
    Inputs,
    Prompt,
    PromptIdentity,
    RequestRow,
    Response,
    RowSeconds,
    RowSpeculation,
    RowUsage,
    RunFile,
    Stamps,
    ids_digest,
)
from ninfer.bench.records.writer import RunWriter

FACTS: dict[str, Any] = {
    "engine.name": "ninfer", "engine.version": "0.1.0", "engine.build": "b1", "engine.measured_at": "engine",
    "artifact.digest": "a1", "artifact.name": "tiny", "artifact.weights": "q4g32",
    "draft.backend": "off", "draft.tokens": 0, "draft.head": None, "draft.digest": None,
    "settings.max_context": 2048, "settings.kv_capacity": 2048, "settings.kv_dtype": "int8",
    "settings.prefill_chunk": 512, "settings.max_concurrency": 1, "settings.prefix_reuse": False,
    "sampling.greedy": True, "sampling.temperature": None, "sampling.top_p": None, "sampling.top_k": None,
    "sampling.min_p": None, "sampling.seed": None,
    "load.pattern": "closed", "load.concurrency": 1, "load.rate": None, "load.nonce": False,
    "machine.processor": "Chip 9", "machine.num_cpus": 2, "machine.memory_bytes": 1 << 30,
    "machine.accelerators": None,
}  # fmt: skip
"""Everything that has to be stated, but for the digest of the inputs."""

UNSTATED = object()
"""As the value of a fact: the run does not state it."""


def make_prompts(*ids: str, max_new: int = 64) -> list[Prompt]:
    return [Prompt(id=name, scenario=name, body=f"say {name}", max_new=max_new) for name in ids]


def make_run(name: str, prompts: Sequence[Prompt], changes: Mapping[str, Any] | None = None, **members: Any) -> RunFile:
    """A run that states every required fact; `changes` replace or remove (UNSTATED) some."""
    inputs = Inputs(name="test", version="1", prompts=[PromptIdentity(id=p.id, digest=p.digest) for p in prompts])
    values = {**FACTS, "inputs.digest": inputs.digest, **(changes or {})}
    facts = {
        key: value if isinstance(value, Fact) else Fact(value, "chosen")
        for key, value in values.items()
        if value is not UNSTATED
    }
    fields: dict[str, Any] = {
        "created_unix_ns": 1, "command": ["bench", name], "circumstances": Circumstances(boot="boot"), **members
    }  # fmt: skip
    return RunFile(name=name, facts=facts, inputs=inputs, **fields)


def make_row(
    prompt: str = "a",
    repeat: int = 0,
    *,
    prefill_s: float = 0.1,
    decode_s: float = 1.0,
    completion: int = 33,
    rounds: int | None = None,
    window: int = 0,
    sent_s: float = 0.0,
    **members: Any,
) -> RequestRow:
    """A request without queueing: 16 prompt tokens, `completion - 1` tokens in `decode_s`.

    rounds: with fewer than `completion - 1` the other tokens were accepted drafts of a window of `window`.
    """
    rounds = completion - 1 if rounds is None else rounds
    accepted = completion - 1 - rounds
    total = prefill_s + decode_s
    fields: dict[str, Any] = {
        "usage": RowUsage(
            prompt_tokens=16, cached_tokens=0, computed_tokens=16, completion_tokens=completion, reasoning_tokens=0
        ),
        "seconds": RowSeconds(
            load=0.0, prepare=0.0, queue=0.0, prefill=prefill_s, decode=decode_s, total=total, ttft=prefill_s
        ),
        "speculation": RowSpeculation(
            backend="mtp" if window else "off",
            draft_window=window,
            rounds=rounds,
            drafted_tokens=rounds * window,
            accepted_tokens=accepted,
        ),
        "stamps": Stamps(sent_unix_ns=int(sent_s * 1e9), ended_unix_ns=int((sent_s + total) * 1e9)),
        "finish": "stop_token",
        "is_empty": False,
        "max_new": 64,
        **members,
    }
    return RequestRow(prompt=prompt, repeat=repeat, **fields)


def make_sample(prompt: str = "a", repeat: int = 0, ids: Sequence[int] = (5, 6, 7), **members: Any) -> Any:
    """A row and its response."""
    row = make_row(prompt, repeat, completion=len(ids), **members)
    row = msgspec.structs.replace(row, ids_digest=ids_digest(list(ids)))
    return row, Response(output_ids=list(ids), text=f"{prompt} {repeat}")


def write_run(
    directory: Path, run: RunFile, prompts: Sequence[Prompt], rows: Iterable[RequestRow | tuple[RequestRow, Response]]
) -> Path:
    """The record of a finished run."""
    with RunWriter(directory, run, prompts) as writer:
        for sample in rows:
            row, response = sample if isinstance(sample, tuple) else (sample, None)
            writer.append(row, response)
        writer.finish()
    return directory


def declaration(label: str, *covers: str) -> Declaration:
    return Declaration(label=label, by="the tester", covers=list(covers))
