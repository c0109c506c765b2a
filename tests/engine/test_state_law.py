"""The state law: after every commit, all state equals that of plain token-by-token decoding.

A `RecurrentFormulaModel` watches every step: what it reads from slots and journals must be the state of exactly the
committed tokens.
"""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from state_machine import Lane, StateMachine

from ninfer.engine import EnginePlan
from ninfer.engine.testing import RecurrentFormulaModel, formula_logits


class StateLaw(StateMachine):
    def new_model(self, plan: EnginePlan) -> RecurrentFormulaModel:
        return RecurrentFormulaModel(plan)

    def check(self, lane: Lane) -> None:
        tokens = np.array(lane.tokens)
        expected = [formula_logits(tokens[: n + 1], self.vocab_size).tobytes() for n in range(len(tokens))]
        assert lane.logits == expected


StateLaw.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestStateLaw = StateLaw.TestCase
