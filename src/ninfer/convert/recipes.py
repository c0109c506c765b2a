"""Recipes: which format each weight matrix gets, by its place in the model. Vectors are not a recipe's business.

A recipe knows matrices by our names, so one recipe serves every family. Parts of a layer are

    mlp         gate, up, down
    attention   q, q_gate, k, v, o, and qkv, z, out of gated delta-rule layers
    gates       a, b of gated delta-rule layers: [heads, K], so small that their format costs nothing, and what they
                say is an exponent that acts on the state of all later tokens

Reasons for each choice stand with the recipe; what was measured is in docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from ninfer.errors import ConfigError, ConversionError

Part = Literal["embed", "head", "mlp", "attention", "gates", "mtp"]

_PARTS: Final[Mapping[str, Part]] = {
    **dict.fromkeys(("gate", "up", "down"), "mlp"),
    **dict.fromkeys(("q", "q_gate", "k", "v", "o", "qkv", "z", "out"), "attention"),
    **dict.fromkeys(("a", "b"), "gates"),
}


@dataclass(frozen=True)
class Place:
    """Where a matrix stands: `layer` of `num_layers`, None outside of the layers; `name` without its layer."""

    name: str
    part: Part
    layer: int | None
    num_layers: int


@dataclass(frozen=True)
class Recipe:
    """A name, what it is for in one line, and the format of every place."""

    name: str
    summary: str
    format_at: Callable[[Place], str]


def place_of(name: str, num_layers: int) -> Place:
    """The place of our matrix `name`; ConversionError for a name that no recipe knows."""
    head, _, rest = name.partition(".")
    if name in ("embed", "head"):
        return Place(name, "embed" if name == "embed" else "head", None, num_layers)
    if head == "mtp":
        return Place(name, "mtp", None, num_layers)
    layer, _, last = rest.partition(".")
    if head != "layers" or not layer.isdecimal() or last not in _PARTS:
        raise ConversionError(f"matrix {name!r} has no place in a recipe; choose one format with --weights")
    return Place(last, _PARTS[last], int(layer), num_layers)


def formats_of(recipe: Recipe, matrices: Iterable[str]) -> dict[str, str]:
    """Format by name for all matrices of one model."""
    names = list(matrices)
    layers = [place.layer for place in (place_of(name, 0) for name in names) if place.layer is not None]
    return {name: recipe.format_at(place_of(name, max(layers, default=-1) + 1)) for name in names}


def find_recipe(name: str) -> Recipe:
    """The recipe called `name`; ConfigError lists the known ones."""
    if name not in RECIPES:
        raise ConfigError(f"recipe {name!r} is not known; choose one of {', '.join(RECIPES)}")
    return RECIPES[name]


def _int8(place: Place) -> str:
    return "q8g32"


def _q4(place: Place) -> str:
    """Six bits where four cost most per byte saved, as measured (docs/formats.md): v first, then embedding and head,
    down and k. The MTP block drafts only, and it is small: its errors cost speed, its bytes nearly nothing.
    """
    if place.part == "gates":
        return "bf16"
    if place.part == "mtp":
        return "q8g32"
    return "q6g64" if place.part in ("embed", "head") or place.name in ("down", "k", "v") else "q4g64"


def _nvfp4_full(place: Place) -> str:
    if place.part == "gates":
        return "bf16"
    if place.part == "mtp":
        return "q8g32"
    return "fp8" if place.part in ("embed", "head") else "nvfp4"


def _nvfp4(place: Place) -> str:
    """The allocation of the published NVFP4 models: four bits only in MLPs, which hold two thirds of the weights, and
    not in those of the last eighth of the layers (56..63 of 64)."""
    if place.part == "mlp" and place.layer is not None and place.layer < place.num_layers - last_layers(place):
        return "nvfp4"
    return {"gates": "bf16", "mtp": "q8g32"}.get(place.part, "fp8")


def last_layers(place: Place) -> int:
    """How many layers at the end have no NVFP4: an eighth, at least one."""
    return max(place.num_layers // 8, 1)


RECIPES: Final[Mapping[str, Recipe]] = {
    recipe.name: recipe
    for recipe in (
        Recipe("int8", "q8g32 everywhere: hardly different from the source", _int8),
        Recipe("q4", "q4g64; q6g64 for embedding, head, down, k and v", _q4),
        Recipe("nvfp4", "nvfp4 MLPs but for the last layers, the rest fp8, as published NVFP4 models are", _nvfp4),
        Recipe("nvfp4-full", "nvfp4 for all matrices of layers, fp8 for embedding and head", _nvfp4_full),
    )
}
