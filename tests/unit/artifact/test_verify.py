"""Every bit of a file is covered, and the object at fault is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from make import raw_artifact
from ninfer.artifact import Artifact, verify
from ninfer.errors import ArtifactError


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
