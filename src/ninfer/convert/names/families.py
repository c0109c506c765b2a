"""Which family reads which kind of checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from ninfer.convert.fields import Fields
from ninfer.convert.names import llama, qwen3_5
from ninfer.convert.names.source_model import SourceModel

ReadHuggingFace = Callable[[Fields, Collection[str]], SourceModel]
"""(config.json, names of all tensors) -> the model; raises ArtifactError or ConversionError by key or tensor."""

ReadGGUF = Callable[[Fields, Collection[str], int], SourceModel]
"""(metadata, names of all tensors, rows of the embedding) -> the model; raises as `ReadHuggingFace`."""

HUGGINGFACE: Final[dict[str, ReadHuggingFace]] = {
    llama.HF_CLASS: llama.read_huggingface,
    **dict.fromkeys(qwen3_5.HF_CLASSES, qwen3_5.read_huggingface),
}
"""By the class in `architectures`."""

GGUF: Final[dict[str, ReadGGUF]] = {
    llama.GGUF_ARCHITECTURE: llama.read_gguf,
    qwen3_5.GGUF_ARCHITECTURE: qwen3_5.read_gguf,
}
"""By `general.architecture`."""

GGUF_EMBEDDING: Final = "token_embd.weight"
"""The embedding in every GGUF file; its rows are the vocabulary."""
