"""The state law: whatever slots and journals a sequence goes through, state and logits are those of plain decoding.

A small hybrid graph (two recurrent layers of different shapes with an attention layer between them) is run by random
steps: chunks, snapshots and returns to them, and verified blocks of which some rows are rejected, by a slot per row or
by journal and replay; several sequences per step. The truth is one sequence decoded token by token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from make.op_runs import BACKENDS, CPU_ISAS, StoredWeights, compile_on
from ninfer.backends.base import Executable, LayerState
from ninfer.errors import ConfigError, InvariantError
from ninfer.models.batch import BatchLimits, ForwardBatch, SequenceRows, StateAccess, check_batch
from ninfer.ops.causal_conv import causal_conv
from ninfer.ops.delta_gates import delta_gates
from ninfer.ops.embedding import embedding
from ninfer.ops.frequencies import rope_frequencies
from ninfer.ops.gated_delta_rule import gated_delta_rule
from ninfer.ops.gated_rms_norm import gated_rms_norm
from ninfer.ops.graph import Graph, KVShape, StateShape, Value
from ninfer.ops.kv_append import kv_append
from ninfer.ops.l2_norm import l2_norm
from ninfer.ops.linear import linear
from ninfer.ops.paged_attention import paged_attention
from ninfer.ops.rms_norm import rms_norm
from ninfer.ops.rope import rope
from ninfer.ops.rope_angles import rope_angles
from ninfer.ops.select_rows import select_rows
from ninfer.ops.sigmoid_mul import sigmoid_mul

VOCABULARY, HIDDEN, EPS = 61, 48, 1e-6
SHAPES = ((2, 6, 16, 20), (3, 3, 20, 72))
"""Key heads, value heads, key and value width of each recurrent layer."""

LENGTH, STREAMS = 150, 3
PAGES_EACH = -(-LENGTH // 64)
JOURNAL_ROWS = 6
SLOTS_EACH = 2 + JOURNAL_ROWS  # its own, a snapshot, one per row of a verified block

Tokens = npt.NDArray[np.int32]


def hybrid_graph() -> tuple[Graph, dict[str, npt.NDArray[np.float32]]]:
    """The recorded graph with its random weights."""
    rng = np.random.default_rng(31)
    weights: dict[str, npt.NDArray[np.float32]] = {
        "embed": rng.standard_normal((VOCABULARY, HIDDEN)).astype(np.float32)
    }

    def vector(name: str, width: int, low: float = 0.5) -> str:
        weights[name] = rng.uniform(low, 1.5, width).astype(np.float32)
        return name

    def matrix(name: str, n: int, k: int) -> tuple[str, int]:
        weights[name] = (rng.standard_normal((n, k)) / k**0.5).astype(np.float32)
        return name, n

    def recurrent(g: Graph, h: Value, name: str, shape: tuple[int, int, int, int]) -> Value:
        k_heads, v_heads, key_dim, value_dim = shape
        keys, values = k_heads * key_dim, v_heads * value_dim
        channels = 2 * keys + values
        widths = {"qkv": channels, "z": values, "a": v_heads, "b": v_heads}
        x = linear(
            g,
            rms_norm(g, h, vector(f"{name}.norm", HIDDEN), EPS),
            [matrix(f"{name}.{w}", n, HIDDEN) for w, n in widths.items()],
        )
        layer = g.new_state_layer(StateShape(channels, 4, v_heads, key_dim, value_dim))
        c = causal_conv(g, layer, x.columns(0, channels), vector(f"{name}.conv", 4 * channels, -1.0))
        q = l2_norm(g, c.columns(0, keys), k_heads, key_dim**-0.5)
        k = l2_norm(g, c.columns(keys, 2 * keys), k_heads, 1.0)
        gates_at = channels + values
        a, b = x.columns(gates_at, gates_at + v_heads), x.columns(gates_at + v_heads, x.width)
        gates = delta_gates(g, a, b, vector(f"{name}.decay", v_heads, 0.01), vector(f"{name}.dt_bias", v_heads, -3.0))
        o = gated_delta_rule(g, layer, q, k, c.columns(2 * keys, channels), gates, k_heads, v_heads)
        o = gated_rms_norm(g, o, x.columns(channels, gates_at), vector(f"{name}.out_norm", value_dim), EPS, v_heads)
        return linear(g, o, [matrix(f"{name}.out", HIDDEN, values)], residual=h)

    def attention(g: Graph, h: Value) -> Value:
        heads, head_dim = 3, 20
        width = heads * head_dim
        names = ["q", "gate", "k", "v"]
        x = linear(g, h, [matrix(n, width if n in ("q", "gate") else head_dim, HIDDEN) for n in names])
        angles = rope_angles(g, rope_frequencies(8, 1e4))
        q = rope(
            g,
            rms_norm(g, x.columns(0, width), vector("q_norm", head_dim), EPS, num_heads=heads),
            angles,
            heads,
            head_dim,
        )
        k = rope(g, x.columns(2 * width, 2 * width + head_dim), angles, 1, head_dim)
        layer = g.new_kv_layer(KVShape(1, head_dim))
        kv_append(g, layer, k, x.columns(2 * width + head_dim, x.width))
        o = sigmoid_mul(
            g, paged_attention(g, layer, q, heads, 1, head_dim, head_dim**-0.5), x.columns(width, 2 * width)
        )
        return linear(g, o, [matrix("o", HIDDEN, width)], residual=h)

    g = Graph()
    h = recurrent(g, embedding(g, "embed", HIDDEN), "first", SHAPES[0])
    h = recurrent(g, attention(g, h), "second", SHAPES[1])
    g.mark_logits(linear(g, select_rows(g, h), [("embed", VOCABULARY)]))
    return g, weights


LIMITS = BatchLimits(VOCABULARY, LENGTH, LENGTH, STREAMS * PAGES_EACH, STREAMS * SLOTS_EACH, 2 * STREAMS, JOURNAL_ROWS)


def compiled(backend: str, numerics: str, threads: int = 1) -> Executable:
    graph, weights = hybrid_graph()
    return compile_on(
        backend,
        graph,
        StoredWeights(weights, "q8g32"),
        numerics=numerics,
        threads=threads,
        num_pages=LIMITS.num_pages,
        max_rows=LIMITS.max_rows,
        max_logit_rows=LIMITS.max_logit_rows,
        num_state_slots=LIMITS.num_state_slots,
        num_journals=LIMITS.num_journals,
        journal_rows=JOURNAL_ROWS,
    )


@dataclass
class Truth:
    """One stream decoded token by token: logits `[LENGTH, V]`, and the state after each number of tokens from 1 on."""

    ids: Tokens
    logits: npt.NDArray[np.float32]
    states: list[list[LayerState]]


def decode(executable: Executable, ids: Tokens) -> Truth:
    pages, logits, states = np.arange(PAGES_EACH, dtype=np.int32), [], []
    for position in range(len(ids)):
        access = StateAccess(None if position == 0 else 0, saves=((1, 0),))
        rows = SequenceRows(0, 1, position, pages, access)
        logits.append(executable.forward(ForwardBatch(ids[[position]], (rows,), np.zeros(1, np.int32)))[0].copy())
        states.append(executable.read_state(0))
    return Truth(ids, np.array(logits), states)


@dataclass
class Stream:
    """A sequence under test: how far it is, where its state lies, and what is to be replayed."""

    number: int
    truth: Truth
    position: int = 0
    read: int | None = None
    replay: tuple[int, int] | None = None
    snapshot: tuple[int, int] | None = None
    last_journal: int = 0
    commit: Callable[[], None] = field(default=lambda: None)
    known: dict[int, int] = field(default_factory=dict)
    """slot -> number of tokens of the truth, for the slots that the current step saves."""

    def __post_init__(self) -> None:
        first = self.number * SLOTS_EACH
        self.own, self.kept, self.per_row = first, first + 1, list(range(first + 2, first + SLOTS_EACH))
        self.pages = np.random.default_rng(7).permutation(LIMITS.num_pages).astype(np.int32)
        self.pages = self.pages[self.number * PAGES_EACH : (self.number + 1) * PAGES_EACH]

    def next_rows(self, rng: np.random.Generator, start: int) -> tuple[SequenceRows, Tokens, int]:
        """Rows of the next step, their tokens, and how many of them are the truth's."""
        if self.snapshot is not None and rng.random() < 0.15:
            (self.position, self.read), self.replay = self.snapshot, None
        left = LENGTH - self.position
        if rng.random() < 0.4 or left < 2:
            return self._chunk(rng, start, int(rng.integers(1, min(left, 40) + 1)))
        return self._block(rng, start, int(rng.integers(2, min(left, JOURNAL_ROWS) + 1)))

    def _rolled_forward(self) -> tuple[tuple[int, int], ...]:
        """A replayed state is kept in the sequence's own slot."""
        return ((0, self.own),) if self.replay else ()

    def _chunk(self, rng: np.random.Generator, start: int, count: int) -> tuple[SequenceRows, Tokens, int]:
        saves = [(count, self.own)]
        if rng.random() < 0.5:
            at = int(rng.integers(0, count + 1))
            if at + self.position > 0 and self.read != self.kept:
                saves.insert(0 if at < count else 1, (at, self.kept))
                self.snapshot = (self.position + at, self.kept)
        access = StateAccess(self.read, self.replay, tuple(saves))
        done = self.position + count

        def commit() -> None:
            self.position, self.read, self.replay = done, self.own, None

        return self._rows(access, start, count, count, commit)

    def _block(self, rng: np.random.Generator, start: int, count: int) -> tuple[SequenceRows, Tokens, int]:
        """Rows to verify, of which the first `accepted` are right."""
        accepted = int(rng.integers(1, count + 1))
        done = self.position + accepted
        if rng.random() < 0.5:
            saves = (*self._rolled_forward(), *((i + 1, self.per_row[i]) for i in range(count)))
            access = StateAccess(self.read, self.replay, saves)

            def commit() -> None:
                self.position, self.read, self.replay = done, self.per_row[accepted - 1], None
        else:
            journal = 2 * self.number + (1 - self.last_journal)
            access = StateAccess(self.read, self.replay, self._rolled_forward(), journal)
            read = self.own if self.replay else self.read

            def commit() -> None:
                self.position, self.read, self.replay = done, read, (journal, accepted)
                self.last_journal = 1 - self.last_journal

        return self._rows(access, start, count, accepted, commit)

    def _rows(
        self, access: StateAccess, start: int, count: int, right: int, commit: Callable[[], None]
    ) -> tuple[SequenceRows, Tokens, int]:
        self.commit = commit
        self.known = {slot: self.position + n for n, slot in access.saves if n <= right}
        ids = self.truth.ids[self.position : self.position + count].copy()
        ids[right:] = (ids[right:] + 1) % VOCABULARY
        return SequenceRows(start, count, self.position, self.pages, access), ids, right


