"""Token counts of one request."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.errors import InvariantError


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request.

    prompt: all prompt tokens; cached: those whose state was reused, so never computed here; completion: tokens
    produced, a stop token included; computed: prompt tokens that went through the model (fewer than
    `prompt - cached` when the request ended during prefill). thinking: completion tokens of the thinking block, its
    tags included. recomputed: tokens that went through the model once more, because their memory was given to an older
    request or lost in a failed step.
    """

    prompt: int
    cached: int
    completion: int
    computed: int
    thinking: int = 0
    recomputed: int = 0

    def __post_init__(self) -> None:
        counts = (self.prompt, self.cached, self.completion, self.computed, self.thinking, self.recomputed)
        if min(counts) < 0 or self.cached + self.computed > self.prompt or self.thinking > self.completion:
            raise InvariantError(f"impossible token counts: {self}")

    def to_dict(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt,
            "cached_tokens": self.cached,
            "computed_tokens": self.computed,
            "recomputed_tokens": self.recomputed,
            "completion_tokens": self.completion,
        }


@dataclass(slots=True)
class TokenCounters:
    """Committed tokens of all requests together; only rising.

    steps: forwards that were committed; prefill: prompt tokens computed, each once; cached: prompt tokens reused;
    recomputed: as in `Usage`; completion: tokens produced, of which `first` are the first of their request.
    """

    steps: int = 0
    prefill: int = 0
    cached: int = 0
    recomputed: int = 0
    completion: int = 0
    first: int = 0

    @property
    def decode(self) -> int:
        """Tokens after the first of their request: what decode seconds are spent on."""
        return self.completion - self.first
