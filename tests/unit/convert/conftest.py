"""Checkpoints to damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def source(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the directory that a test module makes as `checkpoint`, alone in its own directory."""
    return Path(shutil.copytree(checkpoint, tmp_path / "model"))
