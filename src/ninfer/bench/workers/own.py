"""A worker that runs our own engine room: model steps on the CPU backend, straight from a `.ninfer` artifact.

usage: python -m ninfer.bench.workers.own
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

import ninfer
from ninfer.artifact import Artifact
from ninfer.backends.cpu import available_isas
from ninfer.bench.workers.serving import EngineError, Row, serve
from ninfer.errors import NInferError
from ninfer.models import ForwardBatch, Model, RuntimeOptions, SequenceRows, load_model


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
    """A loaded model; sequence `s` owns a fixed range of KV pages, so that `forget` needs no work."""

    def __init__(self, request: dict[str, Any]) -> None:
        settings = request["settings"]
        pages_each = -(-request["context"] // Model.page_tokens)
        self._chunk: int = settings["chunk"]
        self._artifact = Artifact.open(request["model"])
        self._model = load_model(
            self._artifact,
            RuntimeOptions(
                numerics=settings["numerics"],
                kv_format=settings["kv"],
                num_pages=pages_each * request["sequences"],
                max_rows=self._chunk,
                max_logit_rows=min(self._chunk, 64),
                threads=request["threads"],
                isa=settings["isa"],
                weights_memory=settings["weights_memory"],
            ),
        )
        self._pages = [
            np.arange(s * pages_each, (s + 1) * pages_each, dtype=np.int32) for s in range(request["sequences"])
        ]

    def step(self, rows: Sequence[Row], *, all_logits: bool) -> None:
        """Rows of one sequence must be neighbours; more rows than a chunk run as several steps."""
        for start in range(0, len(rows), self._chunk):
            chunk = rows[start : start + self._chunk]
            if all_logits:
                logit_rows = np.arange(len(chunk), dtype=np.int32)
            elif start + len(chunk) == len(rows):
                logit_rows = np.array([len(chunk) - 1], dtype=np.int32)
            else:
                logit_rows = np.empty(0, dtype=np.int32)
            self._model.forward(self._batch(chunk, logit_rows))

    def forget(self, start: int) -> None:
        """Nothing to do: a later step overwrites the pages from its position on."""

    def close(self) -> None:
        self._model.close()
        self._artifact.close()

    def _batch(self, rows: Sequence[Row], logit_rows: np.ndarray) -> ForwardBatch:
        sequences = []
        first = 0
        for sequence, group in groupby(rows, key=itemgetter(2)):
            members = list(group)
            sequences.append(SequenceRows(first, len(members), members[0][1], self._pages[sequence]))
            first += len(members)
        return ForwardBatch(np.array([row[0] for row in rows], dtype=np.int32), tuple(sequences), logit_rows)


if __name__ == "__main__":
    serve(OwnEngine)
