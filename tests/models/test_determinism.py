"""The determinism law on the native backend: chunking, threads and company never change a bit of a row's logits.

What may change bits (numerics, KV format, instruction set) is fixed within each comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from make.model_runs import in_chunks, logits_of
from make.op_runs import CPU_ISAS
from make.tiny_llama import CONFIGS, random_weights, write_artifact
from ninfer.artifact import Artifact
from ninfer.models import ForwardBatch, Model, RuntimeOptions, SequenceRows, load_model
from ninfer.models.batch import PAGE_TOKENS
from ninfer.models.llama import LlamaConfig

LENGTH = 600
"""More than two attention segments of 256 positions, and not a multiple of anything."""


SINGLE_STEPS = [245, *[1] * 15, 240, *[1] * 20, 70, *[1] * 10]
"""Steps of one token across page and segment borders; a whole run of them is left to one thread."""


@dataclass(frozen=True)
class Stored:
    """A tiny model in a file, and how it is run."""

    path: Path
    config: LlamaConfig
    numerics: str
    kv_format: str

    @contextmanager
    def loaded(self, isa: str, threads: int = 1) -> Iterator[Model]:
        options = RuntimeOptions(
            isa=isa,
            threads=threads,
            numerics=self.numerics,
            kv_format=self.kv_format,
            num_pages=64,
            max_rows=LENGTH,
            max_logit_rows=LENGTH,
        )
        with Artifact.open(self.path) as artifact:
            model = load_model(artifact, options)
            try:
                yield model
            finally:
                model.close()


MODELS = [
    ("uneven", "q4g32m", "a8", "int8"),
    ("wide", "q8g32", "a8", "int8"),
    ("ragged", "q4g32", "a8", "bf16"),
    ("uneven", "q4g32m", "a8g32", "int8"),
    ("uneven", "q4g32m", "f32", "int8"),
    ("wide", "q4g32", "f32", "bf16"),
    ("ragged", "bf16", "f32", "bf16"),
]


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    name, weight_format, numerics, kv_format = request.param
    path = tmp_path_factory.mktemp("models") / f"{name}.ninfer"
    write_artifact(path, CONFIGS[name], random_weights(CONFIGS[name]), weight_format)
    return Stored(path, CONFIGS[name], numerics, kv_format)


def tokens(config: LlamaConfig, length: int, seed: int = 17) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, config.vocab_size, length).astype(np.int32)


@pytest.mark.parametrize("isa", CPU_ISAS)
def test_chunks_and_threads_change_no_bit(stored: Stored, isa: str) -> None:
    ids = tokens(stored.config, LENGTH)
    with stored.loaded(isa) as model:
        want = logits_of(model, ids, [LENGTH])
        single = logits_of(model, ids, in_chunks(LENGTH, 1))
    assert np.isfinite(want).all()
    np.testing.assert_array_equal(single, want)
    for threads in (1, 2):
        with stored.loaded(isa, threads) as model:
            for chunks in (SINGLE_STEPS, *(in_chunks(LENGTH, size) for size in (7, 64, 512, LENGTH))):
                got = logits_of(model, ids, chunks)
                np.testing.assert_array_equal(got, want, err_msg=f"chunks {chunks[:2]}..., {threads} threads")


def test_instruction_sets_agree_bit_by_bit(stored: Stored) -> None:
    """Stronger than the law asks: every target does the same operations in the same order."""
    ids = tokens(stored.config, 290)
    logits = []
    for isa in CPU_ISAS:
        with stored.loaded(isa, threads=2) as model:
            logits.append(logits_of(model, ids, [270, 1, 19]))
    for isa, got in zip(CPU_ISAS[1:], logits[1:], strict=True):
        np.testing.assert_array_equal(got, logits[0], err_msg=f"{isa} and {CPU_ISAS[0]}")


@pytest.mark.parametrize("isa", CPU_ISAS)
def test_company_changes_no_bit(stored: Stored, isa: str) -> None:
    """Sequences of unequal length that decode together, 1 to 16 at a time, against each alone."""
    count, steps = 16, 4
    lengths = [int(length) for length in np.random.default_rng(23).integers(1, 240, count)]
    ids = [tokens(stored.config, length + steps, seed=i) for i, length in enumerate(lengths)]
    with stored.loaded(isa) as model:
        want = [logits_of(model, x, [len(x)])[-steps:] for x in ids]
    pages = shuffled_pages([len(x) for x in ids], 64)
    with stored.loaded(isa, threads=2) as model:
        for i in range(count):
            model.forward(batch([(ids[i][: lengths[i]], 0, pages[i])]))
        for step, members in enumerate((1, 2, 11, count)):
            rows = [(ids[i][[lengths[i] + step]], lengths[i] + step, pages[i]) for i in range(count)]
            got = model.forward(batch(rows[:members])).copy()
            for i in range(members):
                np.testing.assert_array_equal(got[i], want[i][step], err_msg=f"{members} rows, sequence {i}")
            for row in rows[members:]:  # the others catch up alone
                model.forward(batch([row]))


@pytest.mark.parametrize("isa", CPU_ISAS)
def test_a_prefill_beside_decoding_rows_changes_no_bit(stored: Stored, isa: str) -> None:
    short, long = tokens(stored.config, 70, seed=1), tokens(stored.config, 330, seed=2)
    with stored.loaded(isa) as model:
        want_short, want_long = (logits_of(model, x, [len(x)]) for x in (short, long))
    pages = shuffled_pages([len(short), len(long)], 64)
    with stored.loaded(isa, threads=2) as model:
        model.forward(batch([(short[:67], 0, pages[0])]))
        done = 0
        for position, chunk in zip((67, 68, 69), (200, 1, 129), strict=True):
            both = [(short[[position]], position, pages[0]), (long[done : done + chunk], done, pages[1])]
            got = model.forward(batch(both))
            done += chunk
            np.testing.assert_array_equal(got[0], want_short[position])
            np.testing.assert_array_equal(got[1], want_long[done - 1])


@pytest.mark.parametrize("isa", CPU_ISAS)
def test_rewinding_is_as_if_it_never_happened(stored: Stored, isa: str) -> None:
    """Rejected tokens leave codes and scales behind; what comes after overwrites both."""
    ids = tokens(stored.config, 150)
    with stored.loaded(isa) as model:
        want = logits_of(model, ids, [150])[-1]
        pages = np.arange(3, dtype=np.int32)
        model.forward(batch([(ids[:100], 0, pages)]))
        model.forward(batch([(tokens(stored.config, 60, seed=99), 80, pages)]))
        got = model.forward(batch([(ids[80:], 80, pages)]))[0]
        np.testing.assert_array_equal(got, want)


def batch(rows: list[tuple[npt.NDArray[np.int32], int, npt.NDArray[np.int32]]]) -> ForwardBatch:
    """(ids, position, pages) of each sequence as a step that wants the logits of every sequence's last row."""
    sequences, start = [], 0
    for ids, position, pages in rows:
        sequences.append(SequenceRows(start, len(ids), position, pages))
        start += len(ids)
    last = np.array([s.start + s.count - 1 for s in sequences], np.int32)
    return ForwardBatch(np.concatenate([ids for ids, _, _ in rows]), tuple(sequences), last)


def shuffled_pages(lengths: list[int], num_pages: int) -> list[npt.NDArray[np.int32]]:
    """Pages of sequences of these lengths, in no order."""
    counts = [-(-length // PAGE_TOKENS) for length in lengths]
    ids = np.random.default_rng(3).permutation(num_pages).astype(np.int32)
    return np.split(ids[: sum(counts)], np.cumsum(counts)[:-1])
