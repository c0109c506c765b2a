"""A worker that runs our own engine room: model steps on the CPU backend, straight from a `.ninfer` artifact.

usage: python -m ninfer.bench.workers.own
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

import ninfer
from ninfer.artifact import Artifact
from ninfer.backends.cpu import available_isas
from ninfer.bench.workers.serving import TIMED, Answer, Bench, EngineError, Row, serve
from ninfer.engine.config import EngineConfig
from ninfer.engine.engine import Engine
from ninfer.engine.hardware import detect_hardware
from ninfer.engine.planning import plan_engine
from ninfer.engine.request import GenerationRequest, StopRules
from ninfer.errors import NInferError
from ninfer.models import ForwardBatch, Model, SequenceRows, StateAccess, load_model

MAX_LOGIT_ROWS = 16
"""Steps of up to this many rows give all their logits."""


class OwnEngine:
    """This package; what its kernels use is the best instruction set they have here."""

    def __init__(self) -> None:
        isas = available_isas()
        self.greeting = {"engine": "ninfer", "version": ninfer.__version__, "system": f"kernels {isas[-1]}"}

    def load(self, request: dict[str, Any]) -> OwnSession:
        try:
            return OwnSession(request)
        except (NInferError, OSError) as error:
            raise EngineError(str(error)) from error


class OwnSession:
    """A loaded model, planned as the engine would. Sequence `s` owns a fixed range of KV pages, and state slot `s` of a
    model that has recurrent state."""

    def __init__(self, request: dict[str, Any]) -> None:
        settings, sequences = request["settings"], request["sequences"]
        pages_each = -(-request["context"] // Model.page_tokens)
        config = EngineConfig(
            max_context=request["context"],
            kv_capacity=pages_each * sequences * Model.page_tokens,
            max_concurrency=sequences,
            threads=request["threads"],
            prefix_reuse=False,
            **settings,
        )
        self._artifact = Artifact.open(request["model"])
        self.plan = plan_engine(config, self._artifact, detect_hardware(), logit_rows=MAX_LOGIT_ROWS)
        self.model = load_model(self._artifact, self.plan.options)
        self._pages = [np.arange(s * pages_each, (s + 1) * pages_each, dtype=np.int32) for s in range(sequences)]
        self.facts = {
            "plan": self.plan.to_dict(),
            "weight_bytes_per_step": weight_bytes_per_step(self._artifact),
            "kv_bytes_per_token": self.model.memory["kv"] / (self.plan.num_pages * Model.page_tokens),
        }

    def step(self, rows: Sequence[Row], *, all_logits: bool) -> None:
        """Rows of one sequence must be neighbours; more rows than a chunk run as several steps."""
        for start in range(0, len(rows), self.plan.prefill_chunk):
            chunk = rows[start : start + self.plan.prefill_chunk]
            if all_logits:
                logit_rows = np.arange(len(chunk), dtype=np.int32)
            elif start + len(chunk) == len(rows):
                logit_rows = np.array([len(chunk) - 1], dtype=np.int32)
            else:
                logit_rows = np.empty(0, dtype=np.int32)
            self.model.forward(self._batch(chunk, logit_rows))

    def forget(self, start: int) -> bool:
        """Nothing to do: a later step overwrites the pages from its position on, and at 0 it reads no state."""
        return start == 0 or self.plan.state is None

    def close(self) -> None:
        self.model.close()
        self._artifact.close()

    def _batch(self, rows: Sequence[Row], logit_rows: np.ndarray) -> ForwardBatch:
        sequences = []
        first = 0
        for sequence, group in groupby(rows, key=itemgetter(2)):
            members = list(group)
            position = members[0][1]
            access = None if self.plan.state is None else StateAccess.in_place(sequence, position, len(members))
            sequences.append(SequenceRows(first, len(members), position, self._pages[sequence], access))
            first += len(members)
        return ForwardBatch(np.array([row[0] for row in rows], dtype=np.int32), tuple(sequences), logit_rows)


def weight_bytes_per_step(artifact: Artifact) -> int:
    """Stored bytes of all weights a step reads in full: everything but an embedding table that is not also the head."""
    looked_up = {"embed"} if "head" in artifact.tensors else set()
    return sum(entry.nbytes for name, entry in artifact.tensors.items() if name not in looked_up)


def generate(bench: Bench, ids: Sequence[int], max_new: int) -> Answer:
    """Greedy generation through the engine's own step loop.

    Gives the seconds of every decode step, and of each the seconds spent in kernels: the difference is scheduling,
    sampling, events and Python.
    """
    session = bench.session
    if not isinstance(session, OwnSession):
        raise EngineError("only our own session has an engine")
    bench.forget_prompt()
    engine = Engine(session.plan, session.model)
    stop = StopRules(model_end_tokens=False)
    engine.submit(GenerationRequest(tuple(ids), max_new=max_new, stop=stop))
    seconds: list[float] = []
    kernel_seconds: list[float] = []
    while engine.has_work:
        started = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - started)
        kernel_seconds.append(session.model.last_forward_ns / 1e9)
    first = len(seconds) - (max_new - 1)  # the steps before computed the prompt and the first token
    return {"seconds": seconds[first:], "kernel_seconds": kernel_seconds[first:]}


if __name__ == "__main__":
    serve(OwnEngine, {**TIMED, "generate": generate})
