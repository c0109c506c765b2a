"""Writes the documentation that code already knows: `docs/cli.md`, and the marked tables of other pages.

`make docs` runs this; `tests/structure/test_docs.py` fails when a page on disk differs from what this would write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from ninfer.cli.exit_codes import ExitCode
from ninfer.cli.fields import IntOrWord
from ninfer.cli.main import cli
from ninfer.convert.recipes import RECIPES
from ninfer.metrics import DEFINITIONS

DOCS = Path(__file__).resolve().parent

INTRODUCTION = """# Commands

Written by `make docs` from the declarations in the code.

An answer goes to stdout, everything else to stderr. An error is one line, `ninfer: error: ...`; `NINFER_DEBUG=1` adds
the traceback. Wherever MODEL stands, give an alias (`smollm2`), a `.ninfer` file, a `.gguf` file or a Hugging Face
directory; the last two are converted into the model cache first, with a notice.
"""


def table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def commands(command: click.Command, path: tuple[str, ...], parent: click.Context | None = None) -> Iterator[str]:
    """One section per command that does something, groups opened."""
    context = click.Context(command, info_name=path[-1], parent=parent)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                yield from commands(child, (*path, name), context)
        return
    yield f"## {' '.join(path)}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```\n{' '.join(path)} {usage}\n```\n"
    yield paragraphs(command.help or "")
    rows = [option_row(option, context) for option in command.params if isinstance(option, click.Option)]
    if rows:
        yield table(("option", "meaning", "default"), iter(rows))


def paragraphs(text: str) -> str:
    """Help text as Markdown: one line per paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text.replace("\b", ""))) + "\n"


def option_row(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    """Flag with the form of its value, help, default."""
    names = ", ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {value_form(option, context)}"
    known = isinstance(option.default, str | int | float) and not option.is_flag
    return f"`{names}{value}`", " ".join((option.help or "").split()), f"`{option.default}`" if known else ""


def value_form(option: click.Option, context: click.Context) -> str:
    """How the value of an option is written; made here because click's own wording changes between versions."""
    if option.metavar is not None:
        return option.metavar
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    if isinstance(option.type, IntOrWord):
        return option.type.get_metavar(option, context)
    return option.type.name.upper()


def cli_page() -> str:
    """The page of all commands, options and exit codes."""
    codes = table(("code", "meaning"), ((f"{int(code)}", code.meaning) for code in ExitCode))
    return "\n".join([INTRODUCTION, *commands(cli, ("ninfer",)), "## Exit codes\n", codes])


def metric_words() -> str:
    """The table of measured words."""
    return table(("word", "unit", "definition"), ((d.word, d.unit, d.formula) for d in DEFINITIONS))


def bench_tools() -> str:
    """The table of measuring tools."""
    context = click.Context(cli, info_name="ninfer")
    group = cli.get_command(context, "bench")
    if not isinstance(group, click.Group):
        raise TypeError("ninfer bench is no group of tools")
    tools = [(name, group.get_command(context, name)) for name in group.list_commands(context)]
    rows = ((f"`ninfer bench {name}`", paragraphs(tool.help or "").splitlines()[0]) for name, tool in tools if tool)
    return table(("tool", "measures"), rows)


def recipes() -> str:
    """The table of conversion recipes."""
    return table(("recipe", "formats"), ((f"`{recipe.name}`", recipe.summary) for recipe in RECIPES.values()))


TABLES = {"metric words": metric_words, "bench tools": bench_tools, "recipes": recipes}


def with_tables(text: str) -> str:
    """`text` with the content between `<!-- begin NAME -->` and `<!-- end NAME -->` replaced by the table NAME."""

    def fill(match: re.Match[str]) -> str:
        return f"{match['begin']}{TABLES[match['name']]()}{match['end']}"

    marked = r"(?P<begin><!-- begin (?P<name>[\w ]+) -->\n).*?(?P<end><!-- end (?P=name) -->)"
    return re.sub(marked, fill, text, flags=re.DOTALL)


def pages() -> dict[Path, str]:
    """Every page this program answers for, with the text it should have."""
    found = {DOCS / "cli.md": cli_page()}
    for path in sorted(DOCS.glob("*.md")):
        if path not in found:
            found[path] = with_tables(path.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
