"""What recurrent state takes in memory, by a model's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.backends.base import journal_widths
from ninfer.models.registry import ModelConfig
from ninfer.ops.graph import Graph


@dataclass(frozen=True, slots=True)
class StateSizes:
    """Bytes of all recurrent layers together: of one slot, and of one row of a journal. Values are float32, without
    what a backend pads odd widths with."""

    slot_bytes: int
    journal_row_bytes: int


def state_sizes(config: ModelConfig) -> StateSizes | None:
    """The sizes for a model, None without recurrent layers.

    A slot has per layer `(conv_taps - 1) * conv_channels + num_v_heads * key_dim * value_dim` values; a journal row has
    what `backends.base.journal_widths` lists.
    """
    graph = Graph()
    config.record(graph)
    if not graph.state_layers:
        return None
    slot = journal_row = 0
    for layer, shape in enumerate(graph.state_layers):
        slot += (shape.conv_taps - 1) * shape.conv_channels + shape.num_v_heads * shape.key_dim * shape.value_dim
        journal_row += sum(journal_widths(graph, layer))
    return StateSizes(4 * slot, 4 * journal_row)
