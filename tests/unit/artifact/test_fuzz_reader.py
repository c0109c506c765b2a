"""Mutated files: the reader raises ArtifactError or opens them, and what it opened is safe to use."""

from __future__ import annotations

from pathlib import Path

from make.fuzz import fuzz
from make.raw_artifact import RawArtifact, reframed, sealed, small
from ninfer.artifact import Artifact, verify
from ninfer.errors import ArtifactError

TOKENS = [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"\\ud800", b"\xff", b"\xed\xa0\x80", b" ", b"NaN"]
TOKENS += [b'"data_offsets":[0,64]', b'"__metadata__":{}', b'"f32"', b'"n16"', b'"row"', b"NINFER\0\2", b"GGUF", b"1e5"]


def read(path: Path) -> None:
    """Open, and touch every byte the directory speaks of."""
    with Artifact.open(path) as artifact:
        for name, entry in artifact.objects.items():
            if entry.is_resource:
                assert len(artifact.resource(name)) == entry.nbytes
            else:
                assert artifact.planes(name).shape[-1] == entry.shape[-1]
    verify(path)


def test_fuzz(tmp_path: Path) -> None:
    other = RawArtifact(config={"rope_theta": 1.5e5, "ids": [1, 2, [3]]}, quantization={"worst": [0.5, None, True]})
    other.add("w", "q8g32", "n16", [3, 40], bytes(range(64)) * 17)
    other.add("frontend/a", "u8", "row", [1], b"x")
    outcome = fuzz(
        read,
        [small().build(), other.build()],
        tmp_path / "mutant.ninfer",
        refuses_with=ArtifactError,
        repairs=[reframed, sealed],
        dictionary=TOKENS,
    )
    assert outcome.accepted > outcome.runs // 100, "mutants never get through: the repairs do not work"
    assert len(outcome.refusals) > 15, f"mutants reach few checks: {sorted(outcome.refusals)}"
