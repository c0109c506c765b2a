"""Shortlists: which tokens are in them, which rows they are, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from make import tiny_drafts, tiny_hybrid, tiny_llama
from ninfer import formats
from ninfer.artifact import Artifact, verify
from ninfer.cli.main import run
from ninfer.convert.draft_head import choose_tokens, head_rows, make_draft_head, read_counts
from ninfer.errors import ArtifactError, ConfigError
from ninfer.models.companion import SHORTLIST_HEAD, SHORTLIST_IDS
from ninfer.models.drafts import find_mtp

LLAMA = tiny_llama.CONFIGS["ragged"]
HYBRID = replace(tiny_hybrid.CONFIG, num_mtp_layers=1)


def write_hybrid(path: Path) -> Path:
    return tiny_hybrid.write_artifact(path, HYBRID, tiny_hybrid.random_weights(HYBRID), "q8g32")


def test_frequent_tokens_come_first_then_low_ids_and_end_tokens_always() -> None:
    counts = np.array([0, 5, 0, 7, 5, 1, 0, 0])
    assert choose_tokens(counts, 1, []).tolist() == [3]
    assert choose_tokens(counts, 3, []).tolist() == [1, 3, 4]
    assert choose_tokens(counts, 6, []).tolist() == [0, 1, 2, 3, 4, 5]
    assert choose_tokens(counts, 3, [7, 99]).tolist() == [1, 3, 7]
    for size in (0, 9):
        with pytest.raises(ConfigError, match=f"size is {size}; the model can decode 8"):
            choose_tokens(counts, size, [])


@pytest.mark.parametrize("format", formats.NAMES)
def test_rows_are_those_of_the_whole_matrix(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ninfer.convert.draft_head._ROWS_AT_A_TIME", 32)
    path = tiny_llama.write_artifact(tmp_path / "tiny.ninfer", LLAMA, tiny_llama.random_weights(LLAMA), format)
    with Artifact.open(path) as model:
        whole = formats.get(format).unpack(model.planes("head")).astype(np.float32)
        for ids in ([0], [66], [31, 32], [1, 2, 5, 64, 66], list(range(67))):
            np.testing.assert_array_equal(head_rows(model, "head", np.array(ids)), whole[ids])


def test_a_shortlist_alone_goes_with_a_model_that_has_its_own_module(tmp_path: Path) -> None:
    counts = np.zeros(HYBRID.num_decodable, np.int64)
    counts[[3, 50, 69, 7]] = 5, 9, 1, 2
    with Artifact.open(write_hybrid(tmp_path / "hybrid.ninfer")) as model:
        first = make_draft_head(model, tmp_path / "head.ninfer", counts, 4)
        assert not verify(first)
        with Artifact.open(first) as head:
            assert find_mtp(model, head, shortlist=True).shortlist == 4
            assert head.array(SHORTLIST_IDS).tolist() == [0, 3, 7, 50]  # 0 ends a text
            assert head.tensors[SHORTLIST_HEAD].format == "q8g32"
            assert head.provenance["shortlist"]["share_of_counts"] == pytest.approx(16 / 17)
        second = make_draft_head(model, tmp_path / "again.ninfer", counts, 4)
    assert first.read_bytes() == second.read_bytes()


def test_a_draft_keeps_its_weights_and_gets_the_shortlist(tmp_path: Path) -> None:
    path = tiny_llama.write_artifact(tmp_path / "tiny.ninfer", LLAMA, tiny_llama.random_weights(LLAMA), "f32")
    config = tiny_drafts.mtp_config(tiny_drafts.target_in(path), shortlist_size=9)
    before = tiny_drafts.write_companion(
        tmp_path / "before.ninfer", config, tiny_drafts.random_weights(config), "q4g64"
    )
    with Artifact.open(path) as model, Artifact.open(before) as draft:
        counts = np.arange(LLAMA.vocab_size)
        after = make_draft_head(model, tmp_path / "after.ninfer", counts, 20, draft=draft, weights="q4g32")
        with Artifact.open(after) as made:
            assert find_mtp(model, made, shortlist=True).shortlist == 20
            assert made.tensors["mtp.fc"].blake2b == draft.tensors["mtp.fc"].blake2b
            assert made.array(SHORTLIST_IDS).tolist() == [0, *range(48, 67)]
            rows = formats.get("q4g32").unpack(made.planes(SHORTLIST_HEAD))
            np.testing.assert_allclose(rows, head_rows(model, "head", np.array([0, *range(48, 67)])), atol=0.2)


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with Artifact.open(write_hybrid(tmp_path / "hybrid.ninfer")) as model:
        counts = np.zeros(HYBRID.num_decodable, np.int64)
        with pytest.raises(ConfigError, match="69 counts for a model that can decode 70"):
            make_draft_head(model, tmp_path / "head.ninfer", counts[1:], 4)
        with pytest.raises(ConfigError, match="weights 'q3' is no format"):
            make_draft_head(model, tmp_path / "head.ninfer", counts, 4, weights="q3")
        path = tiny_llama.write_artifact(tmp_path / "tiny.ninfer", LLAMA, tiny_llama.random_weights(LLAMA), "f32")
        config = tiny_drafts.mtp_config(tiny_drafts.target_in(path))
        draft = tiny_drafts.write_companion(tmp_path / "draft.ninfer", config, tiny_drafts.random_weights(config))
        with Artifact.open(draft) as other, pytest.raises(ConfigError, match=r"draft\.ninfer was made for"):
            make_draft_head(model, tmp_path / "head.ninfer", counts, 4, draft=other)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"70": 1}, "70: must be an id below 70"),
        ({"-1": 1}, "-1: must be an id"),
        ({"x": 1}, "x: must be an id"),
        ({"3": -1}, "3: must be a count"),
        ({"3": 1.5}, "3: must be a count"),
        ({"3": True}, "3: must be a count"),
    ],
)
def test_wrong_counts_are_named(content: dict[str, object], words: str, tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match=words):
        read_counts(path, 70)


def test_the_command_writes_a_shortlist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_hybrid(tmp_path / "hybrid.ninfer")
    counts = tmp_path / "counts.json"
    counts.write_text(json.dumps({"3": 5, "9": 15}))
    out = str(tmp_path / "head.ninfer")
    arguments = ["make-draft-head", str(model), out, "--size", "2"]
    assert run([*arguments, "--counts", str(counts)]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{out}\n"
    assert "2 of 70 tokens, 75.00% of those counted" in shown.err
    assert run(arguments) != 0
    assert "either --counts or --text" in capsys.readouterr().err
    assert run([*arguments, "--text", str(counts)]) != 0
    assert "--text needs a tokenizer" in capsys.readouterr().err
