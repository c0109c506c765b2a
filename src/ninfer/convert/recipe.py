"""The version of what conversion does. Apart from the code that does it, so that asking for it costs no import."""

from __future__ import annotations

from typing import Final

RECIPE_VERSION: Final = 2
"""Counts changes that give other bytes for the same source, those of the artifact format included; the model cache
makes its files again when it changes."""
