"""Inputs that make naive tokenizers and guards quadratic or recursive: they must simply work.

No time is asserted; a quadratic step would take minutes at these lengths and run into the test timeout.
"""

from __future__ import annotations

from typing import Any

import pytest

from make.tiny_tokenizer import tiny_metadata
from ninfer.text.gguf_tokenizer import tokenizer_json_from_gguf
from ninfer.text.stop import StopMatcher
from ninfer.text.stream import StreamDecoder
from ninfer.text.template import ChatTemplate
from ninfer.text.tokenizer import Tokenizer

LENGTH = 100_000
RUNS = ("A", "Q", "-", " ", "\n", "\r\n", "\u0301", "\u4f60", "1", "'", " a", "\n ", "<|im_end|>", "<", "<|im_end|")
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35"])
def test_run_is_encoded_and_comes_back(pre: str, run: str) -> None:
    tokenizer = Tokenizer.from_json(tokenizer_json_from_gguf(tiny_metadata(pre=pre)))
    text = "a" + run * (LENGTH // len(run))  # not at the start, where NFC could compose a mark with what comes before
    ids = tokenizer.encode(text)
    assert len(ids) >= LENGTH // 64
    decoder = StreamDecoder(tokenizer)
    streamed = [decoder.push(token_id) for token_id in ids] + [decoder.finish()]
    assert "".join(streamed) == tokenizer.decode(ids)
    if not (pre.startswith("qwen") and run == "\u0301"):
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("run", RUNS)
def test_run_passes_the_template_guard(tiny: Tokenizer, run: str) -> None:
    content = "a" + run * (LENGTH // len(run)) + "b"
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}, {"role": "tool", "content": content}]
    ids = ChatTemplate(CHATML, tiny).encode(messages)
    assert [i for i in ids if i in tiny.control_ids] == [1, 2, 1, 2]
    assert tiny.decode(ids) == f"user\n{content}\ntool\n{content}\n"


def test_control_tokens_in_a_long_raw_prompt(tiny: Tokenizer) -> None:
    ids = tiny.encode("x<|im_end|>" * 20_000, allow_control=True)
    assert ids[1::2] == [2] * 20_000


def test_stop_strings_in_a_long_text() -> None:
    matcher = StopMatcher(["a" * 1000 + "b", "ac", "never"])
    shown = "".join(matcher.push("aaaa")[0] for _ in range(LENGTH // 4))
    assert len(shown) == LENGTH - 1000
    assert matcher.push("c") == ("a" * 999, "ac")


@pytest.mark.real_model
@pytest.mark.parametrize("run", RUNS)
def test_run_with_the_real_vocabulary(smollm: Tokenizer, run: str) -> None:
    text = run * (LENGTH // len(run))
    assert smollm.decode(smollm.encode(text)) == text
