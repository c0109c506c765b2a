"""A tiny byte-level vocabulary for tests of logic, and the tokenizer of the real model for tests of fact."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from make.tiny_tokenizer import tiny_metadata
from ninfer.text.gguf_tokenizer import tokenizer_json_from_gguf
from ninfer.text.tokenizer import Tokenizer

# Time is no property of the code under test: a busy machine must not fail it.
settings.register_profile("ninfer-text", deadline=None)
settings.load_profile("ninfer-text")


@pytest.fixture(scope="session")
def tiny() -> Tokenizer:
    return Tokenizer.from_json(tokenizer_json_from_gguf(tiny_metadata()))


@cache
def _real_metadata(path: Path) -> dict[str, Any]:
    from gguf import GGUFReader

    return {name: field.contents() for name, field in GGUFReader(path).fields.items() if name.startswith("tokenizer")}


@pytest.fixture(scope="session")
def real_metadata(real_gguf: Path) -> dict[str, Any]:
    return _real_metadata(real_gguf)


@pytest.fixture(scope="session")
def smollm(real_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_json(tokenizer_json_from_gguf(real_metadata))