Compare = Callable[[npt.NDArray[np.float32], npt.NDArray[np.float32]], None]


def run_randomly(executable: Executable, truths: list[Truth], seed: int, steps: int, compare: Compare) -> int:
    """Random steps until every stream has had its end several times; returns the number of compared states."""
    rng = np.random.default_rng(seed)
    streams = [Stream(number, truth) for number, truth in enumerate(truths)]
    compared = 0
    for _ in range(steps):
        members = [s for s in streams if rng.random() < 0.6] or [streams[0]]
        rng.shuffle(members)
        start, rows, ids, right = 0, [], [], []
        for stream in members:
            if stream.position == LENGTH:  # from the start again; what its slots and pages hold must not matter
                streams[stream.number] = stream = Stream(stream.number, stream.truth)
            more, its_ids, its_right = stream.next_rows(rng, start)
            rows.append(more)
            ids.append(its_ids)
            right.append((streams[stream.number], start, its_right))
            start += more.count
        batch = ForwardBatch(np.concatenate(ids), tuple(rows), np.arange(start, dtype=np.int32))
        check_batch(batch, LIMITS)
        logits = executable.forward(batch)
        for stream, first, count in right:
            compare(logits[first : first + count], stream.truth.logits[stream.position : stream.position + count])
            for slot, tokens in stream.known.items():
                for got, want in zip(executable.read_state(slot), stream.truth.states[tokens - 1], strict=True):
                    compare(got.window, want.window)
                    compare(got.s, want.s)
                compared += 1
            stream.commit()
    return compared


