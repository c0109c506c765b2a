"""Memory of a conversion: bounded by the largest tensor, not by the model."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from make.loader_process import convert_in_child
from make.make_gguf import TINY, gguf_name, metadata, write_gguf
from make.raw_gguf import ARRAY, BOOL, F32, I32, STRING, U32, RawGGUF, RawTensor
from make.tiny_llama import random_weights

LARGE = replace(
    TINY,
    hidden_size=1024,
    intermediate_size=2048,
    num_layers=8,
    num_heads=16,
    num_kv_heads=8,
    head_dim=64,
    tied_head=True,
)
KINDS = {"F32": (0, 4, 1), "Q8_0": (8, 34, 32)}


def write_sparse(path: Path, kind: str) -> int:
    """A large model of zeros that takes no room on the disk; gives the bytes of its largest tensor."""
    raw = RawGGUF().add("general.architecture", STRING, "llama")
    for key, content in metadata(LARGE).items():
        match content:
            case bool():
                raw.add(key, BOOL, content)
            case int():
                raw.add(key, U32, content)
            case float():
                raw.add(key, F32, content)
            case str():
                raw.add(key, STRING, content)
            case list():
                raw.add(key, ARRAY, (STRING if isinstance(content[0], str) else I32, content))
    end, largest = 0, 0
    for name, shape in LARGE.tensor_shapes().items():
        type_id, block_bytes, block = KINDS[kind] if len(shape) == 2 else KINDS["F32"]
        count = shape[0] * shape[1] if len(shape) == 2 else shape[0]
        nbytes = count // block * block_bytes
        raw.tensors.append(RawTensor(gguf_name(name), tuple(reversed(shape)), b"", type_id=type_id, offset=end))
        end += -(-nbytes // 32) * 32
        largest = max(largest, nbytes)
    header = raw.build()
    path.write_bytes(header)
    os.truncate(path, len(header) + end)
    return largest


@pytest.mark.parametrize("kind", KINDS)
def test_peak_grows_with_the_largest_tensor_not_with_the_model(kind: str, tmp_path: Path) -> None:
    tiny = write_gguf(tmp_path / "tiny.gguf", TINY, random_weights(TINY), kind=kind)
    largest = write_sparse(tmp_path / "large.gguf", kind)
    small_run, large_run = convert_in_child([tiny, tmp_path / "large.gguf"])
    assert small_run.error is None
    assert large_run.error is None, large_run
    grown = large_run.peak_bytes - small_run.peak_bytes
    model_bytes = (tmp_path / "large.gguf").stat().st_size
    assert grown < 2 * largest + (32 << 20) < model_bytes
