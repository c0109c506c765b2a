"""A setting is declared once: flags, types, defaults and help all come from the dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import click
import pytest
from click.testing import CliRunner

from ninfer.cli.fields import field_help, field_options, field_values


@dataclass(frozen=True)
class Settings:
    """Of something.

    max_context: tokens of one sequence,
        prompt and answer.
    mode: how.

    This line belongs to nobody.
    """

    max_context: int = 2048
    kv_capacity: int | Literal["auto"] = field(default="auto", metadata={"help": "tokens of all sequences"})
    mode: Literal["a", "b"] = "a"
    share: float | None = field(default=None, metadata={"help": "a part"})
    quiet: bool = field(default=False, metadata={"help": "say less"})
    internal: tuple[int, ...] = ()


def run(*arguments: str, defaults: bool = True):
    seen = {}

    @click.command
    @field_options(Settings, defaults=defaults)
    def command(**values: object) -> None:
        seen.update(values)

    result = CliRunner().invoke(command, arguments)
    return result, seen


def test_help_comes_from_metadata_or_docstring() -> None:
    assert field_help(Settings) == {
        "max_context": "Tokens of one sequence, prompt and answer.",
        "kv_capacity": "Tokens of all sequences",
        "mode": "How.",
        "share": "A part",
        "quiet": "Say less",
    }


def test_defaults_and_values() -> None:
    result, seen = run("--kv-capacity", "640", "--mode", "b", "--share", "0.5", "--quiet")
    assert result.exit_code == 0, result.output
    assert seen == {"max_context": 2048, "kv_capacity": 640, "mode": "b", "share": 0.5, "quiet": True}
    assert Settings(**field_values(Settings, seen)) == Settings(2048, 640, "b", 0.5, True)


def test_words_beside_integers() -> None:
    assert run("--kv-capacity", "auto")[1]["kv_capacity"] == "auto"
    result, _ = run("--kv-capacity", "many")
    assert result.exit_code == 2
    assert "neither an integer nor auto" in result.output


def test_not_given_is_none_without_defaults() -> None:
    _, seen = run("--mode", "b", defaults=False)
    assert {name for name, value in seen.items() if value is not None} == {"mode"}


def test_a_choice_of_fields() -> None:
    for selection in ({"only": ("mode", "share")}, {"without": ("max_context", "kv_capacity", "quiet")}):
        command = click.command(field_options(Settings, **selection)(lambda **values: None))
        assert [option.name for option in command.params] == ["mode", "share"]


def test_undescribed_fields_are_no_options() -> None:
    assert run("--internal", "1")[0].exit_code == 2


def test_a_type_without_spelling_is_refused() -> None:
    @dataclass
    class Bad:
        pages: list[int] = field(default_factory=list, metadata={"help": "x"})

    with pytest.raises(TypeError, match="no command-line spelling"):
        field_options(Bad)(lambda: None)
