"""A trained head as a draft companion: weights quantised, the shortlist's rows taken from the target bit for bit."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ninfer import __version__, formats
from ninfer.artifact import Artifact, ArtifactWriter
from ninfer.formats import Planes
from ninfer.models.companion import SHORTLIST_HEAD, SHORTLIST_IDS
from ninfer.models.drafts import target_of
from ninfer.models.mtp import LAYER, MTPConfig
from ninfer.training.data import Ids
from ninfer.training.module import MTPHead

ARCHITECTURE = "mtp"


def export_mtp(
    path: Path, head: MTPHead, shortlist: Ids, target: Artifact, *, weights: str, training: dict[str, Any]
) -> Path:
    """Write the companion `path` of `target`: matrices in format `weights`, norms in float32.

    training: how the head came about, as JSON values; it travels in the file's provenance.
    """
    llama = head.config
    config = MTPConfig(
        target=target_of(target),
        intermediate_size=llama.intermediate_size,
        num_heads=llama.num_heads,
        num_kv_heads=llama.num_kv_heads,
        head_dim=llama.head_dim,
        rotary_dim=llama.head_dim,
        rope_theta=llama.rope_theta,
        rms_norm_eps=llama.rms_norm_eps,
        attention="plain",
        shortlist_size=len(shortlist),
    )
    values = {name: parameter.detach().numpy() for name, parameter in _named(head).items()}
    provenance = {"tool": f"ninfer {__version__} train-draft", "training": training}
    with ArtifactWriter(path, ARCHITECTURE, asdict(config), provenance) as writer:
        for name, shape in config.tensor_shapes().items():
            if name == SHORTLIST_HEAD:
                rows, format = _head_rows(target, shortlist, tied=llama.tied_head)
                writer.add_matrix(name, format, rows)
            elif name == SHORTLIST_IDS:
                writer.add_vector(name, shortlist.astype(np.float32))
            elif len(shape) == 1:
                writer.add_vector(name, values[name])
            else:
                writer.add_matrix(name, weights, formats.get(weights).pack(values[name]))
        return writer.finish()


def _named(head: MTPHead) -> dict[str, Any]:
    """Parameters by their names in a companion."""
    return {
        f"{LAYER}.{name.removeprefix('layer.')}" if name.startswith("layer.") else f"mtp.{name}": parameter
        for name, parameter in head.named_parameters()
    }


def _head_rows(target: Artifact, shortlist: Ids, *, tied: bool) -> tuple[Planes, str]:
    """Rows of the target's head as they are stored, and in which format."""
    name = "embed" if tied else "head"
    planes = target.planes(name)
    rows = Planes(
        (len(shortlist), planes.shape[1]),
        planes.codes[shortlist],
        None if planes.scales is None else planes.scales[shortlist],
        None if planes.mins is None else planes.mins[shortlist],
        planes.tensor,
    )
    return rows, target.tensors[name].format
