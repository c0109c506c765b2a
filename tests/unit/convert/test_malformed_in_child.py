"""Malformed GGUF files in a child process: an error of ours, no signal, bounded time and memory."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from test_gguf_reader import BAD

from make.loader_process import Ending, convert_in_child
from make.make_gguf import TINY, write_gguf
from make.raw_gguf import ARRAY, STRING, U8, U64, RawGGUF, value
from make.tiny_llama import random_weights
from ninfer.convert.gguf.reader import GGUFFile

MOST_SECONDS = 2.0
MOST_BYTES = 200 << 20


def endings(tmp_path: Path, contents: list[bytes]) -> list[Ending]:
    paths = []
    for index, content in enumerate(contents):
        paths.append(tmp_path / f"{index}.gguf")
        paths[-1].write_bytes(content)
    return convert_in_child(paths)


def check(ending: Ending) -> None:
    assert ending.error == "ArtifactError", ending
    assert ending.message is not None
    assert "\n" not in ending.message
    assert ending.seconds < MOST_SECONDS, ending
    assert ending.peak_bytes < MOST_BYTES, ending


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", TINY, random_weights(TINY), kind="Q8_0")


def test_every_bad_header(tmp_path: Path) -> None:
    for name, ending in zip(BAD, endings(tmp_path, [content for content, _ in BAD.values()]), strict=True):
        assert ending.error == "ArtifactError", name
        check(ending)


def test_files_that_are_large_on_purpose(tmp_path: Path) -> None:
    """What a header can make us read is bounded also when the file really has the bytes it claims."""
    empty_strings = struct.pack("<IQ", STRING, 3_000_000) + bytes(24_000_000)
    numbers = struct.pack("<IQ", U64, 3_000_000) + bytes(24_000_000)
    nested = struct.pack("<IQ", ARRAY, 1_000_000) + struct.pack("<IQ", U8, 0) * 1_000_000
    long_string = struct.pack("<Q", 30_000_000) + b"x" * 30_000_000
    legal_strings = struct.pack("<IQ", STRING, 2_000_000) + (struct.pack("<Q", 1) + b"x") * 2_000_000
    many_keys = [(f"key.{index}", U8, value(U8, 1)) for index in range(70_000)]
    contents = [
        *(RawGGUF([("k", ARRAY, encoded)]).build() for encoded in (empty_strings, legal_strings, numbers, nested)),
        RawGGUF([("k", STRING, long_string)]).build(),
        RawGGUF(many_keys).build(),
    ]
    for ending in endings(tmp_path, contents):
        check(ending)


def test_cut_at_every_64th_byte_of_the_header_and_at_20_places_of_the_data(tiny: Path, tmp_path: Path) -> None:
    content = tiny.read_bytes()
    with GGUFFile(tiny) as file:
        data_start = min(info.offset for info in file.tensors.values())
        last = max(file.tensors.values(), key=lambda info: info.offset)
        needed = last.offset + last.nbytes
    step = (needed - data_start) // 20
    sizes = [*range(0, data_start, 64), *range(data_start, needed, step), needed - 1]
    for size, ending in zip(sizes, endings(tmp_path, [content[:size] for size in sizes]), strict=True):
        check(ending)
        if size >= data_start:
            assert ending.message is not None
            assert "tensor '" in ending.message
            assert f"the file has {size}" in ending.message


def test_the_child_would_notice(tiny: Path, tmp_path: Path) -> None:
    """The machinery tells success from failure, and a child that dies from one that refuses."""
    good, bad = endings(tmp_path, [tiny.read_bytes(), b""])
    assert good.error is None
    assert bad.error == "ArtifactError"
    with pytest.raises(RuntimeError, match="the child ended with"):
        convert_in_child([Path("\0")])
