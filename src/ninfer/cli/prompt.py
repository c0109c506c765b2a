"""The prompt of `ninfer run`: which of its three forms was given, and its token ids for a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ninfer.cli.messages import read_conversation
from ninfer.cli.output import notice
from ninfer.cli.template_variables import Variables, check_variables
from ninfer.errors import RequestError
from ninfer.text.template import ChatTemplate
from ninfer.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PromptText:
    """A text: one user turn of the model's chat template, or plain text to be completed.

    raw: plain text even if there is a template.
    """

    text: str
    raw: bool

    def ids(self, tokenizer: Tokenizer | None, template: ChatTemplate | None, variables: Variables) -> list[int]:
        tokenizer = _require_tokenizer(tokenizer)
        check_variables(variables, None if self.raw else template)
        if self.raw:
            return tokenizer.encode_prompt(self.text)
        if template is None:
            notice("this model has no chat template; the prompt is completed as plain text (--raw says so)")
            return tokenizer.encode_prompt(self.text)
        return template.encode([{"role": "user", "content": self.text}], variables=variables)


@dataclass(frozen=True, slots=True)
class PromptMessages:
    """A conversation, each message with `role` and `content`, and tools if any; needs a chat template."""

    messages: list[Any]
    tools: list[Any] | None = None

    def ids(self, tokenizer: Tokenizer | None, template: ChatTemplate | None, variables: Variables) -> list[int]:
        check_variables(variables, template)
        return require_template(template).encode(self.messages, tools=self.tools, variables=variables)


@dataclass(frozen=True, slots=True)
class PromptIds:
    """Token ids as they are; needs neither tokenizer nor template."""

    token_ids: list[int]

    def ids(self, tokenizer: Tokenizer | None, template: ChatTemplate | None, variables: Variables) -> list[int]:
        check_variables(variables, None)
        return self.token_ids


Prompt = PromptText | PromptMessages | PromptIds


def parse_prompt(*, prompt: str | None, messages: str | None, prompt_ids: str | None, raw: bool) -> Prompt:
    """The one prompt of a command line. RequestError unless exactly one form is given, or when it cannot be read."""
    given = [
        flag
        for flag, value in (("--prompt", prompt), ("--messages", messages), ("--prompt-ids", prompt_ids))
        if value is not None
    ]
    if len(given) != 1:
        seen = f"got {' and '.join(given)}" if given else "got none"
        raise RequestError(f"give exactly one of --prompt, --messages and --prompt-ids, {seen}", param="prompt")
    if raw and prompt is None:
        raise RequestError(f"--raw goes with --prompt; it means nothing for {given[0]}", param="raw")
    if prompt is not None:
        return PromptText(prompt, raw)
    if messages is not None:
        return PromptMessages(*read_conversation(messages))
    return PromptIds(parse_ids(prompt_ids or ""))


def parse_ids(text: str) -> list[int]:
    """Token ids separated by commas, spaces allowed. RequestError names the part that is none."""
    ids = []
    for part in text.split(","):
        word = part.strip()
        if not (word.isascii() and word.isdigit()):
            raise RequestError(f"--prompt-ids takes token ids like 1,2,3; {part!r} is none", param="prompt_ids")
        ids.append(int(word))
    return ids


def require_template(template: ChatTemplate | None) -> ChatTemplate:
    """The template of a model that must have one for a conversation."""
    if template is None:
        raise RequestError(
            "this model has no chat template, so it takes no conversation; use `ninfer run --raw --prompt TEXT`",
            kind="unsupported_field",
            param="messages",
        )
    return template


def _require_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    if tokenizer is None:
        raise RequestError("this model has no tokenizer; give token ids with --prompt-ids", param="prompt")
    return tokenizer