def streams_of_tokens() -> list[Tokens]:
    rng = np.random.default_rng(41)
    return [rng.integers(0, VOCABULARY, LENGTH).astype(np.int32) for _ in range(STREAMS)]


def truths_on(backend: str, numerics: str) -> list[Truth]:
    executable = compiled(backend, numerics)
    try:
        return [decode(executable, ids) for ids in streams_of_tokens()]
    finally:
        executable.close()


@pytest.fixture(scope="module", params=["a8", "f32"])
def native_truth(request: pytest.FixtureRequest) -> tuple[str, list[Truth]]:
    return request.param, truths_on(CPU_ISAS[-1], request.param)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", CPU_ISAS)
def test_every_way_through_slots_and_journals_gives_the_same_bits(
    native_truth: tuple[str, list[Truth]], isa: str, threads: int
) -> None:
    """Also between instruction sets: the truth is that of the last one."""
    numerics, truths = native_truth
    executable = compiled(isa, numerics, threads)
    compared = run_randomly(executable, truths, seed=threads, steps=60, compare=np.testing.assert_array_equal)
    executable.close()
    assert compared > 100


def test_more_threads_than_tiles_change_no_bit(native_truth: tuple[str, list[Truth]]) -> None:
    """The second layer has 3 heads of 5 column blocks: with 16 threads each takes one block."""
    numerics, truths = native_truth
    executable = compiled(CPU_ISAS[-1], numerics, threads=16)
    assert run_randomly(executable, truths, seed=5, steps=12, compare=np.testing.assert_array_equal) > 10
    executable.close()


