"""Orders of rows and columns, and what encoding makes of them for every kind of stored tensor."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from make.make_gguf import decode, encode
from ninfer import formats
from ninfer.convert.encode import encode as encode_tensor
from ninfer.convert.gguf.reader import GGUFFile
from ninfer.convert.mapped import SourceTensor
from ninfer.convert.names.orders import Grouped, HalfSplit, HeadPart, Order
from ninfer.convert.names.rules import TensorRule, assign
from ninfer.convert.weight import StoredWeight
from ninfer.errors import ConversionError
from ninfer.formats import layouts

N, K = 48, 96
VALUES = np.random.default_rng(4).standard_normal((N, K)).astype(np.float32)


def round_the_groups(values: np.ndarray, groups: int, width: int) -> np.ndarray:
    """Heads in the order g0s0 g1s0 ... g0s1 g1s1 ..., as ggml repeats key heads, from ours, by plain loops."""
    heads = [values[i : i + width] for i in range(0, len(values), width)]
    per_group = len(heads) // groups
    return np.concatenate([heads[g * per_group + s] for s in range(per_group) for g in range(groups)])


def test_grouped_undoes_going_round_the_groups() -> None:
    ours = np.arange(30)
    theirs = np.concatenate([ours[:6], round_the_groups(ours[6:], 2, 4)])
    assert theirs[6:].tolist() != ours[6:].tolist()
    np.testing.assert_array_equal(theirs[Grouped(2, 6, 4, first=6).indices()], ours)
    np.testing.assert_array_equal(Grouped(5, 5, 3).indices(), np.arange(15))


def test_parts_of_heads_are_taken_head_by_head() -> None:
    assert HeadPart(2, 3, 0, 2).indices().tolist() == [0, 1, 2, 6, 7, 8]
    assert HeadPart(2, 3, 1, 2).indices().tolist() == [3, 4, 5, 9, 10, 11]


def converted(path: Path, kind: str, rule: TensorRule, weights: str | None = None) -> tuple[str, np.ndarray]:
    """(format, exact values) of VALUES stored as `kind` and encoded under `rule`."""
    writer = gguf.GGUFWriter(path, "x")
    writer.add_tensor("w", encode(VALUES, kind), raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile(path) as file:
        (assignment,) = assign([rule], {"w": StoredWeight(SourceTensor(file, file.tensors["w"]))}, path)
        encoded = encode_tensor(assignment, weights)
    if encoded.layout == "row":
        return encoded.format, layouts.from_row(encoded.data, rule.shape, encoded.format)
    planes = layouts.from_n16(encoded.data, (rule.shape[0], rule.shape[1]), encoded.format)
    return encoded.format, formats.get(encoded.format).unpack(planes)


ROWS: dict[str, Order] = {
    "half": HalfSplit(4, 12),
    "part": HeadPart(4, 6, 1, 2),
    "grouped": Grouped(2, 6, 4, first=24),
}


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0", "Q4_1", "Q5_0"])
@pytest.mark.parametrize("name", ROWS)
def test_rows_of_every_stored_type_move_without_a_change(name: str, kind: str, tmp_path: Path) -> None:
    indices = ROWS[name].indices()
    rule = TensorRule("ours", "w", (len(indices), K), rows=ROWS[name], source_shape=(N, K))
    format, values = converted(tmp_path / "w.gguf", kind, rule, weights="f32" if kind == "Q5_0" else None)
    assert format == {"Q8_0": "q8g32", "Q4_0": "q4g32", "Q4_1": "q4g32m"}.get(kind, "f32")
    np.testing.assert_array_equal(values.astype(np.float32), decode(encode(VALUES, kind), kind)[indices])


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0", "Q4_1", "Q5_0"])
def test_columns_move_in_whole_blocks(kind: str, tmp_path: Path) -> None:
    order = Reversed(3, 32)
    rule = TensorRule("ours", "w", (N, K), columns=order)
    _, values = converted(tmp_path / "w.gguf", kind, rule, weights="f32" if kind == "Q5_0" else None)
    np.testing.assert_array_equal(values.astype(np.float32), decode(encode(VALUES, kind), kind)[:, order.indices()])


class Reversed:
    """Blocks of `width` columns from the last to the first."""

    def __init__(self, count: int, width: int) -> None:
        self.blocks = np.arange(count * width).reshape(count, width)

    def indices(self) -> np.ndarray:
        return self.blocks[::-1].reshape(-1)


@pytest.mark.parametrize("order", [Reversed(6, 16), Reversed(96, 1)], ids=["half blocks", "single columns"])
def test_columns_that_would_cut_a_block_are_refused_or_stored_by_value(order: Reversed, tmp_path: Path) -> None:
    rule = TensorRule("ours", "w", (N, K), columns=order)
    with pytest.raises(ConversionError, match=r"tensor 'w'.*columns.*whole groups of 32 of q4g32.*--weights f32"):
        converted(tmp_path / "w.gguf", "Q4_0", rule)
    _, values = converted(tmp_path / "w.gguf", "Q4_0", rule, weights="f32")
    np.testing.assert_array_equal(values, decode(encode(VALUES, "Q4_0"), "Q4_0")[:, order.indices()])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("one_plus", np.float32(1) + VALUES),
        ("exp", np.exp(VALUES.astype(np.float64)).astype(np.float32)),
        ("minus", -VALUES),
        ("columns_first", VALUES.T),
    ],
)
def test_vectors_are_changed_as_the_rule_says(change: str, expected: np.ndarray, tmp_path: Path) -> None:
    rule = TensorRule("ours", "w", (N * K,), change=change, source_shape=(N, K))
    format, values = converted(tmp_path / "w.gguf", "F32", rule)
    assert format == "f32"
    np.testing.assert_array_equal(values, expected.reshape(-1))
