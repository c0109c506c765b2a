"""The state law on a real hybrid model and native kernels: every logit and the state itself, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from state_machine import LANES, MAX_TOKENS, SNAPSHOTS, Lane, StateMachine

from make.model_runs import logits_of
from make.tiny_hybrid import CONFIG, random_weights, write_artifact
from ninfer.artifact import Artifact
from ninfer.backends.base import LayerState
from ninfer.cache import pages_for
from ninfer.engine import EnginePlan
from ninfer.models import Model, RuntimeOptions, load_model

ROWS = MAX_TOKENS + 6 * LANES
OPTIONS = RuntimeOptions(
    num_pages=LANES * pages_for(MAX_TOKENS + 1),
    max_rows=ROWS,
    max_logit_rows=ROWS,
    num_state_slots=6 * LANES + SNAPSHOTS,
    num_journals=2 * LANES,
    journal_rows=6,
)
"""For every layout that the machine draws: one model serves all examples, and starts none of them clean."""


class HybridLaw(StateMachine):
    """Compares with a second model that only ever decodes token by token."""

    vocab_size = CONFIG.num_decodable
    model: ClassVar[Model]
    plain: ClassVar[Model]

    def new_model(self, plan: EnginePlan) -> Model:
        options = plan.options
        assert options.num_state_slots <= OPTIONS.num_state_slots
        assert options.num_journals <= OPTIONS.num_journals
        return self.model

    def check(self, lane: Lane) -> None:
        tokens = np.array(lane.tokens, np.int32)
        expected = logits_of(self.plain, tokens, [1] * len(tokens), state_slot=0)
        assert [row.tobytes() for row in expected] == lane.logits
        ((_, slot),) = lane.last_access.saves
        assert_same_state(read_state(self.model, slot), read_state(self.plain, 0))


def read_state(model: Model, slot: int) -> list[LayerState]:
    return model._live().read_state(slot)  # no public way: only tests look at states


def assert_same_state(got: list[LayerState], want: list[LayerState]) -> None:
    assert len(got) == len(want) > 0
    for layer, (a, b) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_array_equal(a.window, b.window, err_msg=f"window of recurrent layer {layer}")
        np.testing.assert_array_equal(a.s, b.s, err_msg=f"matrices of recurrent layer {layer}")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artifact]:
    path: Path = tmp_path_factory.mktemp("hybrid") / "hybrid.ninfer"
    write_artifact(path, CONFIG, random_weights(CONFIG), "q8g32")
    with Artifact.open(path) as opened:
        yield opened


def test_state_of_a_hybrid_model_is_that_of_plain_decoding(artifact: Artifact) -> None:
    HybridLaw.model = load_model(artifact, OPTIONS)
    HybridLaw.plain = load_model(artifact, OPTIONS)
    try:
        run_state_machine_as_test(  # type: ignore[no-untyped-call]  # hypothesis leaves it without types
            HybridLaw,
            settings=settings(
                max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
            ),
        )
    finally:
        HybridLaw.model.close()
        HybridLaw.plain.close()
