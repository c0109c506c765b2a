"""The examples run as their first lines say, and stay within one screen."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_one_screen(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60


@pytest.mark.real_model
def test_generate(smollm2) -> None:
    out = run("generate.py", smollm2, "What is the capital of France?")
    assert re.fullmatch(r"\S.*\n\[(stop_token|output_limit), \d+ tokens\]\n", out, flags=re.DOTALL)


@pytest.mark.real_model
def test_same_tokens(smollm2) -> None:
    lines = run("same_tokens.py", smollm2).splitlines()
    assert lines[-1] == "same tokens"
    assert len(lines) == 4
