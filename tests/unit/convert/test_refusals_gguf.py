"""What a GGUF file may ask for that we do not do, and metadata or tensors that do not fit together: refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from make.make_gguf import TINY, gguf_name, write_gguf
from make.tiny_llama import random_weights
from ninfer.convert.convert import convert
from ninfer.errors import ArtifactError, ConversionError, NInferError

WEIGHTS = random_weights(TINY)
PAIR = np.ones(2, np.float32)

METADATA: list[tuple[dict[str, Any], type[NInferError], str]] = [
    # values that are missing, of the wrong type, out of range or in contradiction: the file is wrong
    ({"general__architecture": 7}, ArtifactError, r"'general.architecture': must be text"),
    ({"llama__block_count": 0}, ArtifactError, r"'llama.block_count': is 0"),
    ({"llama__block_count": 2**31}, ArtifactError, r"'llama.block_count': is 2147483648; allowed is 1 to 1024"),
    ({"llama__block_count": None}, ArtifactError, r"'llama.block_count': is missing"),
    ({"llama__block_count": "two"}, ArtifactError, r"'llama.block_count': must be an integer, not str"),
    ({"llama__block_count": True}, ArtifactError, r"'llama.block_count': must be an integer, not bool"),
    ({"llama__attention__head_count": 0}, ArtifactError, r"'llama.attention.head_count': is 0"),
    ({"llama__attention__head_count": [4, 2]}, ArtifactError, r"'llama.attention.head_count': must be an integer"),
    ({"llama__attention__head_count_kv": 8}, ArtifactError, r"'llama.attention.head_count_kv': is 8.*divide"),
    ({"llama__attention__head_count_kv": 3}, ArtifactError, r"'llama.attention.head_count_kv': is 3.*divide"),
    ({"llama__attention__head_count_kv": 0}, ArtifactError, r"'llama.attention.head_count_kv': is 0"),
    ({"llama__embedding_length": 0}, ArtifactError, r"'llama.embedding_length': is 0"),
    ({"llama__feed_forward_length": 0}, ArtifactError, r"'llama.feed_forward_length': is 0"),
    ({"llama__context_length": 0}, ArtifactError, r"'llama.context_length': is 0"),
    ({"llama__attention__key_length": 23, "llama__attention__value_length": 23, "llama__rope__dimension_count": 23},
     ArtifactError, r"'llama.attention.key_length'.*23.*even"),
    ({"llama__rope__dimension_count": 7}, ArtifactError, r"'llama.rope.dimension_count': is 7.*even"),
    ({"llama__rope__dimension_count": 0}, ArtifactError, r"'llama.rope.dimension_count': is 0"),
    ({"llama__rope__freq_base": 0.0}, ArtifactError, r"'llama.rope.freq_base': is 0"),
    ({"llama__rope__freq_base": 1.0}, ArtifactError, r"'llama.rope.freq_base': is 1.0; .*above 1 is needed"),
    ({"llama__rope__freq_base": float("nan")}, ArtifactError, r"'llama.rope.freq_base': is nan"),
    ({"llama__attention__layer_norm_rms_epsilon": None}, ArtifactError, r"'llama.attention.layer_norm_rms_epsilon'"),
    ({"llama__attention__layer_norm_rms_epsilon": -1e-5}, ArtifactError, r"'llama.attention.layer_norm_rms_epsilon'"),
    ({"llama__vocab_size": 99}, ArtifactError, r"'llama.vocab_size': is 99, the embedding has \d+ rows"),
    ({"tokenizer__ggml__tokens": ["a"]}, ArtifactError, r"'tokenizer.ggml.tokens': has 1 tokens"),
    ({"tokenizer__ggml__eos_token_id": 5000}, ArtifactError, r"tokenizer.ggml.eos_token_id"),
    ({"tokenizer__ggml__bos_token_id": -1}, ArtifactError, r"tokenizer.ggml.bos_token_id"),
    ({"tokenizer__ggml__eot_token_id": "x"}, ArtifactError, r"tokenizer.ggml.eot_token_id"),
    ({"tokenizer__ggml__token_type": None}, ArtifactError, r"tokenizer.ggml.token_type"),
    ({"tokenizer__chat_template": 5}, ArtifactError, r"'tokenizer.chat_template': must be text"),
    ({"tokenizer__chat_template": "{% if %}"}, ArtifactError, r"chat_template"),
    # legal, but not something we compute
    ({"general__architecture": "qwen2"}, ConversionError, r"'general.architecture' is 'qwen2'.*llama, qwen35"),
    ({"general__type": "adapter"}, ConversionError, r"'general.type' is 'adapter'"),
    ({"llama__rope__scaling__type": "linear"}, ConversionError, r"'llama.rope.scaling.type' is 'linear'.*scaled"),
    ({"llama__rope__scaling__factor": 4.0}, ConversionError, r"'llama.rope.scaling.factor' is 4.0.*scaled"),
    ({"llama__rope__scale_linear": 2.0}, ConversionError, r"'llama.rope.scale_linear' is 2.0"),
    ({"llama__rope__scaling__yarn_log_multiplier": 0.1}, ConversionError, r"yarn_log_multiplier.*no rule"),
    ({"llama__rope__dimension_count": 12}, ConversionError, r"'llama.rope.dimension_count' is 12"),
    ({"llama__attention__value_length": 32}, ConversionError, r"'llama.attention.value_length' is 32"),
    ({"llama__attention__causal": False}, ConversionError, r"'llama.attention.causal'"),
    ({"llama__attention__sliding_window": 64}, ConversionError, r"'llama.attention.sliding_window' is 64.*no rule"),
    ({"llama__expert_count": 8}, ConversionError, r"'llama.expert_count' is 8.*experts"),
    ({"llama__logit_scale": 0.5}, ConversionError, r"'llama.logit_scale' is 0.5.*no rule"),
    ({"split__count": 3}, ConversionError, r"one of 3 shards.*merge"),
    ({"tokenizer__ggml__model": "llama"}, ConversionError, r"tokenizer.ggml.model is 'llama'"),
    ({"tokenizer__ggml__pre": "unheard-of"}, ConversionError, r"tokenizer.ggml.pre is 'unheard-of'"),
]  # fmt: skip


def refusal(tmp_path: Path, kind: type[NInferError], **arguments: Any) -> str:
    """The message of the refusal, which names the file and leaves no output."""
    source = write_gguf(tmp_path / "bad.gguf", TINY, WEIGHTS, **arguments)
    with pytest.raises(kind) as caught:
        convert(source, tmp_path / "out.ninfer")
    assert str(source) in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.gguf"]
    return str(caught.value)


@pytest.mark.parametrize(("changed", "kind", "pattern"), METADATA, ids=lambda value: str(value)[:60])
def test_metadata_is_refused_by_its_key(
    changed: dict[str, Any], kind: type[NInferError], pattern: str, tmp_path: Path
) -> None:
    message = refusal(tmp_path, kind, **changed)
    assert re.search(pattern, message), message


def test_sizes_stored_per_layer_count_as_one_when_equal(tmp_path: Path) -> None:
    source = write_gguf(
        tmp_path / "a.gguf", TINY, WEIGHTS, llama__attention__head_count_kv=[2, 2], llama__feed_forward_length=[96, 96]
    )
    convert(source, tmp_path / "a.ninfer")


def test_neutral_settings_are_accepted(tmp_path: Path) -> None:
    source = write_gguf(
        tmp_path / "a.gguf",
        TINY,
        WEIGHTS,
        llama__rope__scaling__type="none",
        llama__rope__scaling__factor=1.0,
        llama__expert_count=0,
        llama__attention__causal=True,
        split__count=1,
    )
    convert(source, tmp_path / "a.ninfer")


@pytest.mark.parametrize("name", list(WEIGHTS))
def test_each_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    message = refusal(tmp_path, ArtifactError, without=(gguf_name(name),))
    assert f"missing tensors: {gguf_name(name)}" in message


def test_a_renamed_tensor_is_named_with_its_old_and_new_name(tmp_path: Path) -> None:
    message = refusal(
        tmp_path, ArtifactError, without=("blk.1.attn_v.weight",), extra={"blk.1.attn_w.weight": WEIGHTS["layers.1.v"]}
    )
    assert "missing tensors: blk.1.attn_v.weight; unexpected tensors: blk.1.attn_w.weight" in message


def test_long_lists_of_missing_tensors_are_cut_and_counted(tmp_path: Path) -> None:
    message = refusal(tmp_path, ArtifactError, without=tuple(gguf_name(name) for name in WEIGHTS if "layers" in name))
    assert "blk.0.attn_norm.weight" in message
    assert "and 10 more" in message


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("rope_freqs.weight", "scaled rotary"),
        ("blk.0.attn_q.bias", "biases"),
        ("blk.1.ffn_down.bias", "biases"),
        ("blk.0.ffn_gate_inp.weight", "experts"),
        ("blk.0.ffn_up_exps.weight", "experts"),
        ("blk.0.attn_q_norm.weight", "without a rule"),
        ("blk.0.attn_q.scale", "without a rule"),
        ("blk.2.attn_norm.weight", "without a rule"),
    ],
)
def test_tensors_we_do_not_compute_with_are_refused_by_name(name: str, word: str, tmp_path: Path) -> None:
    message = refusal(tmp_path, ConversionError, extra={name: PAIR})
    assert name in message
    assert word in message


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    wrong = np.zeros((48, 32), np.float32)
    message = refusal(tmp_path, ArtifactError, stored={"layers.1.k": ("F32", wrong)})
    assert "blk.1.attn_k.weight is [48, 32], needed is [48, 64]" in message


def test_a_matrix_in_the_place_of_a_vector_is_a_wrong_shape(tmp_path: Path) -> None:
    message = refusal(tmp_path, ArtifactError, stored={"norm": ("F32", np.zeros((1, 64), np.float32))})
    assert "output_norm.weight is [1, 64], needed is [64]" in message


def test_a_tensor_type_that_is_not_imported_is_named(tmp_path: Path) -> None:
    rows = np.zeros((96, 18 * 2), np.uint8)
    message = refusal(tmp_path, ConversionError, stored={"layers.0.up": ("IQ4_NL", rows)})
    assert "blk.0.ffn_up.weight is IQ4_NL" in message
    assert "NVFP4" in message


def test_a_shard_is_recognised_by_its_file_name_alone(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "model-00002-of-00003.gguf", TINY, WEIGHTS)
    with pytest.raises(ConversionError, match=r"one of 3 shards"):
        convert(source, tmp_path / "out.ninfer")


@pytest.mark.parametrize(
    "make", [lambda path: path / "absent.gguf", lambda path: path / "x.txt"], ids=["absent", "absent text"]
)
def test_a_source_that_is_not_there_is_an_error_with_its_name(make: Callable[[Path], Path], tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"cannot be opened: No such file"):
        convert(make(tmp_path), tmp_path / "out.ninfer")
