"""Owns: the .ninfer file: directory, mapped reader, writer, verify, inspect.
Does not own: what tensors mean to a model.
Read first: header.py, then reader.py.
"""

from __future__ import annotations

from ninfer.artifact.entry import TensorEntry
from ninfer.artifact.inspect import inspect
from ninfer.artifact.reader import Artifact
from ninfer.artifact.verify import Problem, verify
from ninfer.artifact.writer import ArtifactWriter

__all__ = ["Artifact", "ArtifactWriter", "Problem", "TensorEntry", "inspect", "verify"]
