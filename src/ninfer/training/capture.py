"""What the target's hidden rows were for every token of every response: the input a draft will have when it runs.

Rows come from our own engine's kernels with the numerics and KV format that drafts will meet, so that training sees the
very values of use. They are kept as bf16 in shards of some responses each; shards that are there are not made again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ninfer import formats
from ninfer.errors import ConfigError
from ninfer.models import ForwardBatch, Model, SequenceRows
from ninfer.models.batch import PAGE_TOKENS
from ninfer.ops.graph import Feature
from ninfer.training.regenerate import Response

BF16Rows = npt.NDArray[np.uint16]

SHARD_RESPONSES = 256
FEATURE: Feature = "final"
"""Rows after the target's last norm: what an MTP head reads."""


def capture(
    model: Model,
    responses: Sequence[Response],
    directory: Path,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Complete the shards of `responses` in `directory`; `model` was loaded with FEATURE.

    ConfigError for a response longer than the model was loaded for.
    """
    for start in range(0, len(responses), SHARD_RESPONSES):
        shard = responses[start : start + SHARD_RESPONSES]
        path = _shard_path(directory, start // SHARD_RESPONSES)
        if not path.exists():
            _save(path, np.concatenate([_hidden(model, response) for response in shard]))
        progress(start + len(shard), len(responses))


def load_hidden(responses: Sequence[Response], directory: Path) -> list[BF16Rows]:
    """bf16 `[tokens, H]` per response, mapped and not read. ConfigError if the shards are those of other responses."""
    rows: list[BF16Rows] = []
    for start in range(0, len(responses), SHARD_RESPONSES):
        path = _shard_path(directory, start // SHARD_RESPONSES)
        ends = np.cumsum([num_tokens(response) for response in responses[start : start + SHARD_RESPONSES]])
        shard: BF16Rows = np.load(path, mmap_mode="r")
        if len(shard) != ends[-1]:
            raise ConfigError(f"{path} has {len(shard)} rows for responses of {ends[-1]} tokens; remove it")
        rows += np.split(shard, ends[:-1])
    return rows


def num_tokens(response: Response) -> int:
    return len(response.prompt_ids) + len(response.ids)


def _hidden(model: Model, response: Response) -> BF16Rows:
    """The rows of one response, in steps of at most `max_rows` tokens; no logits are computed."""
    ids = np.array([*response.prompt_ids, *response.ids], np.int32)
    pages = np.arange(-(-len(ids) // PAGE_TOKENS), dtype=np.int32)
    options, parts = model.options, []
    if len(pages) > options.num_pages:
        raise ConfigError(f"response {response.key} has {len(ids)} tokens, more than fit {options.num_pages} pages")
    for position in range(0, len(ids), options.max_rows):
        step = ids[position : position + options.max_rows]
        model.forward(ForwardBatch(step, (SequenceRows(0, len(step), position, pages),), np.empty(0, np.int32)))
        parts.append(formats.get("bf16").pack(np.ascontiguousarray(model.feature(FEATURE))).codes)
    return np.concatenate(parts)


def _save(path: Path, rows: BF16Rows) -> None:
    """The file appears whole or not at all."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        np.save(file, rows)
    os.replace(temporary, path)


def _shard_path(directory: Path, index: int) -> Path:
    return directory / f"hidden-{index:05d}.npy"
