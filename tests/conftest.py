"""The real model, where a test is about facts and not about logic.

A missing file is a failure and not a skip: a skip would hide that nothing was shown. `make test` pulls it first;
`-m "not real_model"` leaves these tests out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from make.real_model import MISSING, find_real_gguf
from ninfer.convert.library import resolve_model
from ninfer.errors import ConfigError


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The .ninfer file of SmolLM2-135M-Instruct."""
    try:
        return resolve_model("smollm2")
    except ConfigError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="session")
def real_gguf() -> Path:
    """The GGUF file (Q4_1) of SmolLM2-135M-Instruct."""
    path = find_real_gguf()
    if path is None or not path.is_file():
        pytest.fail(MISSING)
    return path
