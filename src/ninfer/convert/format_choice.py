"""What the user chose for the formats of weights: nothing, one format, or a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer import formats
from ninfer.convert.recipes import Recipe, find_recipe, formats_of
from ninfer.errors import ConfigError


@dataclass(frozen=True)
class FormatChoice:
    """At most one of the two is given; without both, matrices keep what the source holds."""

    weights: str | None = None
    recipe: Recipe | None = None

    @classmethod
    def of(cls, weights: str | None, recipe: str | None) -> FormatChoice:
        """ConfigError for unknown names, and if both are given."""
        if weights is not None and recipe is not None:
            raise ConfigError(f"weights {weights!r} and recipe {recipe!r} exclude each other; give one of them")
        if weights is not None and weights not in formats.NAMES:
            raise ConfigError(f"weights {weights!r} is no format; choose one of {', '.join(formats.NAMES)}")
        return cls(weights, None if recipe is None else find_recipe(recipe))

    def formats(self, matrices: Sequence[str]) -> dict[str, str]:
        """The chosen format by our name; names that keep theirs are absent."""
        if self.recipe is not None:
            return formats_of(self.recipe, matrices)
        return {} if self.weights is None else dict.fromkeys(matrices, self.weights)

    def record(self) -> dict[str, str]:
        """What artifacts and reports say about the choice."""
        return {"recipe": self.recipe.name} if self.recipe is not None else {"weights": self.weights or "exact"}
