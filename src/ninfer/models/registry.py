"""Model families by the architecture name that artifacts carry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from ninfer.errors import UnsupportedError
from ninfer.models.companion import COMPANIONS
from ninfer.models.llama import LlamaConfig
from ninfer.models.qwen3_5 import Qwen35Config
from ninfer.ops.graph import Feature, Graph


class ModelConfig(Protocol):
    """What loading and engines need of any family's configuration; frozen."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def num_decodable(self) -> int:
        """Ids from 0 that a tokenizer can decode, of `vocab_size` rows: as many logits a step gives."""
        ...

    @property
    def head_name(self) -> str:
        """The weight that makes logits; the embedding where the two are one."""
        ...

    @property
    def hidden_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def max_position(self) -> int: ...
    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight by name: matrices `[N, K]` and float32 vectors `[W]`."""
        ...

    def record(self, g: Graph, features: Collection[Feature] = ()) -> None:
        """Record the whole forward into an empty graph and mark its logits and the wanted features, each
        `[T, hidden_size]`. Logits do not depend on features."""
        ...


ReadConfig = Callable[..., ModelConfig]

_FAMILIES: dict[str, ReadConfig] = {"llama": LlamaConfig.read, "qwen3_5": Qwen35Config.read}

NAMES: tuple[str, ...] = tuple(_FAMILIES)


def read_config(architecture: str, config: Mapping[str, Any], *, file: object = None) -> ModelConfig:
    """The checked configuration; UnsupportedError for an unknown family, ArtifactError for a wrong field."""
    if architecture in COMPANIONS:
        raise UnsupportedError(f"{file} is a draft, not a model; run the model it was made for with --draft {file}")
    if architecture not in _FAMILIES:
        raise UnsupportedError(f"architecture {architecture!r} is not supported; known: {', '.join(NAMES)}")
    return _FAMILIES[architecture](config, file=file)
