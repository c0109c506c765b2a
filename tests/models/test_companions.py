"""Draft companions: what is read, what is refused, and that they belong to one model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from make import tiny_llama
from make.artifacts import document
from make.tiny_drafts import dflash_config, mtp_config, random_weights, target_in, write_companion
from ninfer.artifact import Artifact
from ninfer.errors import ArtifactError, ConfigError, UnsupportedError
from ninfer.models.companion import DraftHeadConfig
from ninfer.models.drafts import CompanionConfig, attach, read_companion
from ninfer.models.registry import read_config

LLAMA = tiny_llama.CONFIGS["uneven"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "target.ninfer"
    return tiny_llama.write_artifact(path, LLAMA, tiny_llama.random_weights(LLAMA), "q8g32")


def configs(model: Path) -> dict[str, CompanionConfig]:
    target = target_in(model)
    return {
        "mtp": mtp_config(target),
        "mtp-gated": mtp_config(target, "gated", shortlist_size=40),
        "dflash": dflash_config(target, conv=None, selector=None),
        "dflash2": dflash_config(target, shortlist_size=50, softcap=20.0),
        "draft_head": DraftHeadConfig(target, 30),
    }


KINDS = ("mtp", "mtp-gated", "dflash", "dflash2", "draft_head")


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_is_read(kind: str, model: Path, tmp_path: Path) -> None:
    config = configs(model)[kind]
    path = write_companion(tmp_path / "draft.ninfer", config, random_weights(config))
    with Artifact.open(path) as companion, Artifact.open(model) as target:
        assert attach(companion, target) == config


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("mtp", "attention", "sliding"),
        ("mtp", "rotary_dim", 7),
        ("mtp", "rotary_dim", 26),
        ("mtp", "num_kv_heads", 3),
        ("mtp", "shortlist_size", 0),
        ("mtp", "window", 3),
        ("mtp", "target", None),
        ("mtp", "target", {"vocab_size": 211}),
        ("draft_head", "shortlist_size", None),
        ("draft_head", "shortlist_size", 212),
        ("dflash", "feature_layers", [0, 3]),
        ("dflash", "feature_layers", [2, 0]),
        ("dflash", "feature_layers", []),
        ("dflash", "block_size", 1),
        ("dflash", "block_size", 17),
        ("dflash", "mask_token_id", 211),
        ("dflash", "windows", [0, None]),
        ("dflash", "windows", [None, 4]),
        ("dflash", "causal", [True]),
        ("dflash", "causal", [True, 1]),
        ("dflash", "softcap", 0),
        ("dflash", "output_multiplier", 0),
        ("dflash2", "conv", {"taps": 2, "group_size": 5}),
        ("dflash2", "conv", {"taps": 2}),
        ("dflash2", "selector", {"rank": 2, "candidates": 0}),
    ],
)
def test_a_wrong_field_is_named(kind: str, field: str, value: Any, model: Path, tmp_path: Path) -> None:
    config = configs(model)[kind]
    path = write_companion(tmp_path / "draft.ninfer", config, random_weights(config), **{field: value})
    with Artifact.open(path) as companion, pytest.raises(ArtifactError, match=rf"config\.{field}"):
        read_companion(companion)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_needed(kind: str, model: Path, tmp_path: Path) -> None:
    from ninfer.models.drafts import _KINDS

    config = configs(model)[kind]
    written = document(config)
    for field in written:
        without = {name: value for name, value in written.items() if name != field}
        with pytest.raises(ArtifactError, match=rf"config\.{field}"):
            _KINDS[kind.removesuffix("-gated").removesuffix("2")](without)


def test_missing_and_foreign_tensors_are_named(model: Path, tmp_path: Path) -> None:
    config = configs(model)["mtp"]
    weights = random_weights(config)
    weights["mtp.layers.0.q_gate"] = weights.pop("mtp.fc")
    path = write_companion(tmp_path / "a.ninfer", config, weights)
    with Artifact.open(path) as companion, pytest.raises(ArtifactError, match=r"missing: mtp\.fc"):
        read_companion(companion)


def test_a_model_is_no_draft(model: Path) -> None:
    with Artifact.open(model) as artifact, pytest.raises(UnsupportedError, match=r"target\.ninfer.*'llama'"):
        read_companion(artifact)


def test_a_draft_is_no_model(model: Path, tmp_path: Path) -> None:
    config = configs(model)["mtp"]
    path = write_companion(tmp_path / "draft.ninfer", config, random_weights(config))
    with (
        Artifact.open(path) as artifact,
        pytest.raises(UnsupportedError, match=r"draft\.ninfer is a draft, not a model"),
    ):
        read_config(artifact.architecture, artifact.config, file=artifact.path)


def test_another_target_is_refused_by_both_names(model: Path, tmp_path: Path) -> None:
    config = configs(model)["mtp"]
    draft = write_companion(tmp_path / "draft.ninfer", config, random_weights(config))
    weights = tiny_llama.random_weights(LLAMA, seed=4)
    same_shape = tiny_llama.write_artifact(tmp_path / "same-shape.ninfer", LLAMA, weights, "q8g32")
    larger = replace(LLAMA, vocab_size=212)
    more_rows = tiny_llama.write_artifact(
        tmp_path / "larger.ninfer", larger, tiny_llama.random_weights(larger), "q8g32"
    )
    for path, words in (
        (same_shape, "weights_digest"),
        (more_rows, r"vocab_size 211; .*larger\.ninfer has 212"),
    ):
        refusal = pytest.raises(ConfigError, match=rf"draft\.ninfer .*{words}")
        with Artifact.open(draft) as companion, Artifact.open(path) as other, refusal:
            attach(companion, other)


def test_the_weights_digest_follows_weights_only(model: Path, tmp_path: Path) -> None:
    weights = tiny_llama.random_weights(LLAMA)
    renamed = tiny_llama.write_artifact(tmp_path / "a.ninfer", LLAMA, weights, "q8g32", stop_token_ids=[5])
    weights["norm"] = np.nextafter(weights["norm"], 2).astype(np.float32)
    changed = tiny_llama.write_artifact(tmp_path / "b.ninfer", LLAMA, weights, "q8g32")
    with Artifact.open(model) as a, Artifact.open(renamed) as b, Artifact.open(changed) as c:
        assert a.digest != b.digest
        assert a.weights_digest == b.weights_digest != c.weights_digest
