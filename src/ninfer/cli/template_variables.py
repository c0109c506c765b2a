"""Options that set variables of the model's own chat template, as authors of thinking models ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from ninfer.cli.fields import Decorated
from ninfer.errors import RequestError
from ninfer.text.template import ChatTemplate

Variables = Mapping[str, Any]


def template_options(function: Decorated) -> Decorated:
    """Adds `--thinking/--no-thinking`, `--reasoning-effort` and `--template-arg`."""
    for decorate in (
        click.option(
            "--thinking/--no-thinking",
            default=None,
            help="Set the template's enable_thinking; otherwise the template decides.",
        ),
        click.option("--reasoning-effort", metavar="WORD", help="Set the template's reasoning_effort."),
        click.option(
            "--template-arg",
            multiple=True,
            metavar="NAME=VALUE",
            help="Set a variable of the chat template; VALUE is JSON, or else text. Repeatable.",
        ),
    ):
        function = decorate(function)
    return function


def pop_variables(settings: dict[str, Any]) -> Variables:
    """Take these options out of a command's arguments; RequestError for one that is malformed or given twice."""
    thinking, effort = settings.pop("thinking"), settings.pop("reasoning_effort")
    named: Sequence[str] = settings.pop("template_arg")
    given = [("enable_thinking", thinking, "--thinking"), ("reasoning_effort", effort, "--reasoning-effort")]
    variables = {name: value for name, value, _ in given if value is not None}
    for text in named:
        name, found, value = text.partition("=")
        if not found or not name.isidentifier():
            raise RequestError(f"--template-arg takes NAME=VALUE, got {text!r}", param="template_arg")
        if name in variables:
            raise RequestError(f"the template variable {name!r} is set twice", param="template_arg")
        variables[name] = _value(value)
    return variables


def check_variables(variables: Variables, template: ChatTemplate | None) -> None:
    """RequestError for a variable that nothing reads: without a template, or one that does not know it."""
    known = frozenset[str]() if template is None else template.variables
    unread = [name for name in variables if name not in known]
    if not unread:
        return
    if template is None:
        raise RequestError(f"{unread[0]!r} sets a variable of a chat template, and none is used", param=unread[0])
    have = ", ".join(sorted(known)) or "none"
    raise RequestError(
        f"the chat template of this model has no variable {unread[0]!r}; it has: {have}",
        kind="unsupported_field",
        param=unread[0],
    )


def _value(text: str) -> Any:
    """JSON where it is JSON: `false` is a flag, `3` a number, `low` text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
