"""Documentation names only things that exist, and every setting of the command line is documented."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ninfer.cli.main import cli
from ninfer.metrics import FinishReason

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [*(ROOT / "src").rglob("*.py"), *(ROOT / "native").rglob("*.cpp"), *(ROOT / "native").rglob("*.h")]
ROOMS = ("src/", "tests/", "native/", "docs/", "examples/", "cmake/", ".ci/")
# Names of other programs and libraries that a page may mention.
FOREIGN_FLAGS: frozenset[str] = frozenset()


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Full name and object of every command and group below `ninfer`."""
    waiting: list[tuple[str, click.Command, click.Context | None]] = [("ninfer", cli, None)]
    while waiting:
        name, command, parent = waiting.pop()
        yield name, command
        if isinstance(command, click.Group):
            context = click.Context(command, info_name=name, parent=parent)
            for word in command.list_commands(context):
                child = command.get_command(context, word)
                assert child is not None, f"{name} lists {word} but has none"
                waiting.append((f"{name} {word}", child, context))


COMMANDS = dict(all_commands())


def code_of(page: Path) -> str:
    """Everything a page sets as code: inline spans and fenced blocks, one per line."""
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^```[a-z]*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return "\n".join([*fences, *re.findall(r"`([^`\n]+)`", rest)])


pages = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)


@pages
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [t for t in targets if not (page.parent / t).exists()] == []


@pages
def test_paths_exist(page: Path) -> None:
    words = re.findall(r"[\w.{}*/-]+", code_of(page))
    paths = [w.rstrip("./") for w in words if w.startswith(ROOMS)]
    assert [p for p in paths if not (ROOT / p).exists()] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_and_sections_that_code_names_exist(path: Path) -> None:
    for page, section in re.findall(r'\b(docs/[\w-]+\.md)(?:, "([^"]+)")?', path.read_text(encoding="utf-8")):
        assert (ROOT / page).exists(), page
        if section:
            headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert section in headings


@pages
def test_commands_exist(page: Path) -> None:
    for words in re.findall(r"(?:^|[\s/])ninfer((?: [a-z][a-z-]*)+)", code_of(page)):
        name = "ninfer"
        for word in words.split():
            if not isinstance(COMMANDS[name], click.Group):
                break
            name = f"{name} {word}"
            assert name in COMMANDS, f"{page.name} names `{name}`"


@pages
def test_flags_exist(page: Path) -> None:
    known = {flag for c in COMMANDS.values() for p in c.params for flag in (*p.opts, *p.secondary_opts)}
    known |= {"--help", *FOREIGN_FLAGS}
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", code_of(page))) - known == set()


@pages
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = re.findall(r"(?:^|\s)make ([a-z]+)", code_of(page), flags=re.MULTILINE)
    assert [t for t in named if not re.search(rf"^{t}:", makefile, flags=re.MULTILINE)] == []


@pages
def test_classes_and_variables_exist(page: Path) -> None:
    code = code_of(page)
    source = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    classes = re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-zA-Z]*)+\b", code)
    variables = re.findall(r"\bNINFER_[A-Z_]+\b", code)
    missing = [c for c in classes if not re.search(rf"\bclass {c}\b", source)]
    missing += [v for v in variables if v not in source]
    assert missing == []


@pages
def test_no_tool_or_machine_leaks(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"(?<![\w.~])/(?:work|root|tmp|home)/\S*", text) == []


def test_generated_pages_are_fresh() -> None:
    wanted = runpy.run_path(str(ROOT / "docs" / "generate.py"))["pages"]()
    stale = [path.name for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    assert stale == [], "run `make docs`"


def test_every_option_is_documented_and_has_help() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name, command in COMMANDS.items():
        if isinstance(command, click.Group):
            continue
        section = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
        assert section, f"{name} has no section"
        assert command.help, f"{name} has no help"
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, f"{name} {option.opts[0]} has no help"
                assert f"`{option.opts[0]}" in section, f"{name} {option.opts[0]} is not documented"


def test_finish_reasons_are_documented() -> None:
    text = (ROOT / "docs" / "measuring.md").read_text(encoding="utf-8")
    rows = text.partition("| finish | meaning |")[2].partition("\n\n")[0]
    documented = re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)
    assert documented == [reason.value for reason in FinishReason]


def test_version_is_one() -> None:
    import tomllib

    import ninfer

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == ninfer.__version__
