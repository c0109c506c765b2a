"""How a model is to be run: chosen once at load, never edited afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ninfer.errors import ConfigError

Numerics = Literal["a8", "a8g32", "f32", "w4a4"]
KVFormat = Literal["int8", "bf16"]
WeightsMemory = Literal["auto", "huge", "mapped"]
BackendName = Literal["cpu", "reference"]


@dataclass(frozen=True)
class RuntimeOptions:
    """Everything a backend needs to know besides graph and weights; ConfigError names a field that cannot be.

    numerics: `a8` turns activation rows into two int8 digits for products with packed weights, `a8g32` into one per
    value with a scale per 32; `f32` is exact; `w4a4` turns them into NVFP4 for nvfp4 weights that have an input scale
    and is `a8` for everything else.
    kv_format: storage of keys and values (quant-formats.md section 8).
    num_pages: KV pages of 64 tokens, shared by all sequences.
    max_rows: most rows (tokens) of one step; max_logit_rows: most rows of one step whose logits are wanted.
    num_state_slots: recurrent states that can be held, each of one sequence at one position; 0 if the model has none.
    num_journals: row journals of recurrent layers, of `journal_rows` rows each (`ops.batch.StateAccess`).
    isa: instruction set to restrict to, or None for the best this CPU has.
    weights_memory: `huge` copies weights once into transparent huge pages, `mapped` reads the file in place,
    `auto` takes `huge` where it exists and fits.
    """

    numerics: Numerics = "a8"
    kv_format: KVFormat = "int8"
    num_pages: int = 128
    max_rows: int = 512
    max_logit_rows: int = 16
    num_state_slots: int = 0
    num_journals: int = 0
    journal_rows: int = 0
    threads: int = 1
    isa: str | None = None
    backend: BackendName = "cpu"
    weights_memory: WeightsMemory = "auto"

    def __post_init__(self) -> None:
        words = {"numerics": Numerics, "kv_format": KVFormat, "backend": BackendName, "weights_memory": WeightsMemory}
        for name, choices in words.items():
            if getattr(self, name) not in get_args(choices):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; allowed: {', '.join(get_args(choices))}")
        for name in ("num_pages", "max_rows", "max_logit_rows", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("num_state_slots", "num_journals", "journal_rows"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 0")
        if (self.num_journals == 0) != (self.journal_rows == 0):
            raise ConfigError(f"{self.num_journals} journals of {self.journal_rows} rows; both are 0, or none is")
