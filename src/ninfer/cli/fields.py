"""Command-line options from the fields of a dataclass, so that a setting is declared once.

A field becomes an option when it is described: by `metadata["help"]`, or by a paragraph `name: text` in the docstring
of its class. Its name with dashes is the flag, its annotation the type, its default the default. Ranges and
combinations are judged by the dataclass itself, whoever builds it; only the spelling is judged here.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class IntOrWord(click.ParamType):
    """An integer, or one of a few words such as `auto`."""

    name = "integer"

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "|".join(("N", *self.words))

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if isinstance(value, int) or (isinstance(value, str) and value in self.words):
            return value
        try:
            return int(str(value))
        except ValueError:
            self.fail(f"{value!r} is neither an integer nor {' nor '.join(self.words)}", param, ctx)


def _members(annotation: Any) -> list[Any]:
    """The alternatives of an annotation without None: `int | Literal["auto"] | None` gives `[int, Literal["auto"]]`."""
    members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return [member for member in members if member is not type(None)]


def click_type(annotation: Any) -> click.ParamType | None:
    """The click type of a field annotation, or None for a flag; TypeError for one that has no spelling here."""
    simple: dict[Any, click.ParamType | None] = {int: click.INT, float: click.FLOAT, str: click.STRING, bool: None}
    match _members(annotation):
        case [member] if member in simple:
            return simple[member]
        case [member] if get_origin(member) is Literal:
            return click.Choice(get_args(member))
        case [member, words] if member is int and get_origin(words) is Literal:
            return IntOrWord(get_args(words))
    raise TypeError(f"no command-line spelling for {annotation}")


def field_help(cls: type) -> dict[str, str]:
    """Field name -> description, in the order of declaration; fields without one are missing."""
    names = {field.name for field in dataclasses.fields(cls)}
    described: dict[str, list[str]] = {}
    current: list[str] = []
    for line in inspect.cleandoc(cls.__doc__ or "").splitlines():
        name, colon, text = line.partition(":")
        if colon and name in names:
            current = described.setdefault(name, [text])
        elif line.startswith(" "):
            current.append(line)
        else:
            current = []
    help_of = {name: " ".join(" ".join(lines).split()) for name, lines in described.items()}
    help_of.update({f.name: f.metadata["help"] for f in dataclasses.fields(cls) if "help" in f.metadata})
    found = ((field.name, help_of[field.name]) for field in dataclasses.fields(cls) if field.name in help_of)
    return {name: text[:1].upper() + text[1:] for name, text in found}


def field_options(
    cls: type, *, defaults: bool = True, only: Collection[str] | None = None, without: Collection[str] = ()
) -> Callable[[Decorated], Decorated]:
    """Adds an option for every described field of `cls`, or for those in `only`, but never for those in `without`.

    With `defaults=False` an option that is not given is None.
    """
    hints = get_type_hints(cls)
    help_of = field_help(cls)

    def decorate(function: Decorated) -> Decorated:
        for field in reversed(dataclasses.fields(cls)):
            if field.name not in help_of or field.name in without or (only is not None and field.name not in only):
                continue
            kind = click_type(hints[field.name])
            default = field.default if defaults and field.default is not dataclasses.MISSING else None
            name = field.name.replace("_", "-")
            function = click.option(
                f"--{name}" if kind is not None else f"--{name}/--no-{name}",
                field.name,
                type=kind,
                default=default,
                show_default=default is not None,
                help=help_of[field.name],
            )(function)
        return function

    return decorate


def field_values(cls: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a command that belong to fields of `cls`, ready for its constructor."""
    return {field.name: arguments[field.name] for field in dataclasses.fields(cls) if field.name in arguments}
