"""What broke in other servers has a test here, or a reason why it cannot break: the table in `tests/cases.md`.

A case is one symptom that other servers had. A test of a case names its id in its docstring; the table has all of them.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS / "cases.md"
ROW = re.compile(r"^\| (C\d{3}) \| (\w+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
REASON = "does not apply: "

ROWS = {case: (kind, symptom, tests) for case, kind, symptom, tests in ROW.findall(PAGE.read_text(encoding="utf-8"))}


def functions() -> dict[str, str]:
    """Docstrings of all test functions by their place below `tests`: `server/test_load.py::test_x`."""
    found = {}
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[f"{path.relative_to(TESTS)}::{node.name}"] = ast.get_docstring(node) or ""
    return found


FUNCTIONS = functions()


def test_the_page_has_only_rows_that_are_read() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| C")]
    assert len(lines) == len(ROWS) > 90


@pytest.mark.parametrize("case", ROWS)
def test_every_case_has_a_test_or_a_reason(case: str) -> None:
    _, _, tests = ROWS[case]
    if tests.startswith(REASON):
        assert len(tests) > len(REASON) + 10
        return
    named = [name.strip("` ") for name in tests.split(",")]
    assert named
    assert [name for name in named if name not in FUNCTIONS] == []


def test_every_case_that_a_test_names_is_in_its_row() -> None:
    missing = [
        (case, place)
        for place, docstring in FUNCTIONS.items()
        for case in re.findall(r"\bC\d{3}\b", docstring)
        if case in ROWS and f"`{place}`" not in ROWS[case][2]
    ]
    assert missing == []
