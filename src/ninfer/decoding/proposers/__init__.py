"""Owns: ways to draft tokens, one per module.
Does not own: their verification, how long drafts are.
Read first: ngram.py.
"""

from ninfer.decoding.proposers.combined import CombinedProposer
from ninfer.decoding.proposers.dflash import DFlashProposer
from ninfer.decoding.proposers.mtp import MTPProposer
from ninfer.decoding.proposers.ngram import NgramProposer

__all__ = ["CombinedProposer", "DFlashProposer", "MTPProposer", "NgramProposer"]
