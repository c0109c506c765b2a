"""What a run states of itself, fact by fact: the vocabulary that comparisons are made in.

A fact that a run does not state is unrecorded, which is a value of its own and equal to nothing. A fact that does not
apply (a draft window without drafts) is stated as null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

Scalar = str | int | float | bool | None
Value = Scalar | list[Scalar]

Origin = Literal["chosen", "default", "auto", "observed", "declared"]
"""chosen: the operator set it; default: the operator left it; auto: decided by a planner from other facts; observed:
read from the system, a file or a server; declared: a person says so."""


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One stated fact. reason: why a planner decided so, or on whose word a fact is declared."""

    value: Value
    origin: Origin
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a named fact means. is_required: a run that does not state it is compared with none.

    follows: facts of which this one is a consequence, so that a difference here is no difference of its own when one of
    them differs as well. owner: a fact that this one is a property of; where it differs and this one is null on one
    side, it does not apply there, and that is no difference of its own either.
    """

    text: str
    is_required: bool = True
    follows: tuple[str, ...] = ()
    owner: str | None = None


ARTIFACT_PARTS = ("artifact.model", "artifact.container", "artifact.weights")

FACTS: dict[str, Meaning] = {
    "engine.name": Meaning("the program that computed the tokens"),
    "engine.version": Meaning("its version", follows=("engine.name",)),
    "engine.build": Meaning("identity of its source and binary", follows=("engine.name", "engine.version")),
    "engine.measured_at": Meaning("where times were taken: engine, server or client"),
    "artifact.digest": Meaning("identity of the model file's content", follows=ARTIFACT_PARTS),
    "artifact.model": Meaning("what was converted into it, as far as the file says", is_required=False),
    "artifact.container": Meaning("kind and version of the file format", is_required=False),
    "artifact.weights": Meaning("formats of the weights", is_required=False),
    "artifact.name": Meaning("name of the model file", False, ("artifact.digest", *ARTIFACT_PARTS)),
    "artifact.bytes": Meaning("size of the model file", False, ("artifact.digest", *ARTIFACT_PARTS)),
    "draft.backend": Meaning("where drafts come from; off without speculation"),
    "draft.tokens": Meaning(
        "draft window: tokens drafted at most in a round", follows=("draft.backend", "draft.adaptive")
    ),
    "draft.head": Meaning("vocabulary head of the drafts: full or optimized (a shortlist)", owner="draft.backend"),
    "draft.adaptive": Meaning("whether shorter windows are used where they pay", False, owner="draft.backend"),
    "draft.rule": Meaning("when a draft is accepted", False, owner="draft.backend"),
    "draft.digest": Meaning("identity of a draft model's own file, null without one", follows=("draft.backend",)),
    "settings.max_context": Meaning("tokens that one sequence may have"),
    "settings.kv_capacity": Meaning("tokens of KV memory"),
    "settings.kv_dtype": Meaning("storage of keys and values"),
    "settings.prefill_chunk": Meaning("prompt tokens per step"),
    "settings.max_concurrency": Meaning("sequences that may run at the same time"),
    "settings.prefix_reuse": Meaning("whether prompts may reuse the state of earlier ones"),
    "sampling.greedy": Meaning("whether every token is the most probable one"),
    "sampling.temperature": Meaning("", follows=("sampling.greedy",)),
    "sampling.top_p": Meaning("", follows=("sampling.greedy",)),
    "sampling.top_k": Meaning("", follows=("sampling.greedy",)),
    "sampling.min_p": Meaning("", follows=("sampling.greedy",)),
    "sampling.seed": Meaning("what random draws are keyed by; null for greedy", follows=("sampling.greedy",)),
    "inputs.digest": Meaning("identity of all prompts and their output limits"),
    "load.pattern": Meaning("closed: a request is sent when another ends; open: at planned times"),
    "load.concurrency": Meaning("requests in flight of a closed pattern", follows=("load.pattern",)),
    "load.rate": Meaning("requests per second of an open pattern", follows=("load.pattern",)),
    "load.nonce": Meaning("whether prompts are made unlike earlier ones so that nothing is reused"),
    "machine.processor": Meaning("name of the processor"),
    "machine.num_cpus": Meaning("CPUs the engine may use"),
    "machine.memory_bytes": Meaning("memory of the machine"),
    "machine.accelerators": Meaning("names of the accelerators used, null without"),
}
"""Known facts, from the engine outwards. A run may state others besides: then every run it is compared with has to."""


class Declaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Somebody's word for facts that were not recorded one by one.

    Where two runs lack a fact and both have a declaration of the same `label` that covers it, it is taken as equal, and
    every report says on whose word. Different labels say that something differs, not what. covers: names of facts, or
    beginnings of names that end with a dot; an empty list covers every fact.
    """

    label: str
    by: str
    covers: list[str] = msgspec.field(default_factory=list)

    def does_cover(self, name: str) -> bool:
        return not self.covers or any(
            name == covered or (covered.endswith(".") and name.startswith(covered)) for covered in self.covers
        )
