"""Chat messages to token ids by the model's own template, in which only the template can write control tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ninfer.errors import ArtifactError, RequestError
from ninfer.text.guard import OwnText, TextGuard
from ninfer.text.heap import trim_heap
from ninfer.text.messages import normalized_messages, normalized_tools
from ninfer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ninfer.text.sandbox import LoadedTemplate

Part = str | int
_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class ChatTemplate:
    """One model's chat template; may be used from any thread.

    The template is rendered twice when the user's text holds anything that could become part of a control token: once
    as it is, and once with stand-ins (`guard`). The second says which control tokens are the template's own; otherwise
    the two agree, or the request is refused. For harmless text the ids are those of rendering and encoding in one go.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        special_texts: Mapping[str, str] | None = None,
        clock: Callable[[], datetime] = datetime.now,
        file: object = None,
    ) -> None:
        """`special_texts`: texts the template may name (`bos_token`, `eos_token`, ...); `clock`: for `strftime_now`."""
        self.source = source
        self._tokenizer = tokenizer
        self._special_texts = dict(special_texts or {})
        self._clock = clock
        self._file = file

    def prepare(self) -> None:
        """Compile now and not at the first use. Raises `ArtifactError` for a template that is not valid Jinja."""
        _ = self._compiled

    @property
    def variables(self) -> frozenset[str]:
        """What a caller may set by `variables`: names the template reads and the engine does not set."""
        return self._compiled.variables - _OWN_VARIABLES - set(self._special_texts)

    @property
    def takes_tools(self) -> bool:
        """Whether tools that a caller declares reach the prompt."""
        return "tools" in self._compiled.variables

    def render(
        self,
        messages: object,
        *,
        tools: object = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text, for people to read: its control tokens cannot be told from look-alikes. See `encode`."""
        given = self._inputs(messages, tools, add_generation_prompt, variables)
        return self._rendered(given, self._clock())

    def encode(
        self,
        messages: object,
        *,
        tools: object = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of the prompt, beginning with the tokenizer's `bos_ids` exactly once.

        `messages`, `tools`: see `messages`. `variables`: more values for the template (`enable_thinking`, ...).
        Raises `RequestError`: kind `template_error` with the template's own words if it refuses or fails.
        """
        given = self._inputs(messages, tools, add_generation_prompt, variables)
        ids: list[int] = []
        for part in self._parts(given):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(self._tokenizer.encode(part))
        return self._tokenizer.with_bos(ids)

    def _parts(self, given: dict[str, Any]) -> list[Part]:
        """The rendered prompt as the template's control ids and the texts between them."""
        now = self._clock()
        plain = self._rendered(given, now)
        covered = self._guard.cover(given)
        if not covered.changed:
            return self._tokenizer.split_control(plain)
        try:
            rendered = self._rendered(covered.values, now)
        except RequestError as error:
            raise _inseparable() from error
        parts: list[Part] = [
            part if isinstance(part, int) else covered.uncover(part) for part in self._tokenizer.split_control(rendered)
        ]
        if covered.uncover(rendered) == plain:
            return parts
        # The template looked at covered characters (it escapes `<`, say), so the text must be that of the plain
        # rendering. Its control tokens are the template's own if they are the very ones of the covered rendering.
        plain_parts = self._tokenizer.split_control(plain)
        if _control(plain_parts) == _control(parts):
            return plain_parts
        raise _inseparable()

    def _inputs(
        self, messages: object, tools: object, add_generation_prompt: bool, variables: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        own = {
            "messages": [{**m, "role": OwnText(m["role"])} for m in normalized_messages(messages)],
            "tools": normalized_tools(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        for name in variables or {}:
            if name in own or name in self._special_texts:
                raise RequestError(f"the template variable {name!r} is set by the engine", param=name)
        return {**(variables or {}), **own}

    def _rendered(self, given: dict[str, Any], now: datetime) -> str:
        from ninfer.text.sandbox import render

        return render(self._compiled.template, {**given, **self._special_texts}, now)

    @cached_property
    def _compiled(self) -> LoadedTemplate:
        from jinja2 import TemplateError  # here: only a chat needs Jinja, and it takes as long to load as a tokenizer

        from ninfer.text.sandbox import TemplateSandbox

        try:
            loaded = TemplateSandbox().load(self.source)
        except (TemplateError, RecursionError) as error:
            raise ArtifactError(f"not a valid template: {error}", file=self._file, field="chat_template") from error
        trim_heap()
        return loaded

    @cached_property
    def _guard(self) -> TextGuard:
        return TextGuard(self._tokenizer.control_tokens, self._compiled.constants, self.source)


def _control(parts: Sequence[Part]) -> list[int]:
    return [part for part in parts if isinstance(part, int)]


def _inseparable() -> RequestError:
    return RequestError(
        "the messages contain text that looks like control tokens, and the chat template changes it so that the two "
        "cannot be kept apart; remove that text",
        kind="control_text",
        param="messages",
    )
