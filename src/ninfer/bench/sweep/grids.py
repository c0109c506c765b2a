"""What a sweep runs, as data: settings that are fixed when an engine starts, and the prompts that each of them gets.

| kind | a run for every | prompts | figure |
|---|---|---|---|
| `prefill` | chunk | one per prompt length | prefill rate |
| `decode` | draft window | one per workload and context | decode rate |
| `concurrency` | number of lanes | as many as the most lanes | rate of all answers together |

Every run is a record of its own (`bench.records`), so each cell can be judged again and compared.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ninfer.bench.load.suite import CountTokens, Suite, lengthened
from ninfer.bench.records.schema import Prompt
from ninfer.errors import ConfigError

Kind = Literal["prefill", "decode", "concurrency"]

LEAST_DECODED = 32
"""Fewer tokens than these show no decode rate: starting and ending would be a large part of it."""


@dataclass(frozen=True)
class Setting:
    """What is fixed when an engine starts: `changes` to its configuration. in_flight: requests at once."""

    name: str
    value: int
    changes: Mapping[str, Any]
    in_flight: int = 1


@dataclass(frozen=True)
class Grid:
    """Every setting meets every prompt. setting_axis, prompt_axes: what the values are called in results."""

    kind: Kind
    setting_axis: str
    prompt_axes: tuple[str, ...]
    settings: tuple[Setting, ...]
    prompts: tuple[Prompt, ...]
    ignores_end: bool
    context: int


def prefill_grid(chunks: Sequence[int], lengths: Sequence[int], *, vocab_size: int) -> Grid:
    """Prompts of random tokens, exactly as long as they are called; two tokens of an answer end each prefill."""
    _require_counts("chunk", chunks, least=1)
    _require_counts("length", lengths, least=1)
    prompts = tuple(
        Prompt(
            id=f"prefill-{length}",
            scenario="prefill",
            body=_random_ids(length, vocab_size),
            max_new=2,
            options={"prompt tokens": length},
        )
        for length in lengths
    )
    settings = tuple(Setting(f"chunk-{chunk}", chunk, {"prefill_chunk": chunk}) for chunk in chunks)
    return Grid("prefill", "chunk", ("prompt tokens",), settings, prompts, True, max(lengths) + 2)


def decode_grid(
    windows: Sequence[int],
    contexts: Sequence[int],
    suite: Suite,
    workloads: Iterable[str],
    *,
    drafts: str,
    max_new: int,
    count_tokens: CountTokens,
) -> Grid:
    """The first English prompt of each workload behind a log of the length that the context needs.

    drafts: where drafts come from (`spec`) for windows above 0; window 0 decodes without. ConfigError for answers too
    short to show a rate.
    """
    _require_counts("window", windows, least=0)
    _require_counts("context", contexts, least=1)
    if max_new < LEAST_DECODED:
        raise ConfigError(f"max_new is {max_new}; fewer than {LEAST_DECODED} tokens show no decode rate")
    if drafts == "off" and any(windows):
        raise ConfigError(f"windows are {', '.join(map(str, windows))} and spec is off: nothing would draft them")
    prompts = []
    for workload in workloads:
        entry = next((e for e in suite.prompts if e.scenario == workload and e.language == "en"), None)
        if entry is None:
            known = sorted({e.scenario for e in suite.prompts})
            raise ConfigError(f"workload {workload!r} is not in suite {suite.name}; there are {', '.join(known)}")
        prompts += [
            Prompt(
                id=f"{workload}-{context}",
                scenario=workload,
                language="en",
                body=[{"role": "user", "content": lengthened(entry.text, context, count_tokens)}],
                max_new=max_new,
                options={"workload": workload, "context": context},
            )
            for context in contexts
        ]
    settings = tuple(Setting(f"window-{window}", window, _drafting(drafts, window)) for window in windows)
    longest = max(count_tokens(prompt.body) for prompt in prompts)
    return Grid("decode", "window", ("workload", "context"), settings, tuple(prompts), True, longest + max_new)


def concurrency_grid(levels: Sequence[int], length: int, *, max_new: int, vocab_size: int) -> Grid:
    """As many prompts of random tokens as the most lanes, answered to their limit."""
    _require_counts("level", levels, least=1)
    _require_counts("length", [length], least=1)
    if max_new < LEAST_DECODED:
        raise ConfigError(f"max_new is {max_new}; fewer than {LEAST_DECODED} tokens show no decode rate")
    prompts = tuple(
        Prompt(
            id=f"answer-{number}",
            scenario="concurrency",
            body=_random_ids(length, vocab_size, seed=number),
            max_new=max_new,
            options={"prompt tokens": length},
        )
        for number in range(max(levels))
    )
    settings = tuple(Setting(f"lanes-{level}", level, {"max_concurrency": level}, level) for level in levels)
    return Grid("concurrency", "lanes", (), settings, prompts, True, length + max_new)


def _drafting(drafts: str, window: int) -> dict[str, Any]:
    return {"spec": drafts, "draft_tokens": window} if window else {"spec": "off", "draft_tokens": "auto"}


def _random_ids(length: int, vocab_size: int, seed: int = 0) -> list[int]:
    rng = random.Random(f"sweep {seed}")
    return [rng.randrange(vocab_size) for _ in range(length)]


def _require_counts(name: str, values: Sequence[int], *, least: int) -> None:
    if not values or min(values) < least or len(set(values)) != len(values):
        raise ConfigError(f"{name}s are {', '.join(map(str, values)) or 'none'}; each once, >= {least}")
