"""Packages import only from rows above their own (docs/how-it-works.md, "One-way dependencies")."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "ninfer"

ROWS: dict[str, int] = {
    "errors": 0,
    "formats": 1,
    "metrics": 1,
    "artifact": 2,
    "ops": 2,
    "text": 2,
    "backends": 3,
    "cache": 4,
    "models": 5,
    "decoding": 6,
    "convert": 6,
    "engine": 7,
    "bench": 8,
    "cli": 8,
    "server": 8,
    "training": 8,
}
KNOWS_ITS_NEIGHBOURS = {"cli"}
NATIVE_MODULE = "ninfer.backends.cpu._native"
NATIVE_OWNER = "backends"


def imported_modules(path: Path) -> set[str]:
    """Absolute dotted names imported anywhere in a file, inside functions and under TYPE_CHECKING too."""
    package = ["ninfer", *path.relative_to(SOURCE).with_suffix("").parts[:-1]]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            found.update(f"{prefix}.{alias.name}" for alias in node.names)
    return found


def package_of(dotted: str) -> str | None:
    parts = dotted.split(".")
    return parts[1] if parts[0] == "ninfer" and len(parts) > 1 and parts[1] in ROWS else None


FILES = sorted(path for path in SOURCE.rglob("*.py") if len(path.relative_to(SOURCE).parts) > 1)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_upwards(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0]
    for name in imported_modules(path):
        if name.startswith(NATIVE_MODULE):
            assert own == NATIVE_OWNER, f"{own} imports the native module"
        target = package_of(name)
        if target is None or target == own:
            continue
        below = ROWS[target] < ROWS[own]
        neighbour = ROWS[target] == ROWS[own] and own in KNOWS_ITS_NEIGHBOURS
        assert below or neighbour, f"{own} (row {ROWS[own]}) imports {name} (row {ROWS[target]})"


def test_every_package_has_a_row() -> None:
    packages = {p.parent.name for p in SOURCE.glob("*/__init__.py")}
    assert packages == set(ROWS) - {"errors"}


@pytest.mark.parametrize("init", sorted(SOURCE.glob("*/__init__.py")), ids=lambda p: p.parent.name)
def test_every_package_says_what_it_owns(init: Path) -> None:
    text = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
    for word in ("Owns:", "Does not own:", "Read first:"):
        assert word in text, f"{init.parent.name} lacks '{word}'"
