"""What a family makes of a checkpoint before any tensor is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer.convert.fields import Fields
from ninfer.convert.names.rules import TensorRule

MAX_VOCAB = 1 << 22


@dataclass(frozen=True)
class SourceModel:
    """A checkpoint in the terms of its family.

    config: our configuration without what only the tokenizer can say: `bos_token_id`, `stop_token_ids`, `pad_token_id`
    and, if `counts_decodable`, `num_decodable`. rules: of the complete configuration, every tensor that is imported.
    embedding, head: what the file calls them. id_fields: where config.json declares token ids. left_out: tensors of the
    file that are not imported. notes: what a person may want to know about.
    """

    architecture: str
    config: Mapping[str, Any]
    rules: Callable[[Mapping[str, Any]], list[TensorRule]]
    embedding: str
    head: str
    id_fields: Fields
    counts_decodable: bool = False
    left_out: Sequence[str] = ()
    notes: Sequence[str] = ()
