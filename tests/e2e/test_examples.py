"""The examples run as their first lines say, and stay within one screen."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx
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


@pytest.mark.real_model
def test_serve_and_ask(smollm2) -> None:
    first, *answer, last = run("serve_and_ask.py", smollm2, "What is the capital of France?").splitlines()
    assert first.startswith("ninfer: serving ")
    assert "Paris" in "\n".join(answer)
    assert re.fullmatch(r"\[\d+ tokens read, \d+ written: load .* ms, total .* ms.*\]", last), last
    url = re.search(r"http://[\d.:]+\d", first)
    assert url is not None
    with pytest.raises(httpx.ConnectError):  # nobody is left
        httpx.get(url.group(), timeout=5)


def test_serve_and_ask_ends_when_there_is_no_server(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.ninfer"
    command = [sys.executable, EXAMPLES / "serve_and_ask.py", nothing, "hello"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.endswith("the server did not start\n")
    assert str(nothing) in done.stderr
