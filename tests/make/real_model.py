"""The real model that tests of fact use, where a person has pulled it."""

from __future__ import annotations

import os
from pathlib import Path

from ninfer.convert.library import find_pulled_source

MISSING = "the SmolLM2 file is missing: run `ninfer pull smollm2`, or name it in NINFER_TEST_GGUF"


def find_real_gguf() -> Path | None:
    """SmolLM2-135M-Instruct.Q4_1.gguf: NINFER_TEST_GGUF, or what `ninfer pull smollm2` keeps."""
    named = os.environ.get("NINFER_TEST_GGUF")
    if named:
        return Path(named)
    return find_pulled_source("smollm2")
