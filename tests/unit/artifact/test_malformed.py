"""Hand-made wrong files: each is one ArtifactError that names file and field, whatever sizes the file claims."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from make import raw_artifact
from make.fuzz import limited_memory
from make.raw_artifact import RawArtifact, framed, sealed, small
from ninfer.artifact import Artifact
from ninfer.artifact.header import MAX_HEADER_BYTES
from ninfer.errors import ArtifactError

MEMORY_BYTES = 512 << 20
"""A header of 8 MiB may become some hundred MiB of Python objects, and not more."""


def refusal(tmp_path: Path, data: bytes) -> tuple[str, str]:
    """(field, complaint) of the error of opening a file with these bytes; it must be presentable."""
    path = tmp_path / "bad.ninfer"
    path.write_bytes(data)
    with limited_memory(MEMORY_BYTES), pytest.raises(ArtifactError) as caught:
        Artifact.open(path)
    error = caught.value
    assert error.file == str(path)
    assert error.field is not None
    prefix = f"{path}: {error.field}: "
    assert str(error).startswith(prefix)
    assert str(error).isprintable()
    complaint = str(error).removeprefix(prefix)
    assert len(error.field) + len(complaint) < 500
    return error.field, complaint


def test_the_sample_is_good(tmp_path: Path) -> None:
    (tmp_path / "good.ninfer").write_bytes(small().build())
    Artifact.open(tmp_path / "good.ninfer").close()


def set_entry(name: str, key: str, value: Any) -> Callable[[RawArtifact], None]:
    return lambda raw: raw.entries[name].update({key: value})


def set_table(name: str, key: str, value: Any) -> Callable[[RawArtifact], None]:
    return lambda raw: raw.table[name].update({key: value})


def set_metadata(key: str, value: Any) -> Callable[[RawArtifact], None]:
    return lambda raw: raw.metadata.update({key: value})


def move(name: str, begin: int, end: int) -> Callable[[RawArtifact], None]:
    def change(raw: RawArtifact) -> None:
        raw.entries[name]["data_offsets"] = [begin, end]
        raw.entries[name]["shape"] = [end - begin]

    return change


HUGE = 1 << 63
SMALL_CASES: list[tuple[str, Callable[[RawArtifact], None], str, str]] = [
    # where things lie (the sample's ranges are 0-64, 64-192, 192-1472, 1472-1536)
    ("overlap", move("embed", 0, 128), "data_offsets", "overlaps"),
    ("hole", move("frontend/tokenizer.json", 1536, 1600), "frontend/tokenizer.json.data_offsets", "hole"),
    ("unaligned", move("norm", 1, 65), "norm.data_offsets", "not at a multiple of 64"),
    (
        "beyond the end",
        move("frontend/tokenizer.json", HUGE, HUGE + 64),
        "frontend/tokenizer.json.data_offsets",
        "hole",
    ),
    ("negative", move("norm", -64, 0), "norm.data_offsets", "not a range"),
    ("reversed", move("norm", 64, 0), "norm.data_offsets", "not a range"),
    ("empty range", move("norm", 0, 0), "norm.data_offsets", "not a range"),
    ("too short", move("embed", 64, 128), "embed.data_offsets", "range of 64 bytes, expected 128"),
    ("huge range", move("embed", 64, 2**64 - 64), "embed.data_offsets", "range of"),
    ("one offset", set_entry("norm", "data_offsets", [0]), "norm.data_offsets", "two integers"),
    ("three offsets", set_entry("norm", "data_offsets", [0, 64, 64]), "norm.data_offsets", "two integers"),
    ("offsets an object", set_entry("norm", "data_offsets", {"0": 64}), "norm.data_offsets", "two integers"),
    ("float offset", set_entry("norm", "data_offsets", [0, 64.0]), "norm.data_offsets", "two integers"),
    ("bool offset", set_entry("norm", "data_offsets", [False, 64]), "norm.data_offsets", "two integers"),
    ("string offset", set_entry("norm", "data_offsets", ["0", 64]), "norm.data_offsets", "two integers"),
    ("null offset", set_entry("norm", "data_offsets", None), "norm.data_offsets", "two integers"),
    # safetensors entries
    ("dtype", set_entry("norm", "dtype", "F32"), "norm", "U8 tensor"),
    ("dtype a number", set_entry("norm", "dtype", 8), "norm", "U8 tensor"),
    ("entry shape", set_entry("norm", "shape", [63]), "norm.shape", "must be [64]"),
    ("entry shape a float", set_entry("norm", "shape", [64.0]), "norm.shape", "must be [64]"),
    ("entry shape of rank 2", set_entry("norm", "shape", [1, 64]), "norm.shape", "must be [64]"),
    ("entry key", set_entry("norm", "stride", 1), "norm", "U8 tensor"),
    ("entry a list", lambda raw: raw.entries.update(norm=[]), "norm", "U8 tensor"),
    ("entry null", lambda raw: raw.entries.update(norm=None), "norm", "U8 tensor"),
    # our table
    ("unknown format", set_table("embed", "format", "q3g64"), "embed.format", "q5g64"),
    ("format a number", set_table("embed", "format", 3), "embed.format", "must be a string"),
    ("format a list", set_table("embed", "format", ["bf16"]), "embed.format", "must be a string"),
    ("another format", set_table("embed", "format", "f32"), "embed.nbytes", "has 192 bytes"),
    ("unknown layout", set_table("embed", "layout", "n32"), "embed.format", "layout 'n32'"),
    ("layout null", set_table("embed", "layout", None), "embed.layout", "must be a string"),
    ("vector as n16", set_table("norm", "layout", "n16"), "norm.format", "matrices"),
    ("codes as row", set_table("layers.0.q", "layout", "row"), "layers.0.q.format", "'row' holds"),
    ("shape empty", set_table("norm", "shape", []), "norm.shape", "1 to 4 sizes"),
    ("rank 5", set_table("norm", "shape", [3, 1, 1, 1, 1]), "norm.shape", "1 to 4 sizes"),
    ("shape with zero", set_table("norm", "shape", [0]), "norm.shape", "1 to 4 sizes"),
    ("shape negative", set_table("norm", "shape", [-3]), "norm.shape", "1 to 4 sizes"),
    ("two negatives", set_table("embed", "shape", [-5, -3]), "embed.shape", "1 to 4 sizes"),
    ("shape a float", set_table("norm", "shape", [3.0]), "norm.shape", "1 to 4 sizes"),
    ("shape a bool", set_table("norm", "shape", [True]), "norm.shape", "1 to 4 sizes"),
    ("shape a number", set_table("norm", "shape", 3), "norm.shape", "1 to 4 sizes"),
    ("shape overflows 64 bits", set_table("embed", "shape", [1 << 40, 1 << 40]), "embed.nbytes", "got 128"),
    ("product wraps to the size", set_table("norm", "shape", [(1 << 40) - 1, 3]), "norm.nbytes", "got 12"),
    ("size beyond the bound", set_table("norm", "shape", [HUGE]), "norm.shape", "1 to 4 sizes"),
    ("nbytes", set_table("norm", "nbytes", 13), "norm.nbytes", "has 12 bytes, got 13"),
    ("nbytes a float", set_table("norm", "nbytes", 12.0), "norm.nbytes", "got 12.0"),
    ("nbytes negative", set_table("norm", "nbytes", -12), "norm.nbytes", "got -12"),
    ("digest short", set_table("norm", "blake2b", "00"), "norm.blake2b", "64 lower-case hex"),
    ("digest upper", set_table("norm", "blake2b", "A" * 64), "norm.blake2b", "64 lower-case hex"),
    ("digest null", set_table("norm", "blake2b", None), "norm.blake2b", "64 lower-case hex"),
    ("table key", set_table("norm", "stride", 1), "ninfer.objects: norm", "exactly"),
    ("table entry a list", lambda raw: raw.table.update(norm=[]), "ninfer.objects: norm", "exactly"),
    ("only in the table", lambda raw: raw.entries.pop("embed"), "embed", "only in ninfer.objects"),
    ("only in the header", lambda raw: raw.table.pop("embed"), "embed", "only in the header"),
    (
        "resource as weight",
        set_table("frontend/tokenizer.json", "format", "f32"),
        "frontend/tokenizer.json.format",
        "u8",
    ),
    # metadata
    ("version 2", set_metadata("ninfer.format_version", "2"), "ninfer.format_version", "written in version '2'"),
    ("version a number", set_metadata("ninfer.format_version", 1), "ninfer.format_version", "written in version 1"),
    ("no version", set_metadata("ninfer.format_version", None), "__metadata__", "without NInfer metadata"),
    ("no digest", set_metadata("ninfer.header_blake2b", None), "ninfer.header_blake2b", "must be a string"),
    ("config missing", set_metadata("ninfer.config", None), "ninfer.config", "must be a string, got None"),
    ("config an object", set_metadata("ninfer.config", {}), "ninfer.config", "must be a string"),
    ("config a list", set_metadata("ninfer.config", "[]"), "ninfer.config", "must be a JSON object, got list"),
    ("config no JSON", set_metadata("ninfer.config", "{"), "ninfer.config", "not valid JSON"),
    ("config empty", set_metadata("ninfer.config", ""), "ninfer.config", "not valid JSON"),
    ("config with NaN", set_metadata("ninfer.config", '{"a":NaN}'), "ninfer.config", "NaN is not a JSON number"),
    ("config infinite", set_metadata("ninfer.config", '{"a":1e999}'), "ninfer.config", "1e999 is out of range"),
    ("provenance twice", set_metadata("ninfer.provenance", '{"a":1,"a":2}'), "ninfer.provenance", "appears twice"),
    ("quantization deep", set_metadata("ninfer.quantization", '{"a":' * 17), "ninfer.quantization", "nested deeper"),
    ("objects a list", set_metadata("ninfer.objects", "[]"), "ninfer.objects", "must be a JSON object"),
    (
        "objects huge integer",
        set_metadata("ninfer.objects", '{"a":' + "9" * 5000 + "}"),
        "ninfer.objects",
        "5000 digits",
    ),
    ("half a surrogate", set_metadata("ninfer.config", '{"a":"\\ud800"}'), "ninfer.config", "surrogate"),
    ("architecture", set_metadata("ninfer.architecture", "Ll ama\n"), "ninfer.architecture", "not a family name"),
    ("unknown key", set_metadata("ninfer.extra", "1"), "ninfer.extra", "unknown metadata key"),
    ("foreign key", set_metadata("format\n", "pt"), r"'format\n'", "unknown metadata key"),
]


@pytest.mark.parametrize(
    ("change", "field", "words"), [case[1:] for case in SMALL_CASES], ids=[c[0] for c in SMALL_CASES]
)
def test_a_wrong_part_is_named(tmp_path: Path, change: Callable[[RawArtifact], None], field: str, words: str) -> None:
    raw = small()
    change(raw)
    seen, complaint = refusal(tmp_path, raw.build())
    assert seen.endswith(field)
    assert words in complaint


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "\u00e9", "x" * 201, "-x", "../x", "/etc/passwd"])
def test_names_are_plain(tmp_path: Path, name: str) -> None:
    raw = RawArtifact()
    raw.add(name, "f32", "row", [1], bytes(4))
    assert "is not a name" in refusal(tmp_path, raw.build())[1]


TEXT_CASES: list[tuple[str, Callable[[bytes], bytes], str, str]] = [
    ("duplicate tensor", lambda t: t[:-1] + b',"norm":' + t.split(b'"norm":')[1], "header", "'norm' appears twice"),
    ("duplicate metadata", lambda t: t[:-1] + b',"__metadata__":{}}', "header", "'__metadata__' appears twice"),
    (
        "duplicate key",
        lambda t: t.replace(b'"dtype":"U8"', b'"dtype":"U8","dtype":"U8"', 1),
        "header",
        "'dtype' appears twice",
    ),
    ("NaN", lambda t: t.replace(b"[0,64]", b"[NaN,64]"), "header", "NaN is not a JSON number"),
    ("-Infinity", lambda t: t.replace(b"[0,64]", b"[-Infinity,64]"), "header", "-Infinity is not a JSON number"),
    ("bad UTF-8", lambda t: t.replace(b"hand-made", b"hand\xff\xfemade"), "header", "not UTF-8 at byte"),
    ("overlong UTF-8", lambda t: t.replace(b"hand-made", b"hand\xc0\xafmade"), "header", "not UTF-8 at byte"),
    ("surrogate in UTF-8", lambda t: t.replace(b"hand-made", b"hand\xed\xa0\x80made"), "header", "not UTF-8 at byte"),
    ("control character", lambda t: t.replace(b"hand-made", b"hand\nmade"), "header", "not valid JSON"),
    ("trailing text", lambda t: t + b"x", "header", "not valid JSON"),
    ("second value", lambda t: t + b"{}", "header", "not valid JSON"),
    ("cut", lambda t: t[:-1], "header", "not valid JSON"),
    ("unclosed string", lambda t: t + b'"', "header", "not valid JSON"),
    ("comment", lambda t: t + b"//", "header", "not valid JSON"),
    ("single quotes", lambda t: t.replace(b'"norm"', b"'norm'"), "header", "not valid JSON"),
    ("a list", lambda t: b"[" + t + b"]", "header", "no JSON object"),
    ("leading space", lambda t: b" " + t, "header", "no JSON object"),
    ("zero bytes", lambda t: bytes(len(t)), "header", "no JSON object"),
    ("space after the brace", lambda t: b"{ " + t[1:], "ninfer.header_blake2b", "digest differs"),
    ("metadata last", lambda t: t.replace(b'{"__metadata__"', b'{"norm":0,"__metadata__"'), "header", "appears twice"),
    (
        "escaped digest key",
        lambda t: t.replace(b"header_blake2b", b"header_blake2\\u0062"),
        "ninfer.header_blake2b",
        "differs",
    ),
    (
        "metadata a list",
        lambda t: b'{"__metadata__":[],"a":' + t[1:].split(b'"norm":')[1],
        "__metadata__",
        "without NInfer",
    ),
    ("no metadata", lambda t: b'{"norm":' + t.split(b'"norm":')[1], "__metadata__", "safetensors file without"),
]


@pytest.mark.parametrize(("edit", "field", "words"), [case[1:] for case in TEXT_CASES], ids=[c[0] for c in TEXT_CASES])
def test_a_wrong_text_is_named(tmp_path: Path, edit: Callable[[bytes], bytes], field: str, words: str) -> None:
    raw = small()
    text: list[bytes] = []
    raw.build(lambda good: text.append(edit(good)) or good)
    assert text[0] != small().build()[8:], "the case changes nothing"
    seen, complaint = refusal(tmp_path, raw.build(edit))
    assert seen == field
    assert words in complaint


def test_truncated_at_every_64th_byte_of_the_header_and_around(tmp_path: Path) -> None:
    data = small().build()
    header_bytes = 8 + int.from_bytes(data[:8], "little")
    cuts = [at + delta for at in range(0, header_bytes + 1, 64) for delta in (-1, 0, 1)]
    for cut in [cut for cut in cuts if 0 < cut <= header_bytes]:
        _, complaint = refusal(tmp_path, data[:cut])
        assert complaint.startswith("truncated: " if cut >= 8 else "not a .ninfer file: only")


def test_truncated_payload_names_the_object(tmp_path: Path) -> None:
    data = small().build()
    for missing, name in ((1, "frontend/tokenizer.json"), (64, "frontend/tokenizer.json"), (65, "layers.0.q")):
        field, complaint = refusal(tmp_path, data[:-missing])
        assert field == f"{name}.data_offsets"
        assert complaint.startswith("truncated: ")


@pytest.mark.parametrize(
    "length", [0, 1, 8, MAX_HEADER_BYTES + 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
)
def test_header_length_out_of_range(tmp_path: Path, length: int) -> None:
    data = length.to_bytes(8, "little") + small().build()[8:]
    field, complaint = refusal(tmp_path, data)
    assert field == "header length"
    assert str(length) in complaint


def test_payloads_must_start_on_a_border(tmp_path: Path) -> None:
    data = small().build()
    length = int.from_bytes(data[:8], "little")
    moved = (length + 8).to_bytes(8, "little") + data[8 : 8 + length] + b" " * 8 + data[8 + length :]
    field, complaint = refusal(tmp_path, sealed(moved))
    assert field == "header"
    assert "not at a multiple of 64" in complaint


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_file_of_the_cpp_ninfer_is_recognised(tmp_path: Path, version: int) -> None:
    field, complaint = refusal(tmp_path, b"NINFER\0" + bytes([version]) + bytes(200))
    assert field == "magic"
    assert f"C++ NInfer, container version {version};" in complaint
    assert "must be converted" in complaint


def test_other_files_are_recognised(tmp_path: Path) -> None:
    assert "version 9, which we do not know" in refusal(tmp_path, b"NINFER\0\x09" + bytes(200))[1]
    assert "this is a GGUF file" in refusal(tmp_path, b"GGUF\3\0\0\0" + bytes(200))[1]
    plain = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    assert "safetensors file without NInfer" in refusal(tmp_path, framed(plain, bytes(4)))[1]
    assert "not a .ninfer file" in refusal(tmp_path, b"PK\3\4" + bytes(200))[1]


BOMBS: list[tuple[str, bytes, str]] = [
    ("arrays", b'{"a":' + b"[" * (MAX_HEADER_BYTES - 100), "arrays and objects"),
    ("objects", b'{"a":' * (MAX_HEADER_BYTES // 5 - 20), "arrays and objects"),
    ("deep", b'{"a":' * 20_000, "nested deeper"),
    ("many small arrays", b'{"a":[' + b"[]," * (MAX_HEADER_BYTES // 3 - 100) + b"[]]}", "arrays and objects"),
    ("many keys", b"{" + b",".join(b'"%x":0' % i for i in range(700_000)) + b"}", "without NInfer metadata"),
    ("many strings", b'{"a":[' + b'"",' * (MAX_HEADER_BYTES // 3 - 100) + b'""]}', "without NInfer metadata"),
    ("quotes", b'{"a":"' + b'\\"' * (MAX_HEADER_BYTES // 2 - 100), "not valid JSON"),
    ("backslashes", b'{"' + b"\\" * (MAX_HEADER_BYTES - 101), "not valid JSON"),
    ("digits", b'{"a":' + b"7" * (MAX_HEADER_BYTES - 100) + b"}", "integer of 8388508 digits"),
    ("decimals", b'{"a":0.' + b"7" * (MAX_HEADER_BYTES - 100) + b"}", "number of 8388510 characters"),
    ("spaces", b"{" + b" " * (MAX_HEADER_BYTES - 100), "not valid JSON"),
    ("one long key", b'{"' + b"k" * (MAX_HEADER_BYTES - 100) + b'":0}', "without NInfer metadata"),
]


@pytest.mark.parametrize(("text", "words"), [case[1:] for case in BOMBS], ids=[case[0] for case in BOMBS])
def test_headers_as_large_as_allowed_are_refused_in_bounded_room(tmp_path: Path, text: bytes, words: str) -> None:
    field, complaint = refusal(tmp_path, framed(text, b""))
    assert field in ("header", "__metadata__")
    assert words in complaint


def test_more_objects_than_allowed(tmp_path: Path) -> None:
    raw = RawArtifact()
    entry = {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}
    raw.entries = {f"{index}": entry for index in range(16385)}
    raw.table = {}
    assert "16385 objects, at most 16384" in refusal(tmp_path, raw.build())[1]


def test_a_header_changed_after_sealing_is_refused(tmp_path: Path) -> None:
    data = small().build()
    changed = data.replace(b"hand-made", b"hand-Made")
    assert changed != data
    assert refusal(tmp_path, changed)[0] == "ninfer.header_blake2b"
    assert raw_artifact.sealed(changed) != changed


def test_a_digest_that_does_not_lie_in_its_place_is_refused_even_if_it_is_right(tmp_path: Path) -> None:
    """One character further on, one byte of the header would be covered by nothing."""
    start = raw_artifact.DIGEST_AT
    for attempt in range(1000):
        raw = small()
        raw.provenance = {"attempt": attempt}
        data = raw.build(lambda text: text.replace(b'{"__metadata__"', b'{ "__metadata__"'))
        end = 8 + int.from_bytes(data[:8], "little")
        guess = data[:start] + b'"' + b"0" * 64 + data[start + 65 : end]  # the last digit lies behind the place
        digest = raw_artifact.digest_of(guess[:start] + b"0" * 64 + guess[start + 64 :])
        if digest.endswith("0"):
            break
    else:
        pytest.fail("no attempt hit its last digit")
    data = data[: start + 1] + digest.encode() + data[start + 65 :]
    assert refusal(tmp_path, data)[0] == "ninfer.header_blake2b"
