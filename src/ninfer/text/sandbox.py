"""The Jinja in which chat templates run: what templates of the Hub expect, inside limits.

A chat template is code from a model file. It runs without access to Python's insides (Jinja's immutable sandbox),
cannot load other templates, and has a budget for loop rounds, calls and the size of every text it builds. The budget
stops runaway templates early and always at the same place, because it counts work and not seconds. It bounds what
templates do by accident and the usual ways to blow them up; it is no wall against an author bent on burning time.

Expected besides plain Jinja (source: transformers `chat_template_utils`): `trim_blocks`, `lstrip_blocks`,
`break`/`continue`, `{% generation %}` blocks, `raise_exception`, `strftime_now`, a `tojson` without HTML escapes.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ninfer.errors import RequestError

# Longest text a template may build, in characters: four times the longest context we know of (1 M tokens of about 4).
MAX_CHARACTERS = 1 << 24
# Work of one rendering: a loop round, a macro call or another call costs 1, building text 1 per 1024 characters.
MAX_WORK = 1 << 19

_NOT_OFFERED = ("lipsum",)  # random text
_FILTERS_NOT_OFFERED = ("random", "pprint", "xmlattr", "urlize")  # not repeatable, or of use for HTML pages only
_METHODS_NOT_OFFERED = frozenset({"translate", "maketrans", "expandtabs", "encode", "to_bytes"})  # size hard to foresee
_WIDTHS = frozenset({"center", "ljust", "rjust", "zfill", "indent", "batch", "slice", "wordwrap", "truncate"})
_FORMAT_WITH_WIDTH = re.compile(r"[%:][^a-zA-Z%]*(\d{5,}|[*{])")


class LimitError(SecurityError):
    """The template used up its budget."""


class _Rendering:
    """One rendering: its time, and what it may still spend."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self._left = MAX_WORK

    def spend(self, characters: int = 0) -> None:
        if characters > MAX_CHARACTERS:
            raise LimitError(f"it builds a text of more than {MAX_CHARACTERS} characters")
        self._left -= 1 + (characters >> 10)
        if self._left < 0:
            raise LimitError(f"it does more than {MAX_WORK} units of work (loop rounds, calls, 1024 characters)")


_rendering: ContextVar[_Rendering] = ContextVar("ninfer_template_rendering")

