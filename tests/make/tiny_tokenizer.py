"""GGUF tokenizer metadata of a complete, tiny byte-level vocabulary."""

from __future__ import annotations

from typing import Any

from ninfer.text.byte_alphabet import BYTE_TO_CHAR

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "<s", "[EOS]")
MERGES = (
    *("h e", "l l", "he ll", "hell o", "\u0120 \u0120", "1 2", "\u00e9 \u00bb", "\u00e9\u00bb \u0135"),
    *("< |", "i m", "e n"),
)


def tiny_metadata(*, pre: str = "gpt-2", **changes: Any) -> dict[str, Any]:
    """Six control tokens (ids 0..5), one token per byte (6..261), a few merges, `<think>` as an added word, one unused.

    `changes`: values of `tokenizer.ggml.<name>`; None leaves the key out.
    """
    merged = ["".join(merge.split(" ")) for merge in MERGES]
    tokens = [*CONTROL, *BYTE_TO_CHAR.values(), *merged, "<think>", "[PAD0]"]
    types = [3] * len(CONTROL) + [1] * (256 + len(merged)) + [4, 5]
    metadata: dict[str, Any] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": types,
        "merges": list(MERGES),
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    metadata.update(changes)
    return {f"tokenizer.ggml.{name}": value for name, value in metadata.items() if value is not None}
