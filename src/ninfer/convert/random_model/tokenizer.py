"""A tokenizer for random models: byte-level, with as many ids as a real one, every one of which can be decoded.

Ids from 0: the 256 bytes, a few merged pairs, words that no merge reaches, and the control tokens of the family at the
end, where its tokenizers have them. Text becomes mostly single bytes; what a random model says becomes words.
"""

from __future__ import annotations

import json
from typing import Any, Final

from ninfer.errors import ConfigError
from ninfer.text.byte_alphabet import BYTE_TO_CHAR
from ninfer.text.gguf_tokenizer import tokenizer_json_from_gguf

_MERGES: Final = ("\u0120 t", "h e", "i n", "r e", "o n", "\u0120t he", "e r", "a t")
NUM_CONTROL: Final = 33
# Place among the control tokens -> text. The others have no name here.
_NAMED: Final = {
    0: "<|endoftext|>",
    1: "<|im_start|>",
    2: "<|im_end|>",
    9: "<|vision_start|>",
    10: "<|vision_end|>",
    12: "<|image_pad|>",
    13: "<|video_pad|>",
    24: "<think>",
    25: "</think>",
}
_THINKING: Final = ("<think>", "</think>")
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_LETTERS: Final = "etaoinshrdlu"
LEAST_IDS: Final = 256 + len(_MERGES) + NUM_CONTROL

TEMPLATE: Final = (
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n<think>\n"
    "{%- if enable_thinking is defined and not enable_thinking %}\n</think>\n\n{% endif %}{% endif %}"
)


def tokenizer_metadata(num_ids: int) -> dict[str, Any]:
    """The tokenizer in the words of GGUF. ConfigError unless there is room for bytes, merges and control tokens."""
    if num_ids < LEAST_IDS:
        raise ConfigError(f"a vocabulary of {num_ids} ids; this tokenizer needs at least {LEAST_IDS}")
    merged = [merge.replace(" ", "") for merge in _MERGES]
    control = [_NAMED.get(i, f"<|reserved_{i}|>") for i in range(NUM_CONTROL)]
    num_words = num_ids - LEAST_IDS
    tokens = [*BYTE_TO_CHAR.values(), *merged, *(_word(i) for i in range(num_words)), *control]
    kinds = [_USER_DEFINED if text in _THINKING else _CONTROL for text in control]
    first = num_ids - NUM_CONTROL
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_NORMAL] * first + kinds,
        "tokenizer.ggml.merges": list(_MERGES),
        "tokenizer.ggml.eos_token_id": first + 2,
        "tokenizer.ggml.padding_token_id": first,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def tokenizer_files(num_ids: int) -> dict[str, bytes]:
    """The files of a checkpoint directory that concern text, by name."""
    metadata = tokenizer_metadata(num_ids)
    first = num_ids - NUM_CONTROL
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "add_bos_token": False,
    }
    ids = {"eos_token_id": [first + 2, first], "pad_token_id": first}
    return {
        "tokenizer.json": tokenizer_json_from_gguf(metadata),
        "tokenizer_config.json": _json(settings),
        "chat_template.jinja": TEMPLATE.encode(),
        "generation_config.json": _json(ids),
    }


def _word(index: int) -> str:
    """A space and at least five letters, different for every index."""
    letters = [_LETTERS[index // 12**place % 12] for place in range(5)]
    rest = index // 12**5
    return "\u0120" + "".join(letters) + (f"{rest}" if rest else "")


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode("utf-8")
