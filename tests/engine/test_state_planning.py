"""Plans of models with recurrent layers: constant state for each sequence, KV for each token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from ninfer.backends.options import RuntimeOptions
from ninfer.cache import StateLayout, pages_for
from ninfer.engine import EngineConfig, EnginePlan, Hardware, largest_contexts, plan_engine, planning
from ninfer.engine.plan import PrefixPlan, StatePlan
from ninfer.engine.planning import MARGIN_BYTES, RUNTIME_ESTIMATE_BYTES
from ninfer.engine.prefix_planning import plan_prefix
from ninfer.engine.state_planning import plan_state
from ninfer.errors import CapacityError
from ninfer.models.state import StateSizes, state_sizes
from ninfer.ops.graph import Graph, KVShape, StateShape

MIB = 2**20
WEIGHTS = 100 * MIB
PAGE = {"int8": 1 * MIB, "bf16": 2 * MIB}
SHAPES = [StateShape(40, 4, 3, 8, 16), StateShape(0, 1, 2, 4, 4)]
SLOT = 4 * (3 * 40 + 3 * 8 * 16 + 2 * 4 * 4)
JOURNAL_ROW = 4 * (40 + 3 * 16 + 6 + 2 * 4 + 4)
"""Without a recorded delta rule there are no key heads: convolution inputs, values and gates of the two layers."""


@dataclass(frozen=True)
class HybridConfig:
    """Facts of a made-up hybrid model."""

    vocab_size: int = 5000
    max_position: int = 100_000
    stop_token_ids: tuple[int, ...] = (2,)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def record(self, g: Graph) -> None:
        g.new_kv_layer(KVShape(2, 16))
        for shape in SHAPES:
            g.new_state_layer(shape)


@dataclass(frozen=True)
class FakeArtifact:
    architecture: str = "hybrid"
    digest: str = "ab" * 32
    config: dict[str, Any] = field(default_factory=dict)
    path: str = "made-up.ninfer"
    objects: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(autouse=True)
def hybrid_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "read_config", lambda *_, **__: HybridConfig())


def state_bytes(options: RuntimeOptions) -> int:
    return SLOT * options.num_state_slots + JOURNAL_ROW * options.num_journals * options.journal_rows


def plan_memory(_: object, options: RuntimeOptions) -> dict[str, int]:
    kv = PAGE[options.kv_format] * options.num_pages
    return {"weights": WEIGHTS, "kv": kv, "state": state_bytes(options), "workspace": 0, "logits": 0}


def hardware(available: int) -> Hardware:
    return Hardware(available, available, 1, False, ("scalar",))


def plan(config: EngineConfig, available: int = 2**40, **internal: int) -> EnginePlan:
    return plan_engine(config, FakeArtifact(), hardware(available), plan_memory=plan_memory, **internal)


def total(context: int, kv_dtype: str, lanes: int) -> int:
    rows = min(512, context) + lanes - 1
    ours = lanes * 4 * (pages_for(context) + context) + 4 * (rows + lanes)
    return WEIGHTS + PAGE[kv_dtype] * pages_for(context) + lanes * SLOT + ours + RUNTIME_ESTIMATE_BYTES


def test_sizes_are_those_of_all_layers() -> None:
    assert state_sizes(HybridConfig()) == StateSizes(SLOT, JOURNAL_ROW)


@pytest.mark.parametrize("lanes", [1, 3])
def test_every_lane_has_its_state_however_long_the_context(lanes: int) -> None:
    for context in (64, 6400):
        made = plan(EngineConfig(max_context=context, max_concurrency=lanes, prefix_reuse=False))
        assert made.state == StatePlan(StateLayout("slots", 1))
        assert (made.options.num_state_slots, made.options.num_journals, made.options.journal_rows) == (lanes, 0, 0)
        items = {item.name: item.num_bytes for item in made.memory}
        assert items["state"] == lanes * SLOT
        assert items["kv"] == lanes * PAGE["int8"] * context // 64


def test_the_choice_has_a_reason() -> None:
    made = plan(EngineConfig(max_context=64))
    (choice,) = [choice for choice in made.choices if choice.field == "rollback"]
    assert choice.value == "slots"
    assert f"one slot of {SLOT} bytes" in choice.reason


@pytest.mark.parametrize("kv_dtype", ["int8", "bf16"])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("border", [640, 1000, 6401])
def test_the_largest_context_fits_and_one_token_more_does_not(kv_dtype: Any, lanes: int, border: int) -> None:
    available = total(border, kv_dtype, lanes)
    config = EngineConfig(max_concurrency=lanes)
    largest = largest_contexts(config, FakeArtifact(), hardware(available), plan_memory=plan_memory)
    assert set(largest) == {"int8", "bf16"}
    context = largest[kv_dtype]
    assert context is not None
    assert border <= context < border + 512
    made = plan(EngineConfig(max_context=context, kv_dtype=kv_dtype, max_concurrency=lanes), available)
    assert made.total_bytes <= available
    with pytest.raises(CapacityError) as caught:
        plan(EngineConfig(max_context=context + 1, kv_dtype=kv_dtype, max_concurrency=lanes), available)
    error = caught.value
    assert error.needed == total(context + 1, kv_dtype, lanes) > available
    assert f"needs {error.needed} bytes of memory and {available} are available" in str(error)
    for other, fitting in largest.items():  # a format in which the refused context would fit says how far it goes
        assert f"{fitting} with {other} KV" in str(error)
    assert error.largest == context


def test_the_largest_context_is_at_most_the_trained_one() -> None:
    largest = largest_contexts(EngineConfig(), FakeArtifact(), hardware(2**40), plan_memory=plan_memory)
    assert largest == {"int8": 100_000, "bf16": 100_000}


def test_no_context_fits_beside_too_many_states() -> None:
    available = total(64, "int8", 1)
    largest = largest_contexts(
        EngineConfig(max_concurrency=64), FakeArtifact(), hardware(available), plan_memory=plan_memory
    )
    assert largest == {"int8": None, "bf16": None}


QWEN_27B = StateSizes(48 * 4 * (3 * 10240 + 48 * 128 * 128), 48 * 4 * (10240 + 16 * 128 + 48 * 128 + 96))


@pytest.mark.parametrize(
    ("sizes", "verify_rows", "rollback"),
    [
        (QWEN_27B, 1, "slots"),
        (QWEN_27B, 2, "replay"),
        (QWEN_27B, 8, "replay"),
        (StateSizes(1000, 10), 2, "replay"),
        (StateSizes(1000, 250), 2, "slots"),  # equal
        (StateSizes(1000, 249), 2, "replay"),
        (StateSizes(1000, 500), 9, "slots"),
    ],
)
def test_the_cheaper_strategy_is_taken(sizes: StateSizes, verify_rows: int, rollback: str) -> None:
    state, choice = plan_state(sizes, verify_rows=verify_rows)
    assert state.layout == StateLayout(rollback, verify_rows)  # type: ignore[arg-type]  # the table has plain strings
    assert choice.value == rollback
    by_slots = verify_rows * sizes.slot_bytes
    by_replay = sizes.slot_bytes + 2 * verify_rows * sizes.journal_row_bytes
    if verify_rows > 1:
        assert str(by_slots) in choice.reason
        assert str(by_replay) in choice.reason
    taken = state.num_slots(3) * sizes.slot_bytes + state.num_journals(3) * state.journal_rows * sizes.journal_row_bytes
    assert taken == 3 * min(by_slots, by_replay)


def test_more_logit_rows_than_the_engine_needs() -> None:
    config = EngineConfig(max_context=64, max_concurrency=2)
    assert [plan(config, logit_rows=n).options.max_logit_rows for n in (0, 1, 2, 9)] == [2, 2, 2, 9]


def test_verification_and_snapshots_are_planned_in_slots_and_journals() -> None:
    count = MIB // SLOT
    config = EngineConfig(max_context=64, max_concurrency=2, spec="ngram", draft_tokens=3, snapshot_mib=1)
    made = plan(config)
    assert made.state == StatePlan(StateLayout("replay", 4), max_snapshots=count)
    options = made.options
    assert (options.num_state_slots, options.num_journals, options.journal_rows) == (2 + count, 4, 4)
    assert (options.max_rows, options.max_logit_rows) == (64 + 4, 8)
    items = {item.name: item.num_bytes for item in made.memory}
    assert items["state"] == (2 + count) * SLOT + 16 * JOURNAL_ROW
    assert made.to_dict()["state"] == {"layout": {"rollback": "replay", "verify_rows": 4}, "max_snapshots": count}


def reason(made: EnginePlan, name: str) -> str:
    (found,) = [choice.reason for choice in made.choices if choice.field == name]
    return found


@pytest.mark.parametrize("lanes", [1, 3])
def test_automatic_snapshots_are_four_for_each_sequence_and_four_more(lanes: int) -> None:
    made = plan(EngineConfig(max_context=6400, max_concurrency=lanes))
    assert made.state is not None
    assert made.state.max_snapshots == 4 * lanes + 4
    assert {item.name: item.num_bytes for item in made.memory}["state"] == (5 * lanes + 4) * SLOT
    assert f"{4 * lanes + 4} snapshots of {SLOT} bytes" in reason(made, "snapshot_mib")


def test_automatic_snapshots_leave_room_for_one_context_and_the_margin() -> None:
    config = EngineConfig(max_context=6400)
    enough = total(6400, "int8", 1) + MARGIN_BYTES
    for spare, count in [(0, 0), (SLOT - 1, 0), (SLOT, 1), (5 * SLOT, 5), (100 * SLOT, 8)]:
        made = plan(config, enough + spare)
        assert made.state is not None
        assert made.state.max_snapshots == count
        assert (made.prefix is None) == (count == 0)
    made = plan(config, enough)
    assert "no room for a snapshot" in reason(made, "prefix_reuse")
    assert "leaves room for, no more" in reason(made, "snapshot_mib")


def test_automatic_snapshots_take_an_eighth_of_the_memory_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    large = StateSizes(100 * MIB, 1)
    monkeypatch.setattr(planning, "state_sizes", lambda _: large)
    made = plan(EngineConfig(max_context=64), 4000 * MIB)
    assert made.state is not None
    assert made.state.max_snapshots == 5


@pytest.mark.parametrize(
    ("context", "snapshots", "interval"),
    [(64, 8, 512), (6400, 8, 1600), (6401, 8, 1664), (6400, 1, 6400), (64, 1, 512)],
)
def test_a_full_prompt_takes_half_of_the_snapshots(context: int, snapshots: int, interval: int) -> None:
    prefix, choice = plan_prefix(EngineConfig(), context, snapshots)
    assert prefix == PrefixPlan(interval)
    assert choice is not None
    assert choice.value == interval


def test_without_reuse_there_are_no_snapshots() -> None:
    for config in (EngineConfig(prefix_reuse=False, snapshot_mib=100), EngineConfig(snapshot_mib=0)):
        made = plan(config)
        assert made.prefix is None
        assert made.state == StatePlan()
