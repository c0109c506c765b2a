"""Models beside a reference on the same text: perplexity, KL divergence, top-1 agreement, by position.

One model is loaded at a time. The reference's logits of as many windows as fit in LOGITS_BYTES wait in memory while
every variant runs over the same windows, so each window is computed once per model and memory does not grow with the
text. Nothing is printed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.artifact import Artifact
from ninfer.backends.options import KVFormat, Numerics, RuntimeOptions
from ninfer.bench.machine import describe_machine, package_versions
from ninfer.bench.measurements import Measurement, Run, Scalar
from ninfer.bench.quality_text import BUILTIN_VERSION, Text, Window, cut_windows, shared_tokenizer
from ninfer.bench.statistics import DEFAULT_CONFIDENCE, DEFAULT_RESAMPLES, Estimate, bootstrap_mean
from ninfer.engine import EngineConfig, EnginePlan, Hardware, detect_hardware, plan_engine
from ninfer.errors import BackendError, CapacityError, ConfigError, InvariantError
from ninfer.metrics.quality import Scores, compare_logits, perplexity
from ninfer.models import ForwardBatch, Model, SequenceRows, StateAccess, load_model

LOGITS_BYTES = 1 << 30
"""Memory for logits of the reference that wait for the variants; one window is always kept, however large."""

CHUNK_ROWS = 128
"""Positions of one step, all with logits: enough for full matrix speed, 25 MB of logits for a vocabulary of 49,152."""

FIRST_BUCKET = 64

LOSS, REFERENCE_LOSS, DIVERGENCE, AGREEMENT, SHIFT = (
    "loss",
    "reference loss",
    "KL divergence",
    "top-1 agreement",
    "largest shift",
)


@dataclass(frozen=True)
class Variant:
    """A `.ninfer` file and how it is run. `name`: what the user called the file."""

    name: str
    path: Path
    numerics: Numerics
    kv_dtype: KVFormat

    @property
    def label(self) -> str:
        return f"{self.name}:numerics={self.numerics},kv-dtype={self.kv_dtype}"


@dataclass(frozen=True)
class Comparison:
    """One variant beside the reference. Scores are `[windows, context]`; `facts` are those of its file and plan."""

    variant: Variant
    facts: Mapping[str, Any]
    scores: Scores
    texts: tuple[str, ...]
    """The text of each window."""

    def mean(self, values: npt.NDArray[Any], bucket: slice | None = None, text: str | None = None) -> Estimate:
        """Mean over positions (of a bucket, of one text's windows), with windows as the samples of the bootstrap."""
        chosen = [index for index, name in enumerate(self.texts) if text in (None, name)]
        return bootstrap_mean(values[chosen][:, bucket or slice(None)].mean(axis=1, dtype=np.float64))

    @property
    def perplexity(self) -> Estimate:
        return self.mean(self.scores.loss).map(perplexity)

    @property
    def perplexity_ratio(self) -> Estimate:
        """Perplexity over the reference's, paired window by window."""
        return self.mean(-self.scores.shift).map(perplexity)

    @property
    def divergence_p99(self) -> float:
        """99 % of all positions diverge by no more."""
        return float(np.quantile(self.scores.divergence, 0.99))

    @property
    def largest_shift(self) -> float:
        """Of all positions, in absolute value."""
        return float(np.abs(self.scores.shift).max())


@dataclass(frozen=True)
class QualityResult:
    """The records of a run and the comparisons made from them."""

    run: Run
    reference: Variant
    comparisons: tuple[Comparison, ...]

    @property
    def perplexity(self) -> Estimate:
        """Of the reference."""
        comparison = self.comparisons[0]
        return comparison.mean(comparison.scores.reference_loss).map(perplexity)

    @property
    def buckets(self) -> list[slice]:
        return position_buckets(self.run.conditions["context"])

    def to_json(self) -> dict[str, Any]:
        return {
            **self.run.to_json(),
            "reference_perplexity": asdict(self.perplexity),
            "comparisons": [
                {
                    "variant": c.variant.label,
                    "perplexity": asdict(c.perplexity),
                    "perplexity_ratio": asdict(c.perplexity_ratio),
                    "divergence": asdict(c.mean(c.scores.divergence)),
                    "divergence_p99": c.divergence_p99,
                    "agreement": asdict(c.mean(c.scores.agrees)),
                    "largest_shift": c.largest_shift,
                    "by_position": [
                        {
                            "positions": bucket_name(bucket),
                            "divergence": asdict(c.mean(c.scores.divergence, bucket)),
                            "agreement": asdict(c.mean(c.scores.agrees, bucket)),
                        }
                        for bucket in self.buckets
                    ],
                }
                for c in self.comparisons
            ],
        }


def position_buckets(context: int) -> list[slice]:
    """Ranges of absolute positions: 0-63, then each as long as all before it, the last one cut at `context`."""
    edges = [0, FIRST_BUCKET]
    while edges[-1] < context:
        edges.append(2 * edges[-1])
    return [slice(low, min(high, context)) for low, high in pairwise(edges)]


def bucket_name(bucket: slice) -> str:
    """`64-127`."""
    return f"{bucket.start}-{bucket.stop - 1}"


def measure(
    variants: Sequence[Variant],
    reference: Variant,
    texts: Sequence[Text],
    *,
    context: int = 512,
    num_windows: int | None = None,
    threads: int,
    logits_bytes: int = LOGITS_BYTES,
    progress: Callable[[str], None] = lambda _: None,
) -> QualityResult:
    """Run `reference` and every variant over windows of the texts; windows begin with an empty KV cache.

    ConfigError for texts that are too short and for variants of another vocabulary, CapacityError for a window that
    does not fit in memory, BackendError for logits that are not finite; the errors of planning and loading.
    """
    if not variants or not texts:
        raise ConfigError("a comparison needs at least one variant and one text")
    if len({text.name for text in texts}) < len(texts):
        raise ConfigError(f"a text is named twice: {', '.join(text.name for text in texts)}")
    with ExitStack() as stack:
        sides = [reference, *variants]
        files = {side.path: stack.enter_context(Artifact.open(side.path)) for side in sides}
        tokenizer = shared_tokenizer(files[reference.path], list(files.values()))
        windows = cut_windows(texts, tokenizer, context, num_windows)
        hardware = _without_logits(detect_hardware(), files[reference.path], context, len(windows), logits_bytes)
        plans = [_plan(side, files[side.path], hardware, context, threads) for side in sides]
        group_size = max(1, logits_bytes // _window_bytes(context, plans[0].vocab_size))
        scores: list[list[Scores]] = [[] for _ in variants]
        kept: list[npt.NDArray[np.float32]] = []
        for first in range(0, len(windows), group_size):
            group = windows[first : first + group_size]
            span = f"windows {first + 1} to {first + len(group)} of {len(windows)}"
            progress(f"{span}: {reference.label}, the reference")
            kept.clear()
            with _loaded(files[reference.path], plans[0].options) as model:
                kept.extend(_all_logits(model, window) for window in group)
            for index, variant in enumerate(variants):
                progress(f"{span}: {variant.label}")
                with _loaded(files[variant.path], plans[1 + index].options) as model:
                    scores[index] += [_score(variant, model, *pair) for pair in zip(group, kept, strict=True)]
        facts = [_facts(side, files[side.path], plan) for side, plan in zip(sides, plans, strict=True)]
    comparisons = tuple(
        Comparison(variant, fact, _stacked(parts), tuple(window.text for window in windows))
        for variant, fact, parts in zip(variants, facts[1:], scores, strict=True)
    )
    conditions = _conditions(texts, windows, context, facts)
    measurements = tuple(m for c in comparisons for m in _measurements(c, context))
    run = Run("quality", describe_machine(), package_versions(), measurements, conditions=conditions)
    return QualityResult(run, reference, comparisons)


def _window_bytes(context: int, vocab_size: int) -> int:
    return 4 * context * vocab_size


def _without_logits(
    hardware: Hardware, artifact: Artifact, context: int, num_windows: int, logits_bytes: int
) -> Hardware:
    """The machine without the memory that waiting logits take: what is left for a model."""
    position_bytes = _window_bytes(1, int(artifact.config["vocab_size"]))
    needed = min(num_windows * context * position_bytes, max(context * position_bytes, logits_bytes))
    if needed >= hardware.available_bytes:
        largest = hardware.available_bytes // position_bytes
        raise CapacityError(
            f"a context of {context} keeps {needed} bytes of the reference's logits and {hardware.available_bytes} are "
            f"available; a context below {largest} leaves room for a model",
            field="context",
            largest=largest,
            needed=needed,
        )
    return replace(hardware, available_bytes=hardware.available_bytes - needed)


def _plan(variant: Variant, artifact: Artifact, hardware: Hardware, context: int, threads: int) -> EnginePlan:
    """The plan of one sequence, with logits of every row of a step."""
    rows = min(CHUNK_ROWS, context)
    config = EngineConfig(
        max_context=context,
        kv_capacity=context,
        kv_dtype=variant.kv_dtype,
        numerics=variant.numerics,
        prefill_chunk=rows,
        threads=threads,
        prefix_reuse=False,
    )
    return plan_engine(config, artifact, hardware, logit_rows=rows)


@contextmanager
def _loaded(artifact: Artifact, options: RuntimeOptions) -> Iterator[Model]:
    model = load_model(artifact, options)
    try:
        yield model
    finally:
        model.close()


def _steps(model: Model, window: Window) -> Iterator[tuple[slice, npt.NDArray[np.float32]]]:
    """(positions, their logits `[n, V]`) of a window, step by step; the logits are valid until the next step."""
    pages = np.arange(model.options.num_pages, dtype=np.int32)
    for start in range(0, len(window.inputs), model.options.max_rows):
        ids = window.inputs[start : start + model.options.max_rows]
        access = StateAccess.in_place(0, start, len(ids)) if model.options.num_state_slots else None
        rows = SequenceRows(0, len(ids), start, pages, access)
        logits = model.forward(ForwardBatch(ids, (rows,), np.arange(len(ids), dtype=np.int32)))
        if not np.isfinite(logits).all():
            raise BackendError(f"the model gave logits that are not finite, {start} tokens into a window")
        yield slice(start, start + len(ids)), logits


def _all_logits(model: Model, window: Window) -> npt.NDArray[np.float32]:
    """Logits `[context, V]` of one window, to keep."""
    kept: npt.NDArray[np.float32] | None = None
    for rows, logits in _steps(model, window):
        if kept is None:
            kept = np.empty((len(window.inputs), logits.shape[1]), np.float32)
        kept[rows] = logits
    if kept is None:
        raise InvariantError("a window has no positions")
    return kept


def _score(variant: Variant, model: Model, window: Window, reference: npt.NDArray[np.float32]) -> Scores:
    """Scores `[context]` of one window."""
    parts = []
    for rows, logits in _steps(model, window):
        if logits.shape[1] != reference.shape[1]:
            raise ConfigError(
                f"{variant.label} predicts {logits.shape[1]} token ids and the reference {reference.shape[1]}: "
                "their distributions cannot be compared"
            )
        parts.append(compare_logits(reference[rows], logits, window.targets[rows]))
    return Scores(*(np.concatenate(values) for values in zip(*map(_values, parts), strict=True)))


def _stacked(windows: Sequence[Scores]) -> Scores:
    """Scores `[windows, context]`."""
    return Scores(*(np.stack(values) for values in zip(*map(_values, windows), strict=True)))


def _values(scores: Scores) -> tuple[npt.NDArray[Any], ...]:
    return scores.loss, scores.reference_loss, scores.divergence, scores.agrees


def _facts(variant: Variant, artifact: Artifact, plan: EnginePlan) -> dict[str, Any]:
    return {
        "variant": variant.label,
        "numerics": variant.numerics,
        "kv_dtype": variant.kv_dtype,
        "model": str(variant.path),
        "artifact_digest": artifact.digest,
        "file_bytes": artifact.file_bytes,
        "provenance": artifact.provenance,
        "plan": plan.to_dict(),
    }


def _conditions(
    texts: Sequence[Text], windows: Sequence[Window], context: int, facts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    return {
        "context": context,
        "texts": [{"name": text.name, "digest": text.digest} for text in texts],
        "builtin_version": BUILTIN_VERSION,
        "windows": [{"text": window.text, "first_token": window.start} for window in windows],
        "bootstrap": {"resamples": DEFAULT_RESAMPLES, "confidence": DEFAULT_CONFIDENCE, "seed": 0},
        "reference": dict(facts[0]),
        "variants": [dict(fact) for fact in facts[1:]],
    }


def _measurements(comparison: Comparison, context: int) -> Iterator[Measurement]:
    """Means per window, by bucket: what every estimate was made from, except quantile and largest value."""
    scores = comparison.scores
    for bucket in (slice(0, context), *position_buckets(context)):
        inputs: dict[str, Scalar] = {"variant": comparison.variant.label, "positions": bucket_name(bucket)}
        for name, unit, values in (
            (LOSS, "nat", scores.loss),
            (REFERENCE_LOSS, "nat", scores.reference_loss),
            (DIVERGENCE, "nat", scores.divergence),
            (AGREEMENT, "1", scores.agrees),
        ):
            means = values[:, bucket].mean(axis=1, dtype=np.float64)
            yield Measurement(name, unit, tuple(means.tolist()), inputs=inputs)
        largest = np.abs(scores.shift[:, bucket]).max(axis=1)
        yield Measurement(SHIFT, "nat", tuple(largest.tolist()), inputs=inputs)
