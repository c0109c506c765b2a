"""Owns: model families written in ops, and loading one from an artifact.
Does not own: devices, instruction sets, requests.
Read first: llama.py, then loading.py.
"""

from ninfer.backends.options import RuntimeOptions
from ninfer.models.batch import ForwardBatch, SequenceRows, StateAccess
from ninfer.models.loading import Model, load_model, plan_memory

__all__ = ["ForwardBatch", "Model", "RuntimeOptions", "SequenceRows", "StateAccess", "load_model", "plan_memory"]
