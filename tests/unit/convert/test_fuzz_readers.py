"""Mutated GGUF and safetensors files: read, or refused by an error of ours; what was read is safe to use."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save
from test_gguf_reader import good

from make.fuzz import fuzz
from make.make_gguf import TINY, write_gguf
from make.raw_gguf import ARRAY, STRING, U32, RawGGUF, RawTensor, text
from make.tiny_llama import random_weights
from ninfer.convert.convert import convert
from ninfer.convert.gguf.blocks import IMPORTED_TYPES, dequantise
from ninfer.convert.gguf.reader import GGUFFile
from ninfer.convert.safetensors import SafetensorsFile
from ninfer.errors import ArtifactError, ConversionError

TOKENS = [struct.pack("<I", kind) for kind in (*range(14), 39, 40, 99)]
TOKENS += [struct.pack("<Q", count) for count in (0, 1, 2**32, 2**60, 2**62, 2**63, 2**64 - 32)]
TOKENS += [text("general.alignment") + struct.pack("<I", U32), text("k") + struct.pack("<IIQ", ARRAY, STRING, 2)]


def read_gguf(path: Path) -> None:
    """Open, and decode every tensor that can be."""
    with GGUFFile(path) as file:
        for info in file.tensors.values():
            rows = file.rows(info)
            assert rows.nbytes == info.nbytes
            if info.type.name in IMPORTED_TYPES:
                assert dequantise(info.type.name, rows).size == np.prod(info.shape)
            file.drop_pages(info)


def read_safetensors(path: Path) -> None:
    with SafetensorsFile(path) as file:
        for info in file.tensors.values():
            assert file.rows(info).nbytes == info.nbytes


def test_gguf_reader(tmp_path: Path) -> None:
    kinds = [RawTensor(name, (256, 2), bytes(2 * 256 // n * b), type_id=kind) for name, kind, n, b in (
        ("a", 12, 256, 144), ("b", 14, 256, 210), ("c", 39, 32, 17), ("d", 40, 64, 36), ("e", 30, 1, 2),
    )]  # fmt: skip
    other = RawGGUF(tensors=kinds, alignment=64).add("general.alignment", U32, 64)
    outcome = fuzz(
        read_gguf,
        [good().build(), other.build()],
        tmp_path / "mutant.gguf",
        refuses_with=ArtifactError,
        dictionary=TOKENS,
    )
    assert outcome.accepted > outcome.runs // 100
    assert len(outcome.refusals) > 15, sorted(outcome.refusals)


def test_safetensors_reader(tmp_path: Path) -> None:
    seed = save({"a": np.ones((3, 4), np.float32), "b": np.ones((2, 5), np.float16)}, {"format": "pt"})
    outcome = fuzz(
        read_safetensors,
        [seed],
        tmp_path / "mutant.safetensors",
        refuses_with=(ArtifactError, ConversionError),
        dictionary=[
            b'"',
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b'"F32"',
            b'"BF16"',
            b"\xff",
            b"null",
            b'"data_offsets":[0,48]',
        ],
    )
    assert outcome.accepted > outcome.runs // 100
    assert len(outcome.refusals) > 4, sorted(outcome.refusals)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_whole_conversion(tmp_path: Path) -> None:
    seed = write_gguf(tmp_path / "seed.gguf", TINY, random_weights(TINY), kind="Q4_0").read_bytes()
    outcome = fuzz(
        lambda path: convert(path, tmp_path / "out.ninfer"),
        [seed],
        tmp_path / "mutant.gguf",
        refuses_with=(ArtifactError, ConversionError),
        dictionary=TOKENS,
    )
    assert outcome.accepted > 0
    assert len(outcome.refusals) > 5, sorted(outcome.refusals)
