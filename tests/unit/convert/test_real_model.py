"""The real SmolLM2 file through the whole conversion, against the gguf package."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from ninfer import formats
from ninfer.artifact import Artifact, verify
from ninfer.convert.convert import convert
from ninfer.convert.fetch import has_content
from ninfer.convert.published import PUBLISHED
from ninfer.models.llama import LlamaConfig

pytestmark = pytest.mark.real_model

SOURCE_NAMES = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up",
                "down": "ffn_down", "attn_norm": "attn_norm", "mlp_norm": "ffn_norm"}  # fmt: skip


@pytest.fixture(scope="module")
def converted(real_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("real") / "smollm2.ninfer"
    report = convert(real_gguf, path)
    assert report.exact
    assert not report.notes
    return path


def source_name(name: str) -> str:
    if name == "embed":
        return "token_embd.weight"
    if name == "norm":
        return "output_norm.weight"
    _, layer, part = name.split(".")
    return f"blk.{layer}.{SOURCE_NAMES[part]}.weight"


def test_the_file_is_the_published_one(real_gguf: Path) -> None:
    assert has_content(PUBLISHED["smollm2"], real_gguf)


def test_every_value_is_that_of_the_gguf_package(real_gguf: Path, converted: Path) -> None:
    reader = gguf.GGUFReader(real_gguf)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    heads = {"q": 9, "k": 3}
    assert not verify(converted)
    with Artifact.open(converted) as artifact:
        assert len(artifact.tensors) == len(tensors) == 272
        for name, entry in artifact.tensors.items():
            tensor = tensors[source_name(name)]
            expected = dequantize(tensor.data, tensor.tensor_type).reshape(entry.shape)
            part = name.rpartition(".")[2]
            if part in heads:
                expected = np.concatenate(
                    [
                        head[order]
                        for head in np.split(expected, heads[part])
                        for order in (slice(0, None, 2), slice(1, None, 2))
                    ]
                )
            values = formats.get(entry.format).unpack(artifact.planes(name)).reshape(entry.shape)
            # The package rounds product and sum to float32; ours are the exact values.
            np.testing.assert_allclose(values, expected, rtol=2e-7, atol=1e-8 * np.abs(expected).max(), err_msg=name)
        assert {entry.format for entry in artifact.tensors.values()} == {"q4g32m", "q8g32", "f32"}
        config = LlamaConfig.read(artifact.config)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert config.stop_token_ids == (2, 0)
    assert config.tied_head
