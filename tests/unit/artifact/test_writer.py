"""What the writer writes: bytes against a hand-made file, safetensors readers, atomic appearance, refusals."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from make import raw_artifact
from make.fuzz import limited_memory
from ninfer import formats
from ninfer.artifact import Artifact, ArtifactWriter, header, verify
from ninfer.errors import ArtifactError, InvariantError
from ninfer.formats import layouts

CONFIG = {"tied_head": True, "rope_theta": 1e5, "hidden_size": 3}


def write_small(path: Path) -> Path:
    """The file of `raw_artifact.small`, made by the writer."""
    raw = raw_artifact.small()
    with ArtifactWriter(path, "llama", CONFIG, raw.provenance) as writer:
        for name, payload in raw.payloads.items():
            stored = raw.table[name]
            writer.add(name, stored["format"], stored["layout"], stored["shape"], payload)
        return writer.finish()


def test_bytes_equal_a_hand_made_file(tmp_path: Path) -> None:
    path = write_small(tmp_path / "a.ninfer")
    assert path.read_bytes() == raw_artifact.small().build()
    assert verify(path) == []


def test_any_safetensors_reader_opens_it(tmp_path: Path) -> None:
    path = write_small(tmp_path / "a.ninfer")
    with safetensors.safe_open(path, "np") as file:
        metadata = file.metadata()
        assert set(file.keys()) == set(raw_artifact.small().payloads)
    tensors = safetensors.numpy.load_file(path)
    with Artifact.open(path) as artifact:
        assert set(metadata) == set(header.METADATA_KEYS)
        assert metadata["ninfer.header_blake2b"] == artifact.digest
        for name, entry in artifact.objects.items():
            assert tensors[name].dtype == np.uint8
            assert tensors[name].shape == (entry.padded_nbytes,)
            assert tensors[name][: entry.nbytes].tobytes() == artifact.payload(name)
            assert entry.offset % 64 == 0


def test_everything_comes_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 70), dtype=np.float32)
    vector = rng.standard_normal(7, dtype=np.float32)
    with ArtifactWriter(tmp_path / "a.ninfer", "llama", CONFIG, {"recipe": "same"}) as writer:
        for name in formats.NAMES:
            writer.add_matrix(f"w.{name}", name, formats.get(name).pack(x))
        writer.add_vector("norm", vector)
        writer.add("bits", "bf16", "row", (2, 3), np.arange(6, dtype=np.uint16))
        writer.add_resource("frontend/chat_template.jinja", "{{ \u00e9 }}".encode())
        writer.finish({"worst": {"name": "w", "error": 0.5}})
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        assert artifact.architecture == "llama"
        assert artifact.config == CONFIG
        assert artifact.provenance == {"recipe": "same"}
        assert artifact.quantization == {"worst": {"name": "w", "error": 0.5}}
        for name in formats.NAMES:
            fmt = formats.get(name)
            np.testing.assert_array_equal(fmt.unpack(artifact.planes(f"w.{name}")), fmt.unpack(fmt.pack(x)))
            assert artifact.tensors[f"w.{name}"].nbytes == layouts.nbytes(name, (40, 70), "n16")
        np.testing.assert_array_equal(artifact.array("norm"), vector)
        assert artifact.resource("frontend/chat_template.jinja").decode() == "{{ \u00e9 }}"
        assert list(artifact.objects)[-1] == "frontend/chat_template.jinja"
        assert list(artifact.tensors) == list(artifact.objects)[:-1]


def test_same_calls_give_the_same_bytes_whatever_the_order_of_keys(tmp_path: Path) -> None:
    first = write_small(tmp_path / "a.ninfer").read_bytes()
    reversed_config = dict(reversed(CONFIG.items()))
    raw = raw_artifact.small()
    with ArtifactWriter(tmp_path / "b.ninfer", "llama", reversed_config, raw.provenance) as writer:
        for name, payload in raw.payloads.items():
            stored = raw.table[name]
            writer.add(name, stored["format"], stored["layout"], tuple(stored["shape"]), bytearray(payload))
        writer.finish({})
    assert (tmp_path / "b.ninfer").read_bytes() == first


def test_a_file_without_objects_is_a_file(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "a.ninfer", "llama", {}, {}) as writer:
        writer.finish()
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        assert not artifact.objects
        assert artifact.file_bytes == artifact.header_bytes
    assert safetensors.numpy.load_file(tmp_path / "a.ninfer") == {}


def test_nothing_is_left_behind_without_finish(tmp_path: Path) -> None:
    (tmp_path / "a.ninfer").write_bytes(b"old")
    with ArtifactWriter(tmp_path / "a.ninfer", "llama", {}, {}) as writer:
        writer.add_vector("norm", np.ones(3, np.float32))
        assert [p.name for p in tmp_path.iterdir()] == ["a.ninfer"]
    assert [p.name for p in tmp_path.iterdir()] == ["a.ninfer"]
    assert (tmp_path / "a.ninfer").read_bytes() == b"old"


def test_the_file_is_renamed_only_after_it_was_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        calls.append(f"fsync {os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        real_fsync(descriptor)

    def replace(source: Path, target: Path) -> None:
        calls.append("replace")
        assert verify(source) == []
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_small(tmp_path / "a.ninfer")
    assert calls[0].startswith("fsync .a.ninfer.")
    assert calls[1:] == ["replace", f"fsync {tmp_path.name}"]


def test_a_failing_rename_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.ninfer").write_bytes(b"old")

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ArtifactError, match=r"a\.ninfer: cannot be written: .*No space left"):
        write_small(tmp_path / "a.ninfer")
    assert [p.name for p in tmp_path.iterdir()] == ["a.ninfer"]
    assert (tmp_path / "a.ninfer").read_bytes() == b"old"


def test_a_missing_directory_is_an_artifact_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be written"):
        ArtifactWriter(tmp_path / "no" / "a.ninfer", "llama", {}, {})


@pytest.mark.parametrize(
    ("name", "format", "layout", "shape", "data", "field"),
    [
        ("", "f32", "row", (1,), bytes(4), ".name"),
        ("a b", "f32", "row", (1,), bytes(4), "a b.name"),
        ("x" * 201, "f32", "row", (1,), bytes(4), "x" * 201 + ".name"),
        ("w", "q3g64", "n16", (1, 64), bytes(64), "w.format"),
        ("w", "q8g32", "row", (1, 64), bytes(64), "w.format"),
        ("w", "f32", "diagonal", (1,), bytes(4), "w.format"),
        ("w", "f32", "row", (), bytes(4), "w.shape"),
        ("w", "f32", "row", (1, 1, 1, 1, 1), bytes(4), "w.shape"),
        ("w", "f32", "row", (0,), b"", "w.shape"),
        ("w", "f32", "row", (2,), bytes(4), "w.nbytes"),
        ("w", "u8", "row", (4,), bytes(4), "w.format"),
        ("frontend/w", "f32", "row", (1,), bytes(4), "frontend/w.format"),
    ],
)
def test_what_a_reader_would_refuse_is_not_written(
    tmp_path: Path, name: str, format: str, layout: str, shape: tuple[int, ...], data: bytes, field: str
) -> None:
    with (
        ArtifactWriter(tmp_path / "a.ninfer", "llama", {}, {}) as writer,
        pytest.raises(ArtifactError) as caught,
    ):
        writer.add(name, format, layout, shape, data)
    assert caught.value.field == field


def test_a_name_is_used_once(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "a.ninfer", "llama", {}, {}) as writer:
        writer.add_vector("norm", np.ones(1, np.float32))
        with pytest.raises(ArtifactError, match="norm: added twice"):
            writer.add_vector("norm", np.ones(1, np.float32))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, "\ud800", 10**30, np.int64(3)])
def test_metadata_that_could_not_be_read_back_is_our_bug(tmp_path: Path, value: object) -> None:
    with (
        ArtifactWriter(tmp_path / "a.ninfer", "llama", {"x": value}, {}) as writer,
        pytest.raises(InvariantError, match="metadata cannot be written"),
    ):
        writer.finish()
    assert list(tmp_path.iterdir()) == []


def test_a_header_beyond_its_bound_is_not_written(tmp_path: Path) -> None:
    with (
        ArtifactWriter(tmp_path / "a.ninfer", "llama", {}, {"log": "x" * header.MAX_HEADER_BYTES}) as writer,
        pytest.raises(ArtifactError, match=r"header: .*at most"),
    ):
        writer.finish()
    assert list(tmp_path.iterdir()) == []


def test_memory_is_bounded_by_one_object(tmp_path: Path) -> None:
    """128 MiB pass through while no more than 48 MiB may be mapped."""
    payload = bytes(8 << 20)
    with limited_memory(48 << 20), ArtifactWriter(tmp_path / "a.ninfer", "llama", {}, {}) as writer:
        for index in range(16):
            writer.add(f"w{index}", "f32", "row", (2 << 20,), payload)
        writer.finish()
    assert (tmp_path / "a.ninfer").stat().st_size > 128 << 20
    (tmp_path / "a.ninfer").unlink()
