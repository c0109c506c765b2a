"""The model a server serves: names, text side, and the sampling it recommends."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ninfer.decoding.grammar import GrammarCompiler
from ninfer.engine import EnginePlan
from ninfer.errors import RequestError
from ninfer.text.channels import CLOSE
from ninfer.text.template import ChatTemplate
from ninfer.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ServedModel:
    """One loaded model as its clients know it.

    id: its public name. sampling: fields of `SamplingParams` that requests start from. identity: which file answers, as
    JSON values. tokenizer, template: None for models that came without.
    """

    id: str
    plan: EnginePlan
    tokenizer: Tokenizer | None
    template: ChatTemplate | None
    sampling: Mapping[str, Any]
    identity: Mapping[str, Any]
    created: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def fingerprint(self) -> str:
        """Equal for servers that give equal answers to equal requests."""
        return f"fp_{self.plan.digest[:16]}"

    def require(self, name: str | None) -> None:
        """RequestError unless a request means this model; one that names none does."""
        if name is not None and name != self.id:
            raise RequestError(
                f"the model {name!r} is not served here; this is {self.id!r}", kind="model_not_found", param="model"
            )

    def require_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError("this model has no tokenizer; send token ids to /v1/completions", param="prompt")
        return self.tokenizer

    def require_template(self) -> ChatTemplate:
        self.require_tokenizer()
        if self.template is None:
            raise RequestError(
                "this model has no chat template; send text to /v1/completions",
                kind="unsupported_field",
                param="messages",
            )
        return self.template

    @cached_property
    def thinks(self) -> bool:
        """Whether answers may begin with a thinking block: the chat template or the vocabulary has its tag."""
        if self.template is None or self.tokenizer is None:
            return False
        return CLOSE in self.template.source or len(self.tokenizer.encode(CLOSE, allow_control=True)) == 1

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """What makes constraints for this model's vocabulary. RequestError where nothing can end an answer."""
        tokenizer = self.require_tokenizer()
        if not self.plan.end_token_ids:
            raise RequestError(
                "this model has no end token, so no answer can be held to a form",
                kind="unsupported_field",
                param="response_format",
            )
        return GrammarCompiler(tokenizer, self.plan.end_token_ids)

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template shows tools to the model."""
        return self.template is not None and self.template.takes_tools

    def reads_variable(self, name: str) -> bool:
        """Whether the chat template reads a variable, so that it can change the prompt."""
        return self.template is not None and name in self.template.variables
