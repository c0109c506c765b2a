"""What may be chosen about data and training; no torch, so that a command line can show it without."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from ninfer.errors import ConfigError


def _about(text: str, default: Any) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class DataSettings:
    """How responses are made and captured; ConfigError names a value that cannot be."""

    max_new: int = _about("Tokens of a response at most.", 160)
    max_context: int = _about("Tokens of prompt and response together that fit; longer prompts are an error.", 512)
    lanes: int = _about("Responses made at the same time.", 16)
    threads: int = _about("Threads of the engine and of torch.", 2)

    def __post_init__(self) -> None:
        _check_counts(self, [declared.name for declared in fields(self)])


@dataclass(frozen=True)
class TrainSettings:
    """How a head is trained; ConfigError names a value that cannot be."""

    steps: int = _about("Optimiser steps.", 1500)
    batch_columns: int = _about("Padded columns of one step.", 1024)
    chain: int = _about("Draft tokens trained in a row, each on the head's own output.", 3)
    learning_rate: float = _about("Peak of AdamW's learning rate.", 3e-4)
    warmup: float = _about("Share of steps in which the rate rises.", 0.1)
    clip: float = _about("Largest norm of the gradient.", 1.0)
    decay: float = _about("Weight of a draft token against the one before.", 0.8)
    floor: float = _about("Weight left to what follows a wrong draft token.", 0.3)
    peak: float = _about("Share of the goal that is the target's first choice alone.", 0.5)
    loss_words: int = _about("Vocabulary rows that the loss compares, the most frequent ones.", 8192)
    shortlist: int = _about("Vocabulary rows that can be drafted, the most frequent ones.", 16384)
    seed: int = _about("Of the start and of the order of data.", 0)
    checkpoint_every: int = _about("Steps between checkpoints.", 50)

    def __post_init__(self) -> None:
        _check_counts(self, ("steps", "batch_columns", "chain", "loss_words", "shortlist", "checkpoint_every"))
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("warmup", "decay", "floor", "peak"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be in [0, 1]")
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}; it must be at least 0")


def _check_counts(settings: object, names: Iterable[str]) -> None:
    for name in names:
        if getattr(settings, name) < 1:
            raise ConfigError(f"{name} is {getattr(settings, name)}; it must be at least 1")
