"""Inverse frequencies of rotary embeddings, and which position axis each of them turns with.

All are float64; `rope_angles` takes them as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ninfer.errors import InvariantError


def rope_frequencies(rotary_dim: int, theta: float) -> tuple[float, ...]:
    """`theta^(-2i/rotary_dim)` for the pairs i of the rotated dims. Source: Su et al. 2021, "RoFormer"."""
    if rotary_dim % 2:
        raise InvariantError(f"rotary_dim {rotary_dim} is odd")
    return tuple(float(theta) ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2))


def yarn_frequencies(
    rotary_dim: int,
    theta: float,
    factor: float,
    original_length: int,
    *,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> tuple[tuple[float, ...], float]:
    """Frequencies for a context `factor` times `original_length`, and the magnitude of cosines and sines.

    Pairs that turn more than `beta_fast` times over the original length keep their frequency, pairs that turn less than
    `beta_slow` times get it divided by `factor`, those between are mixed. Source: Peng et al. 2023, "YaRN".
    """

    def pair_that_turns(times: float) -> float:
        return rotary_dim * math.log(original_length / (times * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_that_turns(beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(beta_slow)), rotary_dim - 1)
    span = max(high - low, 0.001)  # a step where both borders fall together

    def mixed(i: int, frequency: float) -> float:
        stretched = min(max((i - low) / span, 0.0), 1.0)
        return frequency * (1 - stretched) + frequency / factor * stretched

    magnitude = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return tuple(mixed(i, f) for i, f in enumerate(rope_frequencies(rotary_dim, theta))), magnitude


def interleaved_axes(sections: Sequence[int]) -> tuple[int, ...]:
    """The position axis (0 time, 1 height, 2 width) of each frequency of an interleaved multimodal rotary embedding.

    `sections` counts the frequencies of each axis. Axis a takes the indices a, a + 3, ... below `3 * sections[a]`; time
    takes what is left. Where the three positions of a row are equal, as in text, the axes make no difference. Source:
    `Qwen3_5TextRotaryEmbedding` of transformers.
    """
    axes = [0] * sum(sections)
    for axis in (1, 2):
        for index in range(axis, 3 * sections[axis], 3):
            axes[index] = axis
    if [axes.count(axis) for axis in range(3)] != list(sections):
        raise InvariantError(f"sections {list(sections)} cannot be interleaved")
    return tuple(axes)
