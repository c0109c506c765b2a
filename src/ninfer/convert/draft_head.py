"""A shortlist of the vocabulary that drafts choose from: the rows of a model's head for its most used tokens.

Which tokens are in it decides how often a draft can be right, never what is answered. Tokens that no count knows follow
by rising id: of merges that a tokenizer learnt, frequent ones come first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer import __version__, formats
from ninfer.artifact import Artifact, ArtifactWriter, strict_json
from ninfer.convert.convert import check_target
from ninfer.errors import ArtifactError, ConfigError
from ninfer.formats import layouts
from ninfer.models.companion import SHORTLIST_HEAD, SHORTLIST_IDS
from ninfer.models.drafts import attach, target_of
from ninfer.models.registry import read_config
from ninfer.text.tokenizer import Tokenizer

Counts = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int64]

DEFAULT_FORMAT = "q8g32"
_ROWS_AT_A_TIME = 4096


def read_counts(path: str | os.PathLike[str], num_decodable: int) -> Counts:
    """How often each token was seen, `[num_decodable]`, from a JSON object of ids and counts."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ArtifactError(f"cannot be read: {error.strerror}", file=path) from error
    counts = np.zeros(num_decodable, np.int64)
    for name, count in strict_json.parse_object(content, file=path, field=None).items():
        if not name.isdecimal() or int(name) >= num_decodable:
            raise ArtifactError(f"must be an id below {num_decodable}", file=path, field=f"{name:.40}")
        if type(count) is not int or not 0 <= count < 1 << 53:
            raise ArtifactError(f"must be a count, got {count!r:.40}", file=path, field=name)
        counts[int(name)] += count
    return counts


def count_tokens(texts: Iterable[str | os.PathLike[str]], tokenizer: Tokenizer, num_decodable: int) -> Counts:
    """How often each token stands in the files, `[num_decodable]`."""
    counts = np.zeros(num_decodable, np.int64)
    for path in texts:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactError(f"cannot be read as UTF-8 text: {error}", file=path) from error
        ids = np.array(tokenizer.encode(text), np.int64)
        counts += np.bincount(ids[ids < num_decodable], minlength=num_decodable)
    return counts


def choose_tokens(counts: Counts, size: int, always: Iterable[int]) -> Ids:
    """`size` tokens, ascending: those of `always`, then the most frequent ones, the lower id first among equals."""
    if not 1 <= size <= len(counts):
        raise ConfigError(f"size is {size}; the model can decode {len(counts)} tokens")
    rank = counts.astype(np.float64)
    rank[[token for token in always if token < len(counts)]] = np.inf
    return np.sort(np.argsort(-rank, kind="stable")[:size])


def make_draft_head(
    model: Artifact,
    out: str | os.PathLike[str],
    counts: Counts,
    size: int,
    *,
    weights: str = DEFAULT_FORMAT,
    draft: Artifact | None = None,
) -> Path:
    """Write a shortlist of `size` tokens, rows of the model's head in format `weights`.

    The end tokens of the model are always in it. With `draft`, a companion of the model, the file is that draft with
    the shortlist added or replaced; else it is a shortlist alone, for a model with an MTP module of its own.
    ConfigError for bad arguments and for a draft of another model.
    """
    target = Path(out)
    check_target(target)
    config = read_config(model.architecture, model.config, file=model.path)
    if len(counts) != config.num_decodable:
        raise ConfigError(f"{len(counts)} counts for a model that can decode {config.num_decodable} tokens")
    if weights not in formats.NAMES:
        raise ConfigError(f"weights {weights!r} is no format; choose one of {', '.join(formats.NAMES)}")
    ids = choose_tokens(counts, size, config.stop_token_ids)
    architecture: str = "draft_head"
    document: dict[str, Any] = {"target": asdict(target_of(model))}
    provenance: dict[str, Any] = {}
    if draft is not None:
        attach(draft, model)
        architecture, document, provenance = draft.architecture, dict(draft.config), dict(draft.provenance)
    provenance["shortlist"] = {
        "ninfer_version": __version__,
        "tokens_seen": int((counts > 0).sum()),
        "share_of_counts": float(counts[ids].sum() / max(counts.sum(), 1)),
        "weights": weights,
    }
    with ArtifactWriter(target, architecture, {**document, "shortlist_size": size}, provenance) as writer:
        if draft is not None:
            for name, entry in draft.tensors.items():
                if name not in (SHORTLIST_HEAD, SHORTLIST_IDS):
                    writer.add(name, entry.format, entry.layout, entry.shape, draft.payload(name))
        rows = head_rows(model, config.head_name, ids)
        writer.add_matrix(SHORTLIST_HEAD, weights, formats.get(weights).pack(rows))
        writer.add_vector(SHORTLIST_IDS, ids.astype(np.float32))
        return writer.finish()


def head_rows(model: Artifact, name: str, ids: Ids) -> npt.NDArray[np.float32]:
    """Some rows of a stored matrix, float32 `[n, K]`, decoded a few records at a time; `ids` ascend."""
    entry = model.tensors[name]
    fmt, (num_rows, width) = formats.get(entry.format), entry.shape
    record = layouts.record_bytes(fmt, width)
    data = np.frombuffer(model.payload(name), np.uint8)
    tail = data[layouts.num_records(num_rows) * record :]
    rows = np.empty((len(ids), width), np.float32)
    for first in range(0, num_rows, _ROWS_AT_A_TIME):
        last = min(first + _ROWS_AT_A_TIME, num_rows)
        wanted = slice(*np.searchsorted(ids, [first, last]))
        if wanted.start == wanted.stop:
            continue
        start = first // layouts.LANES
        records = data[start * record : (start + layouts.num_records(last - first)) * record]
        planes = layouts.from_n16(np.concatenate([records, tail]), (last - first, width), entry.format)
        rows[wanted] = fmt.unpack(planes)[ids[wanted] - first]
    return rows
