"""Recording and slots: what shares memory, what must not."""

from __future__ import annotations

import pytest

from ninfer.errors import InvariantError
from ninfer.ops.causal_conv import causal_conv
from ninfer.ops.frequencies import rope_frequencies
from ninfer.ops.gated_delta_rule import gated_delta_rule
from ninfer.ops.graph import Graph, KVShape, StateShape
from ninfer.ops.linear import linear
from ninfer.ops.paged_attention import paged_attention
from ninfer.ops.rms_norm import rms_norm
from ninfer.ops.rope import rope
from ninfer.ops.rope_angles import rope_angles
from ninfer.ops.select_rows import select_rows
from ninfer.ops.silu_mul import silu_mul


def chain(length: int) -> Graph:
    g = Graph()
    x = g.new_input(48)
    for _ in range(length):
        x = rms_norm(g, x, "w", 1e-5)
    g.mark_logits(select_rows(g, x))
    return g


def test_a_chain_needs_two_slots_besides_its_input() -> None:
    slots = chain(7).assign_slots()
    assert slots.slots.count((48, "T")) == 3
    assert slots.slots.count((48, "R")) == 1


def test_buffers_that_live_together_never_share_a_slot() -> None:
    g = Graph()
    x = g.new_input(40)
    kept = rms_norm(g, x, "w", 1e-5)
    y = kept
    for _ in range(5):
        y = linear(g, y, [("a", 25), ("b", 15)])
    y = linear(g, y, [("c", 40)], residual=kept)
    slots = g.assign_slots()
    lives: dict[int, list[int]] = {}
    for index, node in enumerate(g.nodes):
        for buffer in node.buffers():
            lives.setdefault(buffer, []).append(index)
    for a, uses_a in lives.items():
        for b, uses_b in lives.items():
            overlap = min(uses_a) <= max(uses_b) and min(uses_b) <= max(uses_a)
            if a != b and overlap:
                assert slots.slot_of[a] != slots.slot_of[b]
    assert max(lives[kept.buffer]) == len(g.nodes) - 1


def test_inputs_and_logits_keep_their_slots() -> None:
    g = chain(5)
    slots = g.assign_slots()
    assert g.logits is not None
    assert all(slots.survives(buffer) for buffer in [*g.inputs, g.logits.buffer])
    assert sum(slots.survives(node.output.buffer) for node in g.nodes if node.output) == 3  # last two norms, logits


def test_features_keep_their_slots_and_are_marked_once() -> None:
    g = Graph()
    values = [g.new_input(48)]
    for _ in range(6):
        values.append(rms_norm(g, values[-1], "w", 1e-5))
    g.mark_feature(1, values[2])
    g.mark_feature("final", values[4])
    slots = g.assign_slots()
    assert [slots.survives(value.buffer) for value in values] == [True, False, True, False, True, True, True]
    with pytest.raises(InvariantError, match="feature 1"):
        g.mark_feature(1, values[3])


def test_an_unwritten_value_is_refused() -> None:
    g = Graph()
    silu_mul(g, g.new_value(8, "T"))
    with pytest.raises(InvariantError, match="before it is written"):
        g.assign_slots()


def test_views_share_the_buffer_and_stay_inside() -> None:
    g = Graph()
    x = g.new_input(10)
    assert x.columns(2, 9).columns(1, 3) == type(x)(x.buffer, "T", 3, 2)
    with pytest.raises(InvariantError):
        x.columns(4, 11)


def test_recording_refuses_shapes_that_do_not_fit() -> None:
    g = Graph()
    layer = g.new_kv_layer(KVShape(2, 8))
    x = g.new_input(32)
    angles = rope_angles(g, rope_frequencies(8, 1e4))
    for record in (
        lambda: linear(g, x, [("w", 31)], residual=x),
        lambda: rope(g, x, angles, 3, 10),
        lambda: rope(g, x, angles, 8, 4),
        lambda: rope_frequencies(7, 1e4),
        lambda: paged_attention(g, layer, x, 4, 3, 8, 1.0),
        lambda: paged_attention(g, layer, x, 4, 4, 8, 1.0),
        lambda: silu_mul(g, x.columns(0, 7)),
        lambda: g.mark_logits(x),
        lambda: select_rows(g, select_rows(g, x)),
    ):
        with pytest.raises(InvariantError):
            record()


def test_a_recurrent_layer_serves_one_convolution_and_one_rule_of_its_shape() -> None:
    g = Graph()
    layer = g.new_state_layer(StateShape(24, 4, num_v_heads=4, key_dim=3, value_dim=5))
    u, q, v, gates = g.new_input(24), g.new_input(6), g.new_input(20), g.new_input(8)
    for record in (
        lambda: causal_conv(g, layer, u.columns(0, 23), "w"),
        lambda: gated_delta_rule(g, layer, q, q, v, gates, 3, 4),
        lambda: gated_delta_rule(g, layer, q, q, v, gates.columns(0, 4), 2, 4),
        lambda: gated_delta_rule(g, layer, v, q, v, gates, 2, 4),
        lambda: g.new_state_layer(StateShape(24, 0, 4, 3, 5)),
    ):
        with pytest.raises(InvariantError):
            record()
    causal_conv(g, layer, u, "w")
    gated_delta_rule(g, layer, q, q, v, gates, 2, 4)
    for record in (lambda: causal_conv(g, layer, u, "w"), lambda: gated_delta_rule(g, layer, q, q, v, gates, 2, 4)):
        with pytest.raises(InvariantError, match="used"):
            record()
