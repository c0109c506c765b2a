"""The words for why a generation ended."""

from __future__ import annotations

from enum import StrEnum


class FinishReason(StrEnum):
    """Why a generation ended without an error. The values are the words of logs and JSON; protocols map them to their
    own.

    Several can become true with the same token; the first in this order is reported, except that a cancel is decided
    between steps and never competes.
    """

    STOP_TOKEN = "stop_token"
    """The model produced one of the request's stop tokens; it counts as a completion token and has no text."""
    STOP_STRING = "stop_string"
    """The text reached a stop string; the text ends right before it, the token that completed it is counted."""
    OUTPUT_LIMIT = "output_limit"
    """`max_new` completion tokens were produced."""
    CONTEXT_CAPACITY = "context_capacity"
    """Prompt and completion together fill the context."""
    CANCELLED = "cancelled"
    """The caller asked for the end."""
