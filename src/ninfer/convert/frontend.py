"""What travels with the weights: checked tokenizer and template, and the ids that end an answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ninfer.convert.fields import Fields, naming
from ninfer.convert.names.source_model import SourceModel
from ninfer.errors import ArtifactError
from ninfer.text.frontend import load_frontend
from ninfer.text.tokenizer import Tokenizer

TOKENIZER: Final = "frontend/tokenizer.json"
TOKENIZER_CONFIG: Final = "frontend/tokenizer_config.json"
CHAT_TEMPLATE: Final = "frontend/chat_template.jinja"
GENERATION_CONFIG: Final = "frontend/generation_config.json"

# Control tokens that end an answer in every model that has them. Checkpoints often declare one of several, and then
# the reply runs on behind another.
END_TEXTS: Final = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "</s>",
)


def check_frontend(resources: Mapping[str, bytes], vocab_size: int, file: Path) -> Tokenizer | None:
    """Load tokenizer and template as the engine will; None without a tokenizer.

    Raises ArtifactError if they are broken or do not fit the embedding, ConversionError if we do not support them.
    """
    with naming(file):
        tokenizer, template = load_frontend(resources.get)
        if template is not None:
            template.prepare()
    if tokenizer is not None and tokenizer.vocab_size > vocab_size:
        message = f"has ids up to {tokenizer.vocab_size - 1}, the embedding has only {vocab_size} rows"
        raise ArtifactError(message, file=file, field="tokenizer")
    return tokenizer


def stop_token_ids(declared: Iterable[int], tokenizer: Tokenizer | None) -> list[int]:
    """All ids that end an answer: the declared ones first, then control tokens known to end one; each once."""
    control = tokenizer.control_tokens if tokenizer is not None else {}
    known = [control[text] for text in END_TEXTS if text in control]
    return list(dict.fromkeys([*declared, *known]))


def decodable(model: SourceModel, tokenizer: Tokenizer | None) -> dict[str, int]:
    """How many ids can be decoded, if the family asks: those of the tokenizer, all rows without one."""
    if not model.counts_decodable:
        return {}
    return {"num_decodable": model.config["vocab_size"] if tokenizer is None else tokenizer.vocab_size}


def token_ids(fields: Fields, key: str, vocab_size: int) -> list[int]:
    """The token ids stored under `key`: one, a list, or none; each must be a row of the embedding."""
    value: Any = fields.values.get(key)
    if value is None:
        return []
    items = value if isinstance(value, list) else [value]
    for item in items:
        if isinstance(item, bool) or not isinstance(item, int):
            fields.fail(key, f"must be token ids, not {item!r:.60}")
        if not 0 <= item < vocab_size:
            fields.fail(key, f"is {item}, which is no token id below {vocab_size}")
    return items
