"""Recipes: the format of every place, written out, and conversions that follow them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from make.make_gguf import TINY, write_gguf
from make.tiny_llama import random_weights
from ninfer import formats
from ninfer.artifact import Artifact
from ninfer.convert.convert import convert
from ninfer.convert.recipes import RECIPES, find_recipe, formats_of
from ninfer.errors import ConfigError, ConversionError

MLP = ("gate", "up", "down")
ATTENTION = ("q", "q_gate", "k", "v", "o")
DELTA_RULE = ("qkv", "z", "out")
GATES = ("a", "b")
NUM_LAYERS = 64
HYBRID = [
    "embed",
    *(f"layers.{i}.{part}" for i in range(NUM_LAYERS) for part in (*MLP, *(ATTENTION if i % 4 == 3 else DELTA_RULE))),
    *(f"layers.{i}.{part}" for i in range(NUM_LAYERS) if i % 4 != 3 for part in GATES),
    "head",
    "mtp.fc",
    "mtp.layers.0.gate",
    "mtp.layers.0.q",
]


def formats_by_rule(name: str) -> dict[str, str]:
    """What each recipe is documented to give for the hybrid model of 64 layers."""
    found = {}
    for matrix in HYBRID:
        part, layer = matrix.split(".")[-1], int(matrix.split(".")[1]) if matrix.startswith("layers.") else -1
        if name == "int8" or matrix.startswith("mtp."):
            found[matrix] = "q8g32"
        elif part in GATES:
            found[matrix] = "bf16"
        elif name == "q4":
            found[matrix] = "q6g64" if part in ("embed", "head", "down", "k", "v") else "q4g64"
        elif name == "nvfp4-full":
            found[matrix] = "fp8" if layer < 0 else "nvfp4"
        else:
            found[matrix] = "nvfp4" if part in MLP and layer < 56 else "fp8"
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_every_place_of_a_hybrid_model(name: str) -> None:
    assert formats_of(find_recipe(name), HYBRID) == formats_by_rule(name)


@pytest.mark.parametrize(("num_layers", "last"), [(1, 1), (7, 1), (8, 1), (24, 3), (30, 3), (64, 8)])
def test_the_last_eighth_of_the_layers_has_no_nvfp4(num_layers: int, last: int) -> None:
    chosen = formats_of(find_recipe("nvfp4"), [f"layers.{i}.up" for i in range(num_layers)])
    assert list(chosen.values()) == ["nvfp4"] * (num_layers - last) + ["fp8"] * last


@pytest.mark.parametrize("name", ["layers.0.router", "layers.x.up", "vision.patch", "other"])
def test_a_matrix_without_a_place_is_an_error_that_names_it(name: str) -> None:
    for recipe in RECIPES.values():
        with pytest.raises(ConversionError, match=f"'{name}'"):
            formats_of(recipe, ["embed", name])


@pytest.mark.parametrize("name", RECIPES)
def test_a_conversion_follows_its_recipe_and_says_so(name: str, tmp_path: Path) -> None:
    config = replace(TINY, tied_head=False)
    weights = random_weights(config)
    report = convert(write_gguf(tmp_path / "a.gguf", config, weights), tmp_path / "a.ninfer", recipe=name)
    matrices = [matrix for matrix, values in weights.items() if values.ndim == 2]
    wanted = formats_of(find_recipe(name), matrices)
    assert (report.recipe, report.weights) == (name, None)
    with Artifact.open(tmp_path / "a.ninfer") as artifact:
        assert {matrix: artifact.tensors[matrix].format for matrix in matrices} == wanted
        assert artifact.provenance["recipe"]["recipe"] == name
        assert artifact.quantization["recipe"] == name
        for matrix in matrices:
            fmt = formats.get(wanted[matrix])
            np.testing.assert_array_equal(
                fmt.unpack(artifact.planes(matrix)), fmt.unpack(fmt.pack(weights[matrix])), err_msg=matrix
            )


def test_unknown_recipes_and_two_choices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'q2'.*int8, q4, nvfp4, nvfp4-full"):
        convert(tmp_path / "a.gguf", tmp_path / "a.ninfer", recipe="q2")
    with pytest.raises(ConfigError, match=r"'q8g32' and recipe 'q4' exclude each other"):
        convert(tmp_path / "a.gguf", tmp_path / "a.ninfer", weights="q8g32", recipe="q4")
