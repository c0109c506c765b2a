from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ninfer.engine import EngineConfig
from ninfer.errors import ConfigError

FIELDS = [field.name for field in dataclasses.fields(EngineConfig)]


def test_a_config_survives_its_dictionary() -> None:
    config = EngineConfig(max_context=4096, kv_capacity=8192, kv_dtype="bf16", threads=3, numerics="f32")
    assert EngineConfig.from_dict(config.to_dict()) == config
    assert EngineConfig.from_dict({}) == EngineConfig()


def test_unknown_settings_are_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting max_contxt, zzz; known: max_context, kv_capacity"):
        EngineConfig.from_dict({"zzz": 1, "max_context": 64, "max_contxt": 64})


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_is_described_with_its_default(name: str) -> None:
    text = EngineConfig.describe(name)
    default = getattr(EngineConfig(), name)
    assert str(default) in text
    assert len(text) > 40


def test_only_settings_are_described() -> None:
    with pytest.raises(ConfigError, match="no setting 'colour'"):
        EngineConfig.describe("colour")


@pytest.mark.parametrize(
    ("name", "value", "limits"),
    [
        ("max_context", 1, ">= 2 or auto"),
        ("max_context", 64.0, ">= 2 or auto"),
        ("max_context", True, ">= 2 or auto"),
        ("max_context", "all", ">= 2 or auto"),
        ("kv_capacity", 0, ">= 1 or auto"),
        ("kv_dtype", "fp16", "int8, bf16"),
        ("prefill_chunk", 0, ">= 1"),
        ("prefill_chunk", "auto", ">= 1"),
        ("max_concurrency", 0, r"in \[1, 64\]"),
        ("max_concurrency", 65, r"in \[1, 64\]"),
        ("spec", "eagle", "off, ngram, mtp, dflash2, ngram-mtp"),
        ("draft_tokens", 0, r"in \[1, 16\] or auto"),
        ("draft_tokens", 17, r"in \[1, 16\] or auto"),
        ("draft_tokens", "most", r"in \[1, 16\] or auto"),
        ("draft_rule", "exact", "replay, rejection"),
        ("threads", 0, r"in \[1, 256\] or auto"),
        ("numerics", "int4", "a8, a8g32, f32, w4a4"),
        ("weights_memory", "swap", "auto, huge, mapped"),
        ("isa", "", "name of an instruction set"),
        ("isa", 512, "name of an instruction set"),
    ],
)
def test_a_bad_value_is_named_with_its_limits(name: str, value: object, limits: str) -> None:
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=limits) as caught:
        EngineConfig(**arguments)
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


def test_kv_memory_below_one_context_contradicts() -> None:
    with pytest.raises(ConfigError, match="kv_capacity 512 is below max_context 1024"):
        EngineConfig(max_context=1024, kv_capacity=512)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"draft_tokens": 3}, "draft_tokens is 3 and spec is off"),
        ({"draft_rule": "rejection"}, "draft_rule is rejection and spec is off"),
        ({"spec": "ngram", "draft_rule": "rejection"}, "draft_rule is rejection and spec is ngram"),
    ],
)
def test_settings_of_drafts_that_nothing_follows_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EngineConfig(**settings)


def test_a_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().threads = 2  # type: ignore[misc]  # what the test is about
