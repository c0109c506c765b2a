"""What draft companions have in common: the model they were made for, and a shortlist of its vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ninfer.errors import ConfigError
from ninfer.models.blocks import AttentionHeads
from ninfer.models.config_fields import MAX_LAYERS, ConfigFields

COMPANIONS = ("mtp", "dflash", "draft_head")
"""Architectures of files that are no model but belong to one."""

SHORTLIST_HEAD, SHORTLIST_IDS = "shortlist.head", "shortlist.ids"


@dataclass(frozen=True)
class DraftTarget:
    """The model that a companion was made for. weights_digest: as `Artifact.weights_digest` gives it."""

    weights_digest: str
    vocab_size: int
    hidden_size: int
    num_layers: int

    @classmethod
    def read(cls, read: ConfigFields) -> DraftTarget:
        """From the member `target` of a configuration."""
        table = read.table("target", [field.name for field in fields(cls)])
        return cls(
            weights_digest=table.digest("weights_digest"),
            vocab_size=table.size("vocab_size"),
            hidden_size=table.size("hidden_size"),
            num_layers=table.size("num_layers", most=MAX_LAYERS),
        )

    def check(self, present: DraftTarget, *, draft: object, target: object) -> None:
        """ConfigError that names both files and what differs, unless the companion was made for the present model.

        Sizes come first, because they say more than digests do.
        """
        wanted, found = asdict(self), asdict(present)
        for name in ("vocab_size", "hidden_size", "num_layers", "weights_digest"):
            if wanted[name] != found[name]:
                raise ConfigError(
                    f"the draft {draft} was made for a model with {name} {wanted[name]}; {target} has {found[name]}"
                )


@dataclass(frozen=True)
class DraftHead:
    """The matrix that turns hidden rows into draft logits.

    weight: its name; num_rows: its rows; num_logits: those of them, from the first, that can be drafted.
    """

    weight: str
    num_rows: int
    num_logits: int


@dataclass(frozen=True)
class DraftHeadConfig:
    """A shortlist alone, for drafts that have none."""

    target: DraftTarget
    shortlist_size: int

    @classmethod
    def read(cls, config: Mapping[str, Any], *, file: object = None) -> DraftHeadConfig:
        read = ConfigFields(config, [field.name for field in fields(cls)], file=file)
        target = DraftTarget.read(read)
        return cls(target, read.size("shortlist_size", most=target.vocab_size))

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        return shortlist_shapes(self.target, self.shortlist_size)


def read_shortlist(read: ConfigFields, target: DraftTarget) -> int | None:
    """Rows of the shortlist, None without one."""
    return read.find_size("shortlist_size", most=target.vocab_size)


def shortlist_shapes(target: DraftTarget, size: int | None) -> dict[str, tuple[int, ...]]:
    """`head` are rows of the target's head; `ids`, ascending, are the tokens they stand for."""
    return {} if size is None else {SHORTLIST_HEAD: (size, target.hidden_size), SHORTLIST_IDS: (size,)}


def read_heads(read: ConfigFields) -> AttentionHeads:
    """Heads of a draft's attention."""
    heads = AttentionHeads(read.size("num_heads"), read.size("num_kv_heads"), read.size("head_dim"))
    if heads.num_heads % heads.num_kv_heads:
        raise read.error("num_kv_heads", f"{heads.num_kv_heads} do not divide {heads.num_heads} heads")
    return heads
