"""The sampling rules written down a second time: plain Python floats, whole-vocabulary sorts, no shortcuts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ninfer.decoding import SamplingParams


def oracle_distribution(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> dict[int, float]:
    """Token -> probability after bias, penalties, temperature, top-k, top-p, min-p and renormalisation."""
    values = [float(value) for value in logits]
    for token, bias in params.logit_bias:
        values[token] = float(np.float32(values[token] + bias))
    for token in {*prompt, *output}:
        value = values[token]
        value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        count = list(output).count(token)
        value -= params.frequency_penalty * count
        if count:
            value -= params.presence_penalty
        values[token] = float(np.float32(value))  # the one visible cast
    ranked = sorted(range(len(values)), key=lambda token: (-values[token], token))
    if params.temperature == 0:
        return {ranked[0]: 1.0}
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    top = values[ranked[0]]
    weights = {token: math.exp((values[token] - top) / params.temperature) for token in ranked}
    total = math.fsum(weights.values())
    probabilities = {token: weight / total for token, weight in weights.items()}
    if params.top_p < 1:
        kept, before = [], 0.0
        for token in ranked:
            if kept and before >= params.top_p:
                break
            kept.append(token)
            before += probabilities[token]
        ranked = kept
    ranked = [token for token in ranked if probabilities[token] >= params.min_p * probabilities[ranked[0]]]
    total = math.fsum(probabilities[token] for token in ranked)
    return {token: probabilities[token] / total for token in ranked}


_MASK = 2**64 - 1


def oracle_philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """One block of Philox4x64-10, from the paper's definition."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (
            (product1 >> 64) ^ c1 ^ k0,
            product1 & _MASK,
            (product0 >> 64) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & _MASK, (k1 + 0xBB67AE8584CAA73B) & _MASK
    return c0, c1, c2, c3
