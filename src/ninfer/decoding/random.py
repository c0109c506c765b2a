"""Random numbers that depend on what they are for, not on when they are drawn."""

from __future__ import annotations

import os
from enum import IntEnum

import numpy as np

_KEY_DOMAIN = 0x4E496E666572
"""Second key word ("NInfer" in ASCII): keeps these streams apart from other uses of the same seed."""


class Purpose(IntEnum):
    """What a random number decides. Numbers of one position with different purposes are independent."""

    TOKEN = 0
    """The token at a position, drawn from the target distribution."""
    DRAFT = 1
    """The draft of the token at a position, drawn from a proposer's distribution."""
    ACCEPTANCE = 2
    """Whether that draft is accepted (rejection rule)."""
    RESIDUAL = 3
    """The token that takes its place if it is not."""


def uniform(seed: int, position: int, purpose: Purpose) -> float:
    """A number in `[0, 1)`, a multiple of 2**-53, fixed by its arguments alone.

    Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with key (seed, domain); NumPy
    advances the counter (position, purpose, 0, 0) by one before the first block. The first word's upper 53 bits are
    used.
    """
    # Arrays, because NumPy turns tuples with words of 2**63 and more into floats and loses their low bits.
    key = np.array((seed, _KEY_DOMAIN), dtype=np.uint64)
    counter = np.array((position, purpose, 0, 0), dtype=np.uint64)
    return (int(np.random.Philox(key=key, counter=counter).random_raw()) >> 11) * 2.0**-53


def fresh_seed() -> int:
    """A seed from the operating system's entropy, for requests that bring none."""
    return int.from_bytes(os.urandom(8))