@pytest.mark.parametrize(
    ("access", "message"),
    [
        (None, "without state accesses"),
        (StateAccess(LIMITS.num_state_slots), "state slot read"),
        (StateAccess(-2), "state slot read"),
        (StateAccess(0, saves=((1, LIMITS.num_state_slots),)), "state slot saved to"),
        (StateAccess(0, saves=((1, -1),)), "state slot saved to"),
        (StateAccess(0, saves=((JOURNAL_ROWS + 2, 0),)), "rows before a save"),
        (StateAccess(0, saves=((2, 0), (1, 1))), "rows before a save"),
        (StateAccess(0, replay=(LIMITS.num_journals, 1)), "journal replayed"),
        (StateAccess(0, replay=(0, JOURNAL_ROWS + 1)), "rows replayed"),
        (StateAccess(0, replay=(0, 0)), "rows replayed"),
        (StateAccess(0, journal=LIMITS.num_journals), "journal"),
        (StateAccess(0, journal=0), "rows kept in a journal"),
    ],
)
def test_native_steps_refuse_what_would_leave_the_memory_of_states(access: StateAccess | None, message: str) -> None:
    """The executable keeps its memory even if nobody checked the batch."""
    executable = compiled(CPU_ISAS[0], "f32")
    count = JOURNAL_ROWS + 1
    rows = SequenceRows(0, count, 9, np.arange(PAGES_EACH, dtype=np.int32), access)
    with pytest.raises(InvariantError, match=message):
        executable.forward(ForwardBatch(np.zeros(count, np.int32), (rows,), np.zeros(0, np.int32)))
    executable.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_state_memory_is_planned_and_needs_a_slot(backend: str) -> None:
    graph, weights = hybrid_graph()
    stored = StoredWeights(weights, "q8g32")
    sizes = {"num_pages": 1, "max_rows": 2, "max_logit_rows": 2}
    with pytest.raises(ConfigError, match="num_state_slots is 0; the model has 2 recurrent layers"):
        compile_on(backend, graph, stored, **sizes)
    held = []
    for slots, journals in ((1, 0), (3, 0), (3, 2)):
        options = {"num_state_slots": slots, "num_journals": journals, "journal_rows": 2 * journals}
        executable = compile_on(backend, graph, stored, **sizes, **options)
        held.append(executable.memory["state"])
        executable.close()
    floats = sum(3 * (2 * k * dk + v * dv) + v * dk * dv for k, v, dk, dv in SHAPES)
    assert held[1] == 3 * held[0]
    assert held[0] >= 4 * floats  # the native backend rounds rows up to cache lines
    assert held[2] > held[1]


def test_the_reference_keeps_the_law_within_rounding() -> None:
    truths = truths_on("reference", "f32")
    executable = compiled("reference", "f32")

    def close(got: npt.NDArray[np.float32], want: npt.NDArray[np.float32]) -> None:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)

    assert run_randomly(executable, truths, seed=3, steps=40, compare=close) > 50
    executable.close()


@pytest.mark.parametrize("isa", CPU_ISAS)
def test_native_and_reference_agree(isa: str) -> None:
    want, got = (truths_on(backend, "f32")[0] for backend in ("reference", isa))
    np.testing.assert_allclose(got.logits, want.logits, rtol=1e-3, atol=1e-3)
    for a, b in zip(got.states[-1], want.states[-1], strict=True):
        np.testing.assert_allclose(a.window, b.window, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(a.s, b.s, rtol=1e-3, atol=1e-3)
