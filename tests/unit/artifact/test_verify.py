"""Every bit of a file is covered, and the object at fault is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from make import raw_artifact
from ninfer import formats
from ninfer.artifact import Artifact, verify
from ninfer.errors import ArtifactError
from ninfer.formats import layouts


def tiny() -> raw_artifact.RawArtifact:
    raw = raw_artifact.RawArtifact(config={}, provenance={})
    raw.add("norm", "f32", "row", [20], bytes(range(80)))
    raw.add("frontend/a", "u8", "row", [3], b"abc")
    return raw


def test_every_flipped_bit_is_found_and_its_object_named(tmp_path: Path) -> None:
    path = tmp_path / "a.ninfer"
    good = tiny().build()
    path.write_bytes(good)
    assert verify(path) == []
    with Artifact.open(path) as artifact:
        owner = {
            at: entry.name
            for entry in artifact.objects.values()
            for at in range(entry.offset, entry.offset + entry.padded_nbytes)
        }
    assert len(owner) == 192
    for at in range(len(good)):
        for bit in range(8):
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([good[at] ^ 1 << bit]))
            problems = verify(path)
            assert [problem.object for problem in problems] == [owner.get(at, "header")], f"byte {at}, bit {bit}"
        with path.open("r+b") as file:
            file.seek(at)
            file.write(good[at : at + 1])
    assert verify(path) == []


def test_several_problems_are_all_named(tmp_path: Path) -> None:
    path = tmp_path / "a.ninfer"
    data = bytearray(raw_artifact.small().build())
    with_offsets = {}
    path.write_bytes(data)
    with Artifact.open(path) as artifact:
        with_offsets = {name: entry.offset for name, entry in artifact.objects.items()}
    data[with_offsets["norm"] + 63] = 1
    data[with_offsets["layers.0.q"]] ^= 0xFF
    path.write_bytes(data)
    problems = verify(path)
    assert [problem.object for problem in problems] == ["norm", "layers.0.q"]
    assert "padding" in str(problems[0])
    assert str(problems[1]).startswith("layers.0.q: the 1280 bytes")


def nothing_wrong(format: str, n: int = 35, k: int = 70) -> bytearray:
    return bytearray(layouts.to_n16(formats.get(format).pack(np.ones((n, k), np.float32)), format).tobytes())


FLAWS: list[tuple[str, int, bytes, str]] = [  # format, byte, content, problem
    ("f32", 4 * (5 * 16 + 3), b"\0\0\xc0\x7f", "a code of row 3 is NaN or infinite"),
    ("bf16", 2 * (5 * 16 + 3), b"\x80\xff", "a code of row 3 is NaN or infinite"),
    ("q8g32", 2 * (1 * 16 + 15), b"\0\x7c", "a scale of row 15 is NaN or infinite"),
    ("q4g32m", 128 + 2 * (2 * 16 + 9), b"\xff\xff", "a minimum of row 9 is NaN or infinite"),
    ("q6g64", 2 * 16, b"\xff\x7f", "a scale of row 0 is NaN or infinite"),
    ("nvfp4", 3 * 16 + 4, b"\x7f", "a scale of row 4 is NaN or infinite"),
    ("nvfp4", -64, bytes(8), "tensor scale factor 0.0 must be from 2^-100 to 2^100"),
    ("nvfp4", -56, b"\0\0\xc0\x7f", "input scale nan must be from 2^-100 to 2^100"),
    ("nvfp4", -1, b"\x01", "bytes behind the tensor scale are not zero"),
    ("fp8", 4 * 7, b"\0\0\x80\x7f", "a scale of row 7 is NaN or infinite"),
    ("fp8", 2 * (64 + 16 * 72) + 64 + 16 * 68 + 4 * 2 + 1, b"\xff", "a code of row 34 is NaN or infinite"),
]


@pytest.mark.parametrize(("format", "at", "content", "problem"), FLAWS, ids=lambda value: str(value)[:30])
def test_numbers_that_are_none_are_named(format: str, at: int, content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "a.ninfer"
    image = nothing_wrong(format)
    start = at % len(image)
    for flawed in (False, True):
        if flawed:
            image[start : start + len(content)] = content
        raw = tiny()
        raw.add("layers.0.q", format, "n16", [35, 70], bytes(image))
        path.write_bytes(raw.build())
        assert [str(found) for found in verify(path)] == ([f"layers.0.q: {problem}"] if flawed else [])


def test_vectors_hold_numbers_too(tmp_path: Path) -> None:
    raw = raw_artifact.RawArtifact(config={}, provenance={})
    raw.add("norm", "f32", "row", [3], np.array([1, 2, np.inf], "<f4").tobytes())
    raw.add("frontend/a", "u8", "row", [4], b"\xff" * 4)
    (tmp_path / "a.ninfer").write_bytes(raw.build())
    assert [str(found) for found in verify(tmp_path / "a.ninfer")] == ["norm: value 2 is NaN or infinite"]


def test_one_byte_more_or_less_is_a_header_problem(tmp_path: Path) -> None:
    path = tmp_path / "a.ninfer"
    good = tiny().build()
    for data, word in ((good + b"\0", "behind the last object"), (good[:-1], "truncated")):
        path.write_bytes(data)
        (problem,) = verify(path)
        assert problem.object == "header"
        assert word in problem.message


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.ninfer").touch()
    for name, word in (("none.ninfer", "No such file"), ("empty.ninfer", "empty"), (".", "directory"), ("\0", "null")):
        with pytest.raises(ArtifactError, match=word):
            verify(tmp_path / name)
        with pytest.raises(ArtifactError, match=word):
            Artifact.open(tmp_path / name)