# What code in a template can raise by itself; anything else is a bug of ours and passes.
_FAILURES = (TemplateError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def render(template: Any, variables: dict[str, Any], now: datetime) -> str:
    """Text of one rendering, on a budget of its own; `now` is what `strftime_now` writes.

    Raises `RequestError` (kind `template_error`) with the template's own message when it refuses or fails.
    """
    token = _rendering.set(_Rendering(now))
    try:
        parts: list[str] = []
        total = 0
        for part in template.generate(variables):
            total += len(part)
            if total > MAX_CHARACTERS:
                raise LimitError(f"it writes more than {MAX_CHARACTERS} characters")
            parts.append(part)
        return "".join(parts)
    except _FAILURES as error:
        raise RequestError(f"the chat template cannot render these messages: {error}", kind="template_error") from error
    finally:
        _rendering.reset(token)


@dataclass(frozen=True)
class LoadedTemplate:
    """A compiled template, the text constants and attribute names of its code, and the variables it reads."""

    template: Any
    constants: frozenset[str]
    variables: frozenset[str]


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of one chat template."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension], finalize=_affordable)
        self._metering = _Metering(self)
        self.extensions[_Metering.identifier] = self._metering
        for name in _FILTERS_NOT_OFFERED:
            del self.filters[name]
        for name in _NOT_OFFERED:
            del self.globals[name]
        self.filters["tojson"] = tojson
        self.filters = {name: _metered_filter(name, function) for name, function in self.filters.items()}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def load(self, source: str) -> LoadedTemplate:
        """Compile a template. Raises jinja2 `TemplateSyntaxError`."""
        tree = self.parse(source)
        constants = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
        constants.update(node.attr for node in tree.find_all(nodes.Getattr))
        variables = meta.find_undeclared_variables(tree) - set(self.globals)
        self._metering.instrument(tree)
        return LoadedTemplate(self.from_string(tree), frozenset(constants), frozenset(variables))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _METHODS_NOT_OFFERED and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _rendering.get().spend(_size_of_operation(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  # as Jinja has it
        # Jinja wraps `str.format`, so the text it belongs to is one step away.
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if owner is __self._metering:
            return __obj(*args)
        size = 0
        if isinstance(owner, str):
            name = __obj.__name__
            if name == "join":
                args = (_as_list(args[0]), *args[1:]) if args else args
                size = _size_of_join(args[0] if args else [], owner)
            else:
                size = _size_of_text_call(name, owner, (*args, *kwargs.values()))
        _rendering.get().spend(size)
        return super().call(__context, __obj, *args, **kwargs)


class _Metering(Extension):
    """Puts the meter into loops, macros and `~`; reads `{% generation %}` blocks as their content."""

    tags = {"generation"}  # noqa: RUF012  # the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def instrument(self, tree: nodes.Template) -> None:
        """Change a parsed template in place."""
        owners: list[nodes.For | nodes.Macro | nodes.CallBlock] = [*tree.find_all(nodes.For)]
        owners += [*tree.find_all(nodes.Macro), *tree.find_all(nodes.CallBlock)]
        for owner in owners:
            owner.body.insert(0, nodes.ExprStmt(self.call_method("spend", lineno=owner.lineno), lineno=owner.lineno))
        self._replace_concat(tree)
        tree.set_environment(self.environment)

    def spend(self) -> None:
        _rendering.get().spend()

    def concat(self, *parts: Any) -> str:
        _rendering.get().spend(_written_size(parts))
        return "".join(map(str, parts))

    def _replace_concat(self, node: nodes.Node) -> None:
        for name, value in node.iter_fields():
            children = value if isinstance(value, list) else [value]
            for index, child in enumerate(children):
                if isinstance(child, nodes.Node):
                    self._replace_concat(child)
                if isinstance(child, nodes.Concat):
                    children[index] = self.call_method("concat", child.nodes, lineno=child.lineno)
            if not isinstance(value, list):
                setattr(node, name, children[0])


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on: no HTML escapes, non-ASCII kept.

    With `ensure_ascii`, characters of planes 15 and 16 stay as they are: `guard` may have put its stand-ins there.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    if ensure_ascii:
        text = re.sub("[\x7f-\U000effff]", lambda match: json.dumps(match.group())[1:-1], text)
    return text


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return _rendering.get().now.strftime(layout)


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0  # the context or environment comes before the value

    @functools.wraps(function)  # which keeps that mark
    def metered(*args: Any, **kwargs: Any) -> Any:
        before, value, rest = args[:skip], args[skip], (*args[skip + 1 :], *kwargs.values())
        size = 0
        if name == "join":
            value = _as_list(value)
            size = _size_of_join(value, next((sep for sep in rest if isinstance(sep, str)), ""))
        elif name in ("tojson", "string"):
            # An indent multiplies lines; no real one is wide.
            size = _written_size(value) * (1 + sum(_width(indent) for indent in rest))
        else:
            size = _size_of_text_call(name, value, rest)
        _rendering.get().spend(size)
        return function(*before, value, *args[skip + 1 :], **kwargs)

    return metered


def _size_of_operation(operator: str, left: Any, right: Any) -> int:
    """Upper bound of the length of a result, before it is computed."""
    if operator == "+":
        return _length(left) + _length(right)
    if operator == "%":
        return _size_of_text_call("format", left, (right,)) if isinstance(left, str) else 0
    if operator == "*" and not (isinstance(left, int) and isinstance(right, int)):
        return max(_length(left), _length(right)) * max(_width(left), _width(right), 1)
    bits = [abs(number).bit_length() for number in (left, right) if isinstance(number, int)]
    if max(bits, default=0) > 1024 or (operator == "**" and bits[1:] and bits[0] * abs(right) > 4096):
        raise LimitError("it computes with numbers of more than 1024 bits")
    return 0


def _size_of_text_call(name: str, text: Any, args: tuple[Any, ...]) -> int:
    """Upper bound of the result's length of a text method or filter, before it is computed."""
    if not isinstance(text, str):
        return max(map(_width, args), default=0) if name in _WIDTHS else 0
    if name in _WIDTHS:
        lines = 1 + text.count("\n") if name == "indent" else 1
        return len(text) + lines * max(map(_width, args), default=0)
    if name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        return len(text) + text.count(args[0]) * max(0, len(args[1]) - len(args[0]))
    if name in ("format", "format_map"):
        if _FORMAT_WITH_WIDTH.search(text):
            raise LimitError("it formats to a computed or very large width")
        return len(text) * (1 + _written_size(args))
    return len(text)


def _size_of_join(items: list[Any], separator: str) -> int:
    return _written_size(items) + len(separator) * len(items)


def _as_list(items: Any) -> list[Any]:
    """The items of any iterable, charged one by one: a generator may be endless in effect."""
    if isinstance(items, list):
        return items
    found = []
    for item in items if isinstance(items, Iterable) else ():
        _rendering.get().spend()
        found.append(item)
    return found


def _affordable(value: Any) -> Any:
    """Charge for a value that is about to be written to the output."""
    if isinstance(value, list | tuple | dict):
        _rendering.get().spend(_written_size(value))
    return value


def _written_size(value: Any) -> int:
    """About how many characters writing `value` takes; what occurs twice is written twice, so it counts twice."""
    total, waiting = 0, [value]
    while waiting and total <= MAX_CHARACTERS:
        item = waiting.pop()
        total += len(item) if isinstance(item, str) else 16
        if isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            waiting += item
    return total


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _width(value: Any) -> int:
    """A number as a count of characters, a text as its length, anything else nothing."""
    return max(0, value) if isinstance(value, int) else _length(value)
