"""Sequences side by side in steps of every kind, in any order: what every test of the state law runs on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ninfer.cache import SequenceState, Snapshot, StateLayout, TokenMemory
from ninfer.cache.state_slots import StateSlots
from ninfer.engine import EnginePlan
from ninfer.engine.plan import StatePlan
from ninfer.engine.step import ForwardModel
from ninfer.engine.testing import make_plan
from ninfer.models.batch import ForwardBatch, SequenceRows, StateAccess

VOCAB = 11
LANES = 3
MAX_TOKENS = 400
SNAPSHOTS = 3


@dataclass
class Lane:
    """One sequence, its committed tokens with the logits after each, and the snapshots it made. `last_access`: of the
    step before `StateMachine.check`."""

    state: SequenceState
    tokens: list[int] = field(default_factory=list)
    logits: list[bytes] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    last_access: StateAccess = field(default_factory=lambda: StateAccess(None))


@dataclass(frozen=True)
class Part:
    """What one lane does in a step. `share` decides how many rows of a block hold; snapshots fall where they fit."""

    lane: int
    tokens: tuple[int, ...]
    partial: bool
    share: float
    snapshots: tuple[int, ...]


TOKENS = st.one_of(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6).map(tuple),
    st.sampled_from([1, 1, 63, 64, 65]).map(lambda n: tuple(i * i % VOCAB for i in range(n))),
)
PARTS = st.lists(
    st.builds(
        Part,
        lane=st.integers(0, LANES - 1),
        tokens=TOKENS,
        partial=st.booleans(),
        share=st.floats(0, 1),
        snapshots=st.lists(st.integers(1, 64), max_size=2).map(lambda counts: tuple(sorted(set(counts)))),
    ),
    min_size=1,
    max_size=LANES,
    unique_by=lambda part: part.lane,
)
LAYOUTS = st.one_of(
    st.just(StateLayout()),
    st.builds(StateLayout, st.sampled_from(["slots", "replay"]), st.integers(2, 6)),
)


class StateMachine(RuleBasedStateMachine):
    """Lanes of one engine's token memory, without the engine.

    After each committed step `tokens` and `logits` of a lane are what plain decoding must give; whoever derives from
    this says which model runs (`new_model`) and checks lanes at the end (`check`).
    """

    vocab_size = VOCAB

    def new_model(self, plan: EnginePlan) -> ForwardModel:
        """A model for a plan; it may have been used before."""
        raise NotImplementedError

    def check(self, lane: Lane) -> None:
        """At the end, after a plain step, so that the lane's state is all in its slot."""

    @initialize(layout=LAYOUTS)
    def start(self, layout: StateLayout) -> None:
        state = StatePlan(layout, SNAPSHOTS)
        self.layout = layout
        plan = make_plan(
            vocab_size=self.vocab_size,
            max_context=MAX_TOKENS + 1,
            prefill_chunk=MAX_TOKENS,
            max_concurrency=LANES,
            state=state,
        )
        self.plan = replace(plan, options=replace(plan.options, max_logit_rows=plan.options.max_rows))
        self.model = self.new_model(self.plan)
        options = self.plan.options
        self.slots = StateSlots(
            layout,
            num_slots=options.num_state_slots,
            num_journals=options.num_journals,
            max_snapshots=SNAPSHOTS,
        )
        self.memory = TokenMemory(self.plan.num_pages, self.slots)
        self.lanes = [self._new_lane() for _ in range(LANES)]

    @rule(parts=PARTS, fate=st.sampled_from(["commit"] * 6 + ["undo before", "undo after"]))
    def step(self, parts: list[Part], fate: str) -> None:
        """Rows of several lanes together; an undone step was interrupted before or after the forward."""
        started = [(part, rows) for part in parts if (rows := self._reserve(part))]
        if not started:
            return
        logits = [] if fate == "undo before" else self._forward(started)
        for index, (part, tokens) in enumerate(started):
            lane = self.lanes[part.lane]
            if fate == "commit":
                accepted = 1 + int(part.share * (len(tokens) - 1)) if part.partial else len(tokens)
                lane.snapshots += lane.state.commit(accepted)
                lane.tokens += tokens[:accepted]
                lane.logits += logits[index][:accepted]
            else:
                lane.state.rollback()
                assert lane.state.committed in (0, len(lane.tokens))

    @rule(index=st.integers(0, LANES - 1))
    def snapshot(self, index: int) -> None:
        """Of the present state, between steps."""
        lane = self.lanes[index]
        if self.slots.num_snapshots < SNAPSHOTS:
            made = lane.state.snapshot()
            if made is not None:
                assert made.num_tokens <= lane.state.committed
                lane.snapshots.append(made)

    @rule(index=st.integers(0, LANES - 1), which=st.integers(0, SNAPSHOTS))
    def restore(self, index: int, which: int) -> None:
        """Back to an earlier position; what was decoded since never happened."""
        lane = self.lanes[index]
        usable = [s for s in lane.snapshots if s.num_tokens <= lane.state.committed]
        if usable:
            snapshot = usable[which % len(usable)]
            lane.state.restore(snapshot)
            del lane.tokens[snapshot.num_tokens :], lane.logits[snapshot.num_tokens :]
            self._drop(lane, [s for s in lane.snapshots if s.num_tokens > snapshot.num_tokens])

    @rule(source=st.integers(0, LANES - 1), to=st.integers(0, LANES - 1), which=st.integers(0, SNAPSHOTS))
    def branch(self, source: int, to: int, which: int) -> None:
        """Another sequence with the same first tokens goes on from a snapshot, beside the one that made it."""
        lane = self.lanes[source]
        if source == to or not lane.snapshots:
            return
        snapshot = lane.snapshots[which % len(lane.snapshots)]
        if snapshot.num_tokens > len(lane.tokens):
            return
        self.cancel(to, inside=False)
        other = self.lanes[to]
        other.tokens = lane.tokens[: snapshot.num_tokens]
        other.state.reserve(len(other.tokens))
        (other.logits,) = self._forward([(Part(to, (), False, 0.0, ()), other.tokens)])
        other.state.commit(len(other.tokens))
        assert other.logits == lane.logits[: snapshot.num_tokens]
        other.state.restore(snapshot)

    @rule(index=st.integers(0, LANES - 1), which=st.integers(0, SNAPSHOTS))
    def drop_snapshot(self, index: int, which: int) -> None:
        lane = self.lanes[index]
        if lane.snapshots:
            self._drop(lane, [lane.snapshots[which % len(lane.snapshots)]])

    @rule(index=st.integers(0, LANES - 1), inside=st.booleans())
    def cancel(self, index: int, inside: bool) -> None:
        """The sequence ends, maybe inside a step, and another one takes its place."""
        lane = self.lanes[index]
        if inside:
            self._reserve(Part(index, (1, 2), True, 0.0, ()))
        lane.state.release()
        self._drop(lane, list(lane.snapshots))
        self.lanes[index] = self._new_lane()

    @invariant()
    def nothing_leaks(self) -> None:
        """Between steps a sequence owns at most one slot, and slots are owned, snapshots or free."""
        lanes = getattr(self, "lanes", [])
        if not lanes:
            return
        owned = self.slots.slots.size - self.slots.slots.num_free - self.slots.num_snapshots
        assert 0 <= owned <= LANES
        for lane in lanes:
            assert lane.state.committed in (0, len(lane.tokens))

    def teardown(self) -> None:
        if not hasattr(self, "lanes"):
            return
        for index, lane in enumerate(self.lanes):
            part = Part(index, (1,), False, 0.0, ())
            self._reserve(part, most=MAX_TOKENS + 1)
            (logits,) = self._forward([(part, [1])])
            assert lane.state.access is not None
            lane.last_access = lane.state.access
            lane.state.commit(1)
            lane.tokens.append(1)
            lane.logits += logits
            self.check(lane)
            lane.state.release()
            self._drop(lane, list(lane.snapshots))
        assert self.slots.slots.num_free == self.slots.slots.size
        assert self.slots.journals.num_free == self.slots.journals.size
        assert self.memory.pages.num_free == self.memory.pages.num_pages

    def _new_lane(self) -> Lane:
        assert self.memory.has_slots, "sequences always have room for as many as lanes"
        return Lane(self.memory.new_sequence(MAX_TOKENS + 1))

    def _reserve(self, part: Part, most: int = MAX_TOKENS) -> list[int]:
        """Reserve the rows of a part; gives their tokens, none if the lane is full.

        A lane whose state was lost computes its tokens again first, however the part was meant.
        """
        lane = self.lanes[part.lane]
        if lane.state.committed < len(lane.tokens):
            lane.state.reserve(len(lane.tokens))
            (again,) = self._forward([(part, lane.tokens)])
            lane.state.commit(len(lane.tokens))
            assert again == lane.logits
        tokens = list(part.tokens[: self.layout.verify_rows] if part.partial else part.tokens)
        tokens = tokens[: most - len(lane.tokens)]
        if tokens:
            room = SNAPSHOTS - self.slots.num_snapshots
            counts = [n for n in part.snapshots if n < len(tokens)][:room]
            lane.state.reserve(len(tokens), partial=part.partial, snapshots=() if part.partial else counts)
        return tokens

    def _forward(self, parts: list[tuple[Part, list[int]]]) -> list[list[bytes]]:
        """By part the logits of its rows, as bytes: they are compared bit by bit."""
        starts = np.cumsum([0, *(len(tokens) for _, tokens in parts)])
        sequences = []
        for (part, tokens), (start, _) in zip(parts, pairwise(starts), strict=True):
            state = self.lanes[part.lane].state
            sequences.append(SequenceRows(int(start), len(tokens), state.committed, state.pages, state.access))
        ids = np.concatenate([np.array(tokens, np.int32) for _, tokens in parts])
        logits = self.model.forward(ForwardBatch(ids, tuple(sequences), np.arange(len(ids), dtype=np.int32)))
        return [[row.tobytes() for row in logits[start:stop]] for start, stop in pairwise(starts)]

    def _drop(self, lane: Lane, snapshots: list[Snapshot]) -> None:
        for snapshot in snapshots:
            lane.snapshots.remove(snapshot)
            self.slots.drop(snapshot.slot)
