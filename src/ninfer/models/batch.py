"""The step a model runs, under the name by which the rooms above know it."""

from ninfer.ops.batch import PAGE_TOKENS, ForwardBatch, SequenceRows

__all__ = ["PAGE_TOKENS", "ForwardBatch", "SequenceRows"]
