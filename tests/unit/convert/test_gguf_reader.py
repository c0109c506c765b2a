"""The GGUF reader: what it gives for good files and how it refuses bad ones."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from make.raw_gguf import ARRAY, BOOL, F32, F64, I32, I64, STRING, U8, U16, U32, U64, RawGGUF, RawTensor, text, value
from ninfer.convert.gguf import reader
from ninfer.convert.gguf.reader import GGUFFile
from ninfer.errors import ArtifactError

FLOATS = np.arange(6, dtype=np.float32)


def good() -> RawGGUF:
    """A small legal file with one key of every kind and two tensors."""
    raw = RawGGUF().add("general.architecture", STRING, "llama").add("a.u8", U8, 200).add("a.i32", I32, -5)
    raw.add("a.u64", U64, 2**64 - 1).add("a.f32", F32, 0.5).add("a.f64", F64, 0.1).add("a.flag", BOOL, 1)
    raw.add("a.words", ARRAY, (STRING, ["x", "", "\u00e9"])).add("a.ints", ARRAY, (I32, [1, -2, 3]))
    raw.add("a.flags", ARRAY, (BOOL, [0, 1])).add("a.nested", ARRAY, (ARRAY, [(U8, [1, 2]), (U8, [])]))
    raw.tensors += [
        RawTensor("m", (3, 2), FLOATS.tobytes()),
        RawTensor("q", (64, 3), bytes(range(204)), type_id=8),
    ]
    return raw


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def refusal(tmp_path: Path, content: bytes) -> str:
    """The message of the error that opening `content` gives; it must name the file."""
    path = write(tmp_path / "bad.gguf", content)
    with pytest.raises(ArtifactError) as caught:
        GGUFFile(path)
    assert caught.value.file == str(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_metadata_and_tensors_of_a_good_file(tmp_path: Path) -> None:
    with GGUFFile(write(tmp_path / "good.gguf", good().build())) as file:
        assert file.version == 3
        assert dict(file.metadata) == {
            "general.architecture": "llama", "a.u8": 200, "a.i32": -5, "a.u64": 2**64 - 1, "a.f32": 0.5, "a.f64": 0.1,
            "a.flag": True, "a.words": ["x", "", "\u00e9"], "a.ints": [1, -2, 3], "a.flags": [False, True],
            "a.nested": [[1, 2], []],
        }  # fmt: skip
        assert file.metadata["a.flag"] is True
        assert list(file.tensors) == ["m", "q"]
        assert file.tensors["m"].shape == (2, 3)
        np.testing.assert_array_equal(file.rows(file.tensors["m"]).view(np.float32), FLOATS.reshape(2, 3))
        assert file.rows(file.tensors["q"]).shape == (3, 68)
        assert file.rows(file.tensors["q"]).tobytes() == bytes(range(204))
        assert not file.rows(file.tensors["q"]).flags.writeable
        file.drop_pages(file.tensors["q"])
        assert file.rows(file.tensors["q"]).tobytes() == bytes(range(204))


def test_version_2_and_other_alignments_are_read(tmp_path: Path) -> None:
    raw = good()
    raw.version, raw.alignment = 2, 64
    raw.add("general.alignment", U32, 64)
    with GGUFFile(write(tmp_path / "good.gguf", raw.build())) as file:
        assert file.version == 2
        assert file.tensors["m"].offset % 64 == 0
        np.testing.assert_array_equal(file.rows(file.tensors["m"]).view(np.float32), FLOATS.reshape(2, 3))


def test_every_cut_of_a_good_file_is_refused(tmp_path: Path) -> None:
    content = good().build()
    needed = len(content) - (-204 % 32)  # padding after the last tensor may be missing
    for size in range(needed):
        assert refusal(tmp_path, content[:size])
    GGUFFile(write(tmp_path / "whole.gguf", content[:needed])).close()


def test_files_that_are_no_files(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe.gguf"
    os.mkfifo(fifo)
    for path, word in ((tmp_path, "not a regular file"), (fifo, "not a regular file"), (tmp_path / "x", "opened")):
        with pytest.raises(ArtifactError, match=word):
            GGUFFile(path)
    assert "empty" in refusal(tmp_path, b"")


def header(version: int = 3, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def one_key(key: str | bytes, type_id: int, encoded: bytes) -> bytes:
    return RawGGUF(metadata=[(key, type_id, encoded)]).build()


def one_tensor(**fields: object) -> bytes:
    defaults: dict[str, object] = {"name": "w", "dims": (3, 2), "data": FLOATS.tobytes()}
    return RawGGUF(tensors=[RawTensor(**(defaults | fields))]).build()


BAD = {
    "magic": (b"GGML" + bytes(60), r"magic at offset 0.*GGML"),
    "ninfer magic": (b"NINFER\x00\x01" + bytes(60), r"magic"),
    "version 1": (header(1), r"version at offset 4.*version 1"),
    "version 4": (header(4), r"version at offset 4.*version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), r"version.*big-endian"),
    "key count 2^60": (header(keys=2**60), r"metadata count at offset 16"),
    "tensor count 2^60": (header(tensors=2**60), r"tensor count at offset 8"),
    "counts that do not fit": (header(tensors=1000, keys=1000), r"tensor count and metadata count at offset 8"),
    "key length 2^62": (
        header(keys=1) + struct.pack("<Q", 2**62) + bytes(64), r"key of metadata entry 0 at offset 24.*4611686",
    ),
    "key length near 2^64": (header(keys=1) + b"\xff" * 64, r"key of metadata entry 0 at offset 24"),
    "string past the end": (one_key("k", STRING, struct.pack("<Q", 100) + b"x"), r"metadata 'k'.*needs 100 bytes"),
    "string length 2^63": (one_key("k", STRING, struct.pack("<Q", 2**63) + bytes(64)), r"metadata 'k' at offset"),
    "empty key": (one_key("", U8, b"\1") + bytes(32), r"key of metadata entry 0.*empty key"),
    "key not UTF-8": (one_key(b"\xff\xfe", U8, b"\1"), r"key of metadata entry 0.*UTF-8"),
    "value not UTF-8": (one_key("k", STRING, text(b"a\xc3")), r"metadata 'k'.*UTF-8"),
    "string item not UTF-8": (one_key("k", ARRAY, value(ARRAY, (STRING, ["a", b"\x80"]))), r"metadata 'k'\[1\].*UTF-8"),
    "unknown value type": (one_key("k", 13, bytes(16)), r"metadata 'k'.*unknown value type 13"),
    "array of type 99": (
        one_key("k", ARRAY, struct.pack("<IQ", 99, 2**60)), r"metadata 'k'.*unknown array element type 99",
    ),
    "array of 2^60 strings": (
        one_key("k", ARRAY, struct.pack("<IQ", STRING, 2**60)), r"metadata 'k'.*array of 1152921504606846976 elements",
    ),
    "array of 2^61 doubles wraps": (one_key("k", ARRAY, struct.pack("<IQ", F64, 2**61)), r"metadata 'k'.*array of"),
    "nested 1000 deep": (
        one_key("k", ARRAY, struct.pack("<IQ", ARRAY, 1) * 1000 + struct.pack("<IQ", U8, 0)), r"metadata 'k'.*nested",
    ),
    "bool 2": (one_key("k", BOOL, b"\2"), r"metadata 'k' at offset 37.*BOOL"),
    "bool 7 in an array": (one_key("k", ARRAY, struct.pack("<IQ", BOOL, 2) + b"\1\7"), r"metadata 'k'.*BOOL"),
    "duplicate key": (RawGGUF().add("k", U8, 1).add("k", U8, 1).build(), r"metadata 'k' at offset 38.*duplicate"),
    "alignment 0": (RawGGUF().add("general.alignment", U32, 0).build(), r"'general.alignment'.*power of two"),
    "alignment -32": (RawGGUF().add("general.alignment", I64, -32).build(), r"'general.alignment'.*power of two"),
    "alignment 3": (RawGGUF().add("general.alignment", U32, 3).build(), r"'general.alignment'.*is 3.*power of two"),
    "alignment 2^31": (RawGGUF().add("general.alignment", U32, 2**31).build(), r"'general.alignment'.*to 1048576"),
    "alignment as string": (RawGGUF().add("general.alignment", STRING, "32").build(), r"'general.alignment'.*integer"),
    "alignment as bool": (RawGGUF().add("general.alignment", BOOL, 1).build(), r"'general.alignment'.*integer"),
    "no dimensions": (one_tensor(dims=()), r"tensor 'w'.*has 0 dimensions"),
    "five dimensions": (one_tensor(dims=(1, 1, 1, 3, 2)), r"tensor 'w'.*has 5 dimensions"),
    "2^32-1 dimensions": (one_tensor(num_dims=2**32 - 1), r"tensor 'w'.*has 4294967295 dimensions"),
    "zero dimension": (one_tensor(dims=(3, 0)), r"tensor 'w'.*dimension 1 is zero"),
    "product wraps u64": (one_tensor(dims=(2**32, 2**32)), r"tensor 'w'.*overflow"),
    "row of broken blocks": (one_tensor(dims=(48, 2), type_id=8), r"tensor 'w'.*48 is no multiple of 32.*Q8_0"),
    "removed type": (one_tensor(type_id=4), r"tensor 'w'.*removed tensor type 4"),
    "unknown type": (one_tensor(type_id=77), r"tensor 'w'.*unknown tensor type 77"),
    "empty tensor name": (one_tensor(name=""), r"name of tensor 0.*empty"),
    "tensor name not UTF-8": (one_tensor(name=b"\xc0\xaf"), r"name of tensor 0.*UTF-8"),
    "unaligned offset": (one_tensor(offset=8), r"tensor 'w'.*offset 8 is no multiple of the alignment 32"),
    "offset past the end": (one_tensor(offset=64), r"tensor 'w'.*needs 24 bytes.*the file has"),
    "offset wraps u64": (one_tensor(offset=2**64 - 32), r"tensor 'w'.*needs 24 bytes"),
    "huge tensor": (one_tensor(dims=(2**40, 2)), r"tensor 'w'.*needs 8796093022208 bytes.*the file has"),
    "duplicate tensor": (
        RawGGUF(tensors=[RawTensor("w", (1,), bytes(4)), RawTensor("w", (1,), bytes(4))]).build(), r"'w'.*duplicate",
    ),
    "same offset": (
        RawGGUF(tensors=[RawTensor("a", (1,), bytes(4)), RawTensor("b", (1,), b"", offset=0)]).build(),
        r"tensor 'b'.*overlaps tensor 'a'",
    ),
    "overlapping": (
        RawGGUF(tensors=[RawTensor("a", (16,), bytes(64)), RawTensor("b", (1,), b"", offset=32)]).build(),
        r"tensor 'b'.*overlaps tensor 'a'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_header_is_refused_with_its_field(name: str, tmp_path: Path) -> None:
    content, pattern = BAD[name]
    message = refusal(tmp_path, content)
    assert re.search(pattern, message), message


def test_limits_stop_files_made_to_exhaust_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = RawGGUF().add("k", ARRAY, (STRING, [""] * 9)).add("l", ARRAY, (U16, [1] * 9)).build()
    monkeypatch.setattr(reader, "MAX_ARRAY_ITEMS", 17)
    assert "more than 17 array elements" in refusal(tmp_path, words)
    monkeypatch.setattr(reader, "MAX_HEADER_BYTES", 64)
    assert "limit" in refusal(tmp_path, RawGGUF().add("k", STRING, "x" * 100).build())
    monkeypatch.setattr(reader, "MAX_STRING_BYTES", 4)
    assert "over the limit of 4 bytes" in refusal(tmp_path, RawGGUF().add("k", STRING, "x" * 5).build())


def test_views_outlive_close(tmp_path: Path) -> None:
    file = GGUFFile(write(tmp_path / "good.gguf", good().build()))
    rows = file.rows(file.tensors["m"])
    file.close()
    np.testing.assert_array_equal(rows.view(np.float32), FLOATS.reshape(2, 3))
