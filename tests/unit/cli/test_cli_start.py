"""A command starts without what it does not use: start-up time, counted in modules and not in seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIST_MODULES = """
import sys
from ninfer.cli.main import run
run(sys.argv[1:])
print("modules:", *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""
NEVER_AT_START = {"rich", "pydantic", "asyncio", "jinja2", "tokenizers", "safetensors", "torch", "transformers"}


def modules_after(*arguments: str) -> set[str]:
    """Top-level modules in memory after a command."""
    done = subprocess.run(
        [sys.executable, "-c", LIST_MODULES, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stderr.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("arguments", [("--version",), ("run", "--help"), ("chat", "--help"), ("plan", "--help")])
def test_parsing_a_command_line_is_light(arguments) -> None:
    assert modules_after(*arguments) & NEVER_AT_START == set()


@pytest.mark.parametrize("arguments", [("--version",), ("pull", "--help"), ("verify", "--help")])
def test_commands_without_a_model_do_not_import_numpy(arguments) -> None:
    assert "numpy" not in modules_after(*arguments)


def test_the_template_engine_of_a_chat_comes_without_openssl() -> None:
    check = (
        "import sys; from ninfer.cli.session import keep_openssl_out; keep_openssl_out(); import ninfer.text.sandbox; "
        "import hashlib; print(hashlib.sha1(b'').hexdigest(), sys.modules['_hashlib'], 'jinja2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("da39a3ee5e6b4b0d3255bfef95601890afd80709 None True\n", "")
