"""Variables of the chat template from the command line: what is set arrives, what nothing reads is refused."""

from __future__ import annotations

from typing import Any

import pytest

from make.tiny_qwen import TEMPLATE
from make.tiny_tokenizer import tiny_metadata
from ninfer.cli.prompt import parse_prompt
from ninfer.cli.template_variables import pop_variables
from ninfer.errors import RequestError
from ninfer.text.gguf_tokenizer import tokenizer_json_from_gguf
from ninfer.text.template import ChatTemplate
from ninfer.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_json(tokenizer_json_from_gguf(tiny_metadata(pre="qwen35")))
CHAT = ChatTemplate(TEMPLATE, TOKENIZER)


def options(**given: Any) -> dict[str, Any]:
    return {"thinking": None, "reasoning_effort": None, "template_arg": (), **given}


def rendered(**given: Any) -> str:
    """What follows the assistant's header in the prompt of one user turn."""
    source = parse_prompt(prompt="hello", messages=None, prompt_ids=None, raw=False)
    ids = source.ids(TOKENIZER, CHAT, pop_variables(options(**given)))
    return TOKENIZER.decode(ids).rpartition("assistant\n")[2]


def test_the_template_knows_its_variables() -> None:
    assert CHAT.variables == {"enable_thinking", "reasoning_effort", "preserve_thinking"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "<think>\n"),
        ({"thinking": True}, "<think>\n"),
        ({"thinking": False}, "<think>\n\n</think>\n\n"),
        ({"reasoning_effort": "low"}, "<think>\neffort low\n"),
        ({"template_arg": ("preserve_thinking=false",)}, "<think>\npreserve False\n"),
        ({"template_arg": ("reasoning_effort=high", "enable_thinking=true")}, "<think>\neffort high\n"),
        ({"template_arg": ("reasoning_effort=a=b c",)}, "<think>\neffort a=b c\n"),
        ({"template_arg": ('reasoning_effort="3"',)}, "<think>\neffort 3\n"),
    ],
    ids=str,
)
def test_what_is_set_arrives(given: dict[str, Any], text: str) -> None:
    assert rendered(**given) == text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"template_arg": ("x=1",)}, "no variable 'x'; it has: enable_thinking, preserve_thinking, reasoning_effort"),
        ({"template_arg": ("messages=1",)}, "no variable 'messages'"),
        ({"template_arg": ("nothing",)}, "takes NAME=VALUE, got 'nothing'"),
        ({"template_arg": ("a-b=1",)}, "takes NAME=VALUE, got 'a-b=1'"),
        ({"template_arg": ("enable_thinking=1",), "thinking": False}, "'enable_thinking' is set twice"),
    ],
    ids=str,
)
def test_what_nothing_reads_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        rendered(**given)


@pytest.mark.parametrize("prompt", [{"prompt": "a", "raw": True}, {"prompt_ids": "1,2"}], ids=str)
def test_without_a_template_there_is_nothing_to_set(prompt: dict[str, Any]) -> None:
    source = parse_prompt(**{"prompt": None, "messages": None, "prompt_ids": None, "raw": False, **prompt})
    with pytest.raises(RequestError, match="'enable_thinking' sets a variable of a chat template, and none is used"):
        source.ids(TOKENIZER, CHAT, {"enable_thinking": False})
    assert source.ids(TOKENIZER, CHAT, {})
