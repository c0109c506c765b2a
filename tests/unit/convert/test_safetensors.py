"""The safetensors reader: what it gives for good files and how it refuses bad ones."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ninfer.convert.safetensors import SafetensorsFile
from ninfer.errors import ArtifactError, ConversionError, NInferError


def build(directory: object, data: bytes = bytes(48), *, length: int | None = None) -> bytes:
    """A file from a directory (JSON value or raw text) and its data."""
    text = directory if isinstance(directory, bytes) else json.dumps(directory).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: object = "F32", shape: object = (3, 4), offsets: object = (0, 48), **extra: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **extra}


def test_tensors_of_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    arrays = {"m": np.arange(12, dtype=np.float32).reshape(3, 4), "h": np.ones((2, 5), np.float16)}
    save_file(arrays, path, metadata={"format": "pt"})
    with SafetensorsFile(path) as file:
        assert set(file.tensors) == {"m", "h"}
        for name, array in arrays.items():
            info = file.tensors[name]
            assert info.shape == array.shape
            np.testing.assert_array_equal(file.rows(info).view(array.dtype), array)


BAD: dict[str, tuple[bytes, type[NInferError], str]] = {
    "short": (b"\1\0", ArtifactError, r"header length: truncated: 2 bytes"),
    "length past the end": (build({}, length=10**6), ArtifactError, r"header length: is 1000000"),
    "length 2^63": (build({}, length=2**63), ArtifactError, r"header length: is 9223372036854775808"),
    "no JSON": (build(b"{"), ArtifactError, r"header: not valid JSON"),
    "no object": (build([]), ArtifactError, r"header: must be a JSON object"),
    "not UTF-8": (build(b'{"\xff": 1}'), ArtifactError, r"header: not UTF-8"),
    "same name twice": (build(b'{"w": {}, "w": {}}'), ArtifactError, r"header.*'w' appears twice"),
    "deep nesting": (build(b"[" * 100_000), ArtifactError, r"header.*nested"),
    "entry is a number": (build({"w": 1}), ArtifactError, r"tensor 'w': needs exactly dtype"),
    "entry with more": (build({"w": entry(extra=1)}), ArtifactError, r"tensor 'w': needs exactly dtype"),
    "dtype is a number": (build({"w": entry(7)}), ArtifactError, r"tensor 'w': dtype 7"),
    "dtype is not imported": (build({"w": entry("F8_E5M2")}), ConversionError, r"tensor 'w' has dtype 'F8_E5M2'.*BF16"),
    "scalar of many bytes": (build({"w": entry(shape=[])}), ArtifactError, r"tensor 'w'.*F32 \[\] needs 4 bytes"),
    "zero size": (build({"w": entry(shape=[0, 4])}), ArtifactError, r"tensor 'w': shape \[0, 4\]"),
    "negative size": (build({"w": entry(shape=[-3, -4])}), ArtifactError, r"tensor 'w': shape"),
    "fraction": (build({"w": entry(shape=[3.0, 4])}), ArtifactError, r"tensor 'w': shape"),
    "huge size": (build({"w": entry(shape=[2**62, 4])}), ArtifactError, r"tensor 'w': shape"),
    "product too large": (build({"w": entry(shape=[2**40, 2**40])}), ArtifactError, r"tensor 'w'.*needs 4835703278458"),
    "one offset": (build({"w": entry(offsets=[0])}), ArtifactError, r"tensor 'w': data_offsets \[0\]"),
    "negative offset": (build({"w": entry(offsets=[-48, 0])}), ArtifactError, r"tensor 'w': data_offsets"),
    "end before begin": (build({"w": entry(offsets=[48, 0])}), ArtifactError, r"tensor 'w'.*hold -48"),
    "wrong size": (build({"w": entry(offsets=[0, 44])}), ArtifactError, r"tensor 'w'.*needs 48 bytes.*hold 44"),
    "past the end": (build({"w": entry(offsets=[8, 56])}), ArtifactError, r"tensor 'w'.*file has 48 bytes of data"),
    "gap": (build({"w": entry("F32", [2], [8, 16])}), ArtifactError, r"tensor 'w': leaves a gap after the header"),
    "overlap": (
        build({"a": entry(), "b": entry("F32", [2], [40, 48])}), ArtifactError, r"tensor 'b': overlaps tensor 'a'",
    ),
    "data behind the last": (build({"w": entry()}, bytes(50)), ArtifactError, r"end of file: 2 bytes after tensor 'w'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_with_their_field(name: str, tmp_path: Path) -> None:
    content, kind, pattern = BAD[name]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(kind) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value)
    assert re.search(pattern, str(caught.value)), str(caught.value)


def test_every_cut_is_refused(tmp_path: Path) -> None:
    content = build({"w": entry()})
    path = tmp_path / "cut.safetensors"
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(ArtifactError):
            SafetensorsFile(path)
