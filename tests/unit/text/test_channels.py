"""Thinking and answer told apart: no half tag, and the same however the text is cut."""

from __future__ import annotations

import pytest

from make.tiny_tokenizer import tiny_metadata
from ninfer.text.channels import Channel, ThinkingSplitter, ThinkingTags, thinking_start
from ninfer.text.gguf_tokenizer import tokenizer_json_from_gguf
from ninfer.text.tokenizer import Tokenizer

# (prompt opened it, text, thinking, answer)
TEXTS = [
    (True, "a</think>b", "a", "b"),
    (True, "\n\na\n\nb\n</think>\n\nc\n", "a\n\nb", "c\n"),
    (True, "", "", ""),
    (True, "\n", "", ""),
    (True, "</think>", "", ""),
    (True, "\n</think>\n\nx", "", "x"),
    (True, "a </thin", "a ", ""),
    (True, "a\n</thi", "a", ""),
    (True, "a < b </b> </thinking> </think", "a < b </b> </thinking> ", ""),
    (True, "a</think>b</think>c<think>d", "a", "b</think>c<think>d"),
    (True, "<</think>", "<", ""),
    (True, "cut short\n\n", "cut short", ""),
    (False, "<think>a</think>b", "a", "b"),
    (False, "\n <think>\na\n</think>\n\nb", "a", "b"),
    (False, "<thin", "", "<thin"),
    (False, "\n\n<think", "", "\n\n<think"),
    (False, "\n\nplain\n", "", "\n\nplain\n"),
    (False, "  ", "", "  "),
    (False, "x <think>a</think>", "", "x <think>a</think>"),
    (False, "<think>\u00e9\U0001f600", "\u00e9\U0001f600", ""),
]


def split(parts: list[str], *, is_open: bool) -> tuple[str, str]:
    splitter = ThinkingSplitter(is_open=is_open)
    pieces = [*(splitter.push(part) for part in parts), splitter.finish()]
    return "".join(p.thinking for p in pieces), "".join(p.answer for p in pieces)


@pytest.mark.parametrize(("is_open", "text", "thinking", "answer"), TEXTS)
def test_every_cut_gives_the_same_channels(is_open: bool, text: str, thinking: str, answer: str) -> None:
    """C093."""
    assert split([text], is_open=is_open) == (thinking, answer)
    for cut in range(len(text) + 1):
        assert split([text[:cut], text[cut:]], is_open=is_open) == (thinking, answer)
    for size in range(1, 17):
        parts = [text[i : i + size] for i in range(0, len(text), size)]
        assert split(parts, is_open=is_open) == (thinking, answer)


def test_what_is_certain_is_shown_at_once() -> None:
    splitter = ThinkingSplitter(is_open=True)
    assert splitter.push("one").thinking == "one"
    assert splitter.push("two\n").thinking == "two"
    assert splitter.push("three<").thinking == "\nthree"
    assert splitter.push("b").thinking == "<b"
    assert splitter.push("</think>x").answer == "x"
    assert splitter.channel is Channel.ANSWER


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_json(tokenizer_json_from_gguf(tiny_metadata()))


@pytest.mark.parametrize(
    ("prompt", "start"),
    [
        ("<|im_start|>assistant\n<think>\n", "open"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "closed"),
        ("<|im_start|>assistant\n", "possible"),
        ("<|im_start|>user\n<think>\n<|im_end|>\n<|im_start|>assistant\n", "possible"),
        ("<|im_start|>user\n</think><|im_end|>\n<|im_start|>assistant\n<think>", "open"),
        ("no control tokens <think> here", "possible"),
    ],
)
def test_how_a_prompt_leaves_thinking(tokenizer: Tokenizer, prompt: str, start: str) -> None:
    """A tag in a user's text is not the template's."""
    assert thinking_start(tokenizer.encode(prompt, allow_control=True), tokenizer) == start


def test_tags_of_a_vocabulary(tokenizer: Tokenizer) -> None:
    tags = ThinkingTags.of(tokenizer)
    assert tags.open_id is not None
    assert tokenizer.decode([tags.open_id]) == "<think>"
    assert tokenizer.decode(tags.close_ids) == "\n</think>\n\n"
    assert tokenizer.decode(tags.behind_ids) == "\n\n"
    assert tags.control_ids == frozenset()
