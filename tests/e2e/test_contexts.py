"""`ninfer plan` names the largest context; it starts, and what is larger does not.

The models are tiny but have 8 KiB of int8 KV per token and no limit of their own below any machine's memory. Other
processes take and free memory between two commands, so nothing here is asked for within 5 % of the border; the exact
border is tested on made-up machines (tests/engine/test_state_planning.py).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from make import tiny_hybrid
from make.tiny_llama import CONFIGS, random_weights, write_artifact


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine recurrent layers with 9 MB of state, whatever the context."""
    config = replace(
        tiny_hybrid.CONFIG,
        layer_types=("linear_attention", "full_attention") * 8 + ("linear_attention",),
        num_heads=8,
        num_kv_heads=8,
        head_dim=64,
        delta_key_dim=128,
        delta_value_dim=320,
        max_position=1 << 24,
    )
    path: Path = tmp_path_factory.mktemp("contexts") / "hybrid.ninfer"
    return tiny_hybrid.write_artifact(path, config, tiny_hybrid.random_weights(config), "q8g32")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = replace(CONFIGS["uneven"], max_position=1 << 24, num_layers=8, num_heads=8, num_kv_heads=8, head_dim=64)
    path: Path = tmp_path_factory.mktemp("contexts") / "large-kv.ninfer"
    write_artifact(path, config, random_weights(config), "q8g32")
    return path


@pytest.mark.parametrize(("family", "kv_dtype"), [("llama", "int8"), ("hybrid", "bf16")])
def test_the_largest_context_starts_and_a_larger_one_is_refused(ninfer, request, family, kv_dtype) -> None:
    model = request.getfixturevalue(family)
    planned = ninfer("plan", model, "--json").json()
    largest = planned["largest_max_context"][kv_dtype]
    available = planned["hardware"]["available_bytes"]
    if largest == 1 << 24:
        pytest.skip(f"{available} bytes of memory hold every context of the test model")

    settings = ("--kv-dtype", kv_dtype, "--max-context", largest + largest // 20)
    message = ninfer("plan", model, *settings).refusal(3)
    assert f"{kv_dtype} KV" in message
    needed, offered = (int(word) for word in message.split() if word.isdigit() and len(word) > 8)
    assert needed > offered
    assert abs(offered - available) < available / 20
    assert "needs" in ninfer("run", model, "--prompt-ids", "1", "--max-new", "1", *settings).refusal(3)

    settings = ("--kv-dtype", kv_dtype, "--max-context", largest - largest // 20)
    answer = ninfer("run", model, "--prompt-ids", "1,2", "--max-new", "2", *settings, "--json").json()
    assert len(answer["output_ids"]) == 2
