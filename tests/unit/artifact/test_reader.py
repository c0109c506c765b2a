"""What an opened artifact gives: views of the file, resources, errors for what is not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from make import raw_artifact
from ninfer.artifact import Artifact, inspect
from ninfer.errors import ArtifactError
from ninfer.formats import layouts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "model.ninfer"
    file.write_bytes(raw_artifact.small().build())
    return file


def test_header_facts(path: Path) -> None:
    raw = raw_artifact.small()
    with Artifact.open(path) as artifact:
        assert artifact.path == path
        assert artifact.architecture == "llama"
        assert artifact.config == raw.config
        assert artifact.provenance == raw.provenance
        assert artifact.quantization == {}
        assert artifact.file_bytes == path.stat().st_size
        assert artifact.digest.encode() == path.read_bytes()[raw_artifact.DIGEST_AT :][:64]
        assert list(artifact.objects) == list(raw.payloads)
        assert list(artifact.tensors) == list(raw.payloads)[:-1]
        entry = artifact.tensors["layers.0.q"]
        assert (entry.format, entry.layout, entry.shape) == ("q4g32m", "n16", (17, 33))
        assert entry.nbytes == entry.padded_nbytes == 1280
        assert entry.blake2b == raw.table["layers.0.q"]["blake2b"]
        assert (artifact.tensors["norm"].nbytes, artifact.tensors["norm"].padded_nbytes) == (12, 64)


def test_objects_come_in_file_order_whatever_the_order_of_the_header(path: Path) -> None:
    raw = raw_artifact.small()
    raw.entries = dict(reversed(raw.entries.items()))
    path.write_bytes(raw.build())
    with Artifact.open(path) as artifact:
        assert list(artifact.objects) == list(raw.payloads)
        assert artifact.payload("embed") == raw.payloads["embed"]


def test_payloads_are_read_only_mapped_bytes(path: Path) -> None:
    data = path.read_bytes()
    with Artifact.open(path) as artifact:
        for name, payload in raw_artifact.small().payloads.items():
            view = artifact.payload(name)
            assert view == payload
            assert view.readonly
            assert data[artifact.objects[name].offset :].startswith(payload)
        vector = artifact.array("norm")
        assert not vector.flags.writeable
        assert vector.ctypes.data % 64 == 0
        np.testing.assert_array_equal(vector, np.ones(3, np.float32))


def test_planes(path: Path) -> None:
    with Artifact.open(path) as artifact:
        planes = artifact.planes("layers.0.q")
        wanted = layouts.from_n16(artifact.payload("layers.0.q"), (17, 33), "q4g32m")
        np.testing.assert_array_equal(planes.codes, wanted.codes)
        assert planes.mins is not None
        norm = artifact.planes("norm")
        assert norm.shape == (1, 3)
        np.testing.assert_array_equal(norm.codes, np.ones((1, 3), np.float32))


def test_memory_given_out_outlives_close(path: Path) -> None:
    artifact = Artifact.open(path)
    view, vector = artifact.payload("embed"), artifact.array("norm")
    artifact.close()
    assert view == bytes(range(128))
    assert vector.sum() == 3
    with pytest.raises(ValueError, match="released"):
        artifact.payload("embed")


def test_resources(path: Path) -> None:
    with Artifact.open(path) as artifact:
        assert artifact.resource("frontend/tokenizer.json") == b'{"a"}'
        assert artifact.find_resource("frontend/tokenizer.json") == b'{"a"}'
        assert artifact.find_resource("frontend/chat_template.jinja") is None
        with pytest.raises(ArtifactError, match=r"model\.ninfer: frontend/chat_template\.jinja: missing"):
            artifact.resource("frontend/chat_template.jinja")
        with pytest.raises(ArtifactError, match="norm: is a weight"):
            artifact.resource("norm")


def test_wrong_questions(path: Path) -> None:
    with Artifact.open(path) as artifact:
        with pytest.raises(ArtifactError, match="head: missing"):
            artifact.payload("head")
        with pytest.raises(ArtifactError, match=r"frontend/tokenizer\.json: is a resource"):
            artifact.planes("frontend/tokenizer.json")
        with pytest.raises(ArtifactError, match="embed: has layout 'n16'"):
            artifact.array("embed")


def test_inspect_is_plain_data_about_everything(path: Path) -> None:
    seen = inspect(path)
    assert seen["file_bytes"] == path.stat().st_size
    assert seen["architecture"] == "llama"
    assert seen["totals"]["weights"] == {
        "tensors": 3,
        "parameters": 3 + 15 + 17 * 33,
        "bytes": 12 + 128 + 1280,
        "bits_per_weight": round(8 * (12 + 128 + 1280) / (3 + 15 + 17 * 33), 4),
    }
    assert list(seen["totals"]["by_format"]) == ["bf16", "f32", "q4g32m"]
    assert seen["totals"]["by_format"]["bf16"]["bytes"] == 128
    assert [entry["name"] for entry in seen["objects"]] == list(raw_artifact.small().payloads)
    assert seen["objects"][0]["shape"] == [3]


def test_reading_needs_no_safetensors_package(path: Path) -> None:
    code = (
        "import sys\n"
        "from ninfer.artifact import Artifact\n"
        f"Artifact.open({str(path)!r})\n"
        "heavy = {'safetensors', 'tempfile', 'shutil', 'random', 'torch'} & set(sys.modules)\n"
        "heavy -= set(sys.argv[1:])\n"
        "assert not heavy, heavy\n"
    )
    baseline = "import sys, numpy; print(*({'tempfile', 'shutil', 'random'} & set(sys.modules)))"
    known = subprocess.run([sys.executable, "-c", baseline], capture_output=True, text=True, check=True).stdout.split()
    subprocess.run([sys.executable, "-c", code, *known], check=True)
