"""Inverse frequencies: the definition, the long-context variant of transformers, and the axes of three positions."""

from __future__ import annotations

import math
import sys
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from ninfer.errors import InvariantError
from ninfer.models.config_fields import MAX_SIZE
from ninfer.models.qwen3_5 import YARN_BETAS, YARN_FACTORS
from ninfer.ops.frequencies import interleaved_axes, rope_frequencies, yarn_frequencies


def test_the_definition() -> None:
    assert rope_frequencies(4, 100.0) == (1.0, pytest.approx(0.1, rel=1e-15))
    with pytest.raises(InvariantError, match="odd"):
        rope_frequencies(7, 1e4)


@pytest.mark.parametrize(
    ("dim", "theta", "factor", "length"), [(64, 1e7, 4.0, 262144), (128, 1e6, 2.5, 32768), (32, 1e4, 8.0, 128)]
)
def test_transformers_agrees_about_long_contexts(dim: int, theta: float, factor: float, length: int) -> None:
    from transformers import PretrainedConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = PretrainedConfig(head_dim=dim, hidden_size=dim, num_attention_heads=1, max_position_embeddings=length)
    config.rope_parameters = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": factor,
        "original_max_position_embeddings": length,
    }
    want, magnitude = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    got = yarn_frequencies(dim, theta, factor, length)
    np.testing.assert_allclose(got[0], want.numpy(), rtol=1e-6)
    assert got[1] == pytest.approx(magnitude, rel=1e-12)


def test_fast_pairs_keep_their_frequency_and_slow_ones_are_stretched() -> None:
    plain = rope_frequencies(64, 1e7)
    scaled, magnitude = yarn_frequencies(64, 1e7, 4.0, 262144)
    assert magnitude == 0.1 * math.log(4) + 1
    assert scaled[:10] == plain[:10]
    assert scaled[-5:] == tuple(f / 4 for f in plain[-5:])
    assert list(scaled) == sorted(scaled, reverse=True)


@pytest.mark.parametrize("theta", [math.nextafter(1, 2), 1e4, sys.float_info.max])
def test_every_setting_that_is_read_gives_finite_frequencies(theta: float) -> None:
    for factor, length, fast, slow in product(YARN_FACTORS, (1, MAX_SIZE), YARN_BETAS, YARN_BETAS):
        frequencies, magnitude = yarn_frequencies(64, theta, factor, length, beta_fast=fast, beta_slow=slow)
        assert all(0 < f <= 1 for f in frequencies)
        assert 1 <= magnitude < 3


def test_axes_are_interleaved_and_the_rest_is_time() -> None:
    assert "".join("THW"[axis] for axis in interleaved_axes([11, 11, 10])) == "THW" * 10 + "TH"
    assert "".join("THW"[axis] for axis in interleaved_axes([24, 20, 20])) == "THW" * 20 + "TTTT"
    with pytest.raises((InvariantError, IndexError)):
        interleaved_axes([2, 5, 5])


def test_transformers_agrees_about_axes_and_equal_positions_are_ordinary_rope() -> None:
    import torch
    from transformers.models.qwen3_5 import modeling_qwen3_5

    sections = [11, 11, 10]
    choose = modeling_qwen3_5.Qwen3_5TextRotaryEmbedding.recomposition_frequencies
    angles = torch.arange(3.0)[:, None, None, None].expand(3, 1, 1, 32).clone()
    chosen = choose(SimpleNamespace(mrope_section=sections), angles).flatten().tolist()
    assert chosen == 2 * list(interleaved_axes(sections))
    positions, frequencies = np.array([917.0] * 3), np.array(rope_frequencies(64, 1e7))
    by_axis = positions[list(interleaved_axes(sections))] * frequencies
    np.testing.assert_array_equal(by_axis, 917.0 * frequencies)
