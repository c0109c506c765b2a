"""From what the operator asked, the files and the machine to a plan. Nothing is allocated, and nothing stays open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, get_args

from ninfer import models
from ninfer.backends.cpu.weights_memory import obstacle_to_copy
from ninfer.backends.options import KVFormat, RuntimeOptions, WeightsMemory
from ninfer.cache import pages_for
from ninfer.engine.config import MAX_THREADS, EngineConfig
from ninfer.engine.drafting import MemoryPlanner, draft_memory, open_draft, plan_speculation, with_draft
from ninfer.engine.hardware import Hardware
from ninfer.engine.plan import Choice, EnginePlan, MemoryItem, SpeculationPlan, StatePlan
from ninfer.engine.prefix_planning import plan_prefix, plan_snapshots
from ninfer.engine.state_planning import plan_state
from ninfer.errors import CapacityError, ConfigError
from ninfer.models.batch import PAGE_TOKENS
from ninfer.models.drafts import DraftSource
from ninfer.models.registry import read_config
from ninfer.models.state import StateSizes, state_sizes

DEFAULT_CONTEXT = 2048

MARGIN_BYTES = 256 * 2**20
"""Left free by an automatic KV capacity for what allocates later: caches, other programs, fragmentation."""

RUNTIME_ESTIMATE_BYTES = 48 * 2**20
"""Interpreter, NumPy and our libraries: 32 MiB resident before a file is opened, and what they allocate at work
(CPython 3.11, NumPy 2.4, November 2026)."""

TOKENIZER_ESTIMATE_FACTOR = 16
"""Memory of a loaded tokenizer per byte of its `tokenizer.json`: 23 MiB for SmolLM2's 1.3 (November 2026)."""

TOKENIZER_RESOURCE = "frontend/tokenizer.json"


class PlannableArtifact(Protocol):
    """What planning reads of an artifact."""

    @property
    def path(self) -> object: ...
    @property
    def architecture(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def digest(self) -> str: ...
    @property
    def objects(self) -> Mapping[str, Any]: ...


def plan_engine(
    config: EngineConfig,
    artifact: PlannableArtifact,
    hardware: Hardware,
    *,
    logit_rows: int = 0,
    besides: Mapping[str, int] | None = None,
    plan_memory: MemoryPlanner = models.plan_memory,
) -> EnginePlan:
    """Decide everything that is still open and count every byte.

    logit_rows: rows of one step whose logits can be had, if an engine needs less; for measurements. besides: bytes by
    name that whoever runs the engine may take, such as a server's caches. `plan_memory(artifact, options)` gives the
    exact bytes of the model's allocations by name; tests bring their own.

    A plan needs all its memory to be available, mapped weights included, because every step reads all of them. Only
    with `weights_memory` set to mapped it may be short of those: it says by how much.
    ConfigError for settings that contradict the model, and for drafts that it does not have; CapacityError, with the
    largest value that fits, when the plan needs more than `hardware.available_bytes`; the errors of
    `models.read_config` and `plan_memory`.
    """
    with open_draft(config, artifact) as source:
        return _plan(
            config,
            artifact,
            hardware,
            source,
            logit_rows=logit_rows,
            besides=besides or {},
            plan_memory=with_draft(plan_memory, source, config.max_concurrency),
        )


def _plan(
    config: EngineConfig,
    artifact: PlannableArtifact,
    hardware: Hardware,
    source: DraftSource | None,
    *,
    logit_rows: int,
    besides: Mapping[str, int],
    plan_memory: MemoryPlanner,
) -> EnginePlan:
    facts = read_config(artifact.architecture, artifact.config, file=artifact.path)
    max_context, context_choice = _max_context(config, facts.max_position)
    threads, threads_choice = _threads(config, hardware)
    isa, isa_choice = _isa(config, hardware)
    speculation, draft_choice = plan_speculation(config, source)
    sizes = state_sizes(facts)
    state, state_choice = _state(sizes, speculation)
    mapped = _Sizing(config, artifact, hardware, plan_memory, threads, isa, "mapped", state, speculation, logit_rows)
    mapped, snapshot_choice = _with_snapshots(replace(mapped, besides=besides), sizes, max_context)
    state = mapped.state
    prefix, prefix_choice = plan_prefix(config, max_context, None if state is None else state.max_snapshots)
    weights_memory, weights_choice = _weights_memory(mapped, max_context)
    sizing = replace(mapped, weights_memory=weights_memory)
    num_pages, pages_choice = _num_pages(sizing, max_context, facts.max_position)
    if weights_choice is None:
        weights_choice = _shortage(sizing, max_context, num_pages)
    prefill_chunk, chunk_choice = _prefill_chunk(config, max_context)
    choices = (
        context_choice,
        pages_choice,
        chunk_choice,
        threads_choice,
        weights_choice,
        state_choice,
        draft_choice,
        snapshot_choice,
        prefix_choice,
        isa_choice,
    )
    return EnginePlan(
        config=config,
        architecture=artifact.architecture,
        artifact_digest=artifact.digest,
        vocab_size=facts.vocab_size,
        end_token_ids=facts.stop_token_ids,
        max_context=max_context,
        num_pages=num_pages,
        prefill_chunk=prefill_chunk,
        mixed_chunk=config.mixed_chunk if config.mixed_chunk == "auto" else min(config.mixed_chunk, prefill_chunk),
        max_concurrency=config.max_concurrency,
        options=sizing.options(max_context, num_pages),
        memory=sizing.memory(max_context, num_pages),
        choices=tuple(choice for choice in choices if choice is not None),
        state=state,
        speculation=speculation,
        prefix=prefix,
    )


def largest_contexts(
    config: EngineConfig,
    artifact: PlannableArtifact,
    hardware: Hardware,
    *,
    plan_memory: MemoryPlanner = models.plan_memory,
) -> dict[str, int | None]:
    """By KV format the largest `max_context` that `plan_engine` accepts, all other settings as they are.

    With one full context of KV memory, and never more than the model was trained for. None if nothing fits.
    """
    facts = read_config(artifact.architecture, artifact.config, file=artifact.path)
    threads, isa = _threads(config, hardware)[0], _isa(config, hardware)[0]
    sizes = state_sizes(facts)
    found: dict[str, int | None] = {}
    with open_draft(config, artifact) as source:
        speculation, _ = plan_speculation(config, source)
        state, _ = _state(sizes, speculation)
        planner = with_draft(plan_memory, source, config.max_concurrency)
        for kv_dtype in get_args(KVFormat):
            one = replace(config, kv_dtype=kv_dtype, max_context="auto", kv_capacity="auto")
            sizing = _Sizing(one, artifact, hardware, planner, threads, isa, "mapped", state, speculation)
            if config.snapshot_mib != "auto":
                sizing, _ = _with_snapshots(sizing, sizes, 2)
            found[kv_dtype] = sizing.largest_context(facts.max_position)
    return found


@dataclass(frozen=True)
class _Sizing:
    """Runtime options and memory as functions of the two numbers that are searched for: context and pages."""

    config: EngineConfig
    artifact: PlannableArtifact
    hardware: Hardware
    plan_memory: MemoryPlanner
    threads: int
    isa: str
    weights_memory: WeightsMemory
    state: StatePlan | None
    speculation: SpeculationPlan | None = None
    logit_rows: int = 0
    besides: Mapping[str, int] = field(default_factory=dict)

    def options(self, max_context: int, num_pages: int) -> RuntimeOptions:
        config, state, lanes = self.config, self.state, self.config.max_concurrency
        chunk = _prefill_chunk(config, max_context)[0]
        verify_rows = _verify_rows(self.speculation)
        return RuntimeOptions(
            numerics=config.numerics,
            kv_format=config.kv_dtype,
            num_pages=num_pages,
            # A prefill chunk, and the rows of every sequence that decodes meanwhile.
            max_rows=max(chunk, verify_rows) + (lanes - 1) * verify_rows,
            max_logit_rows=max(lanes * verify_rows, self.logit_rows),
            num_state_slots=0 if state is None else state.num_slots(lanes),
            num_journals=0 if state is None else state.num_journals(lanes),
            journal_rows=0 if state is None else state.journal_rows,
            threads=self.threads,
            isa=self.isa,
            weights_memory=self.weights_memory,
        )

    def memory(self, max_context: int, num_pages: int) -> tuple[MemoryItem, ...]:
        """Every allocation: the model's, then ours, then what can only be estimated."""
        options = self.options(max_context, num_pages)
        items = [MemoryItem(name, size, False) for name, size in self.plan_memory(self.artifact, options).items()]
        per_sequence_bytes = 4 * (pages_for(max_context) + max_context)
        step_bytes = 4 * (options.max_rows + options.max_logit_rows)
        ours = self.config.max_concurrency * per_sequence_bytes + step_bytes
        items.append(MemoryItem("tokens and page tables", ours, False))
        items += [MemoryItem(name, size, False) for name, size in self.besides.items()]
        items += draft_memory(self.speculation, max_context=max_context, max_concurrency=self.config.max_concurrency)
        tokenizer = self.artifact.objects.get(TOKENIZER_RESOURCE)
        if tokenizer is not None:
            items.append(MemoryItem("tokenizer", TOKENIZER_ESTIMATE_FACTOR * tokenizer.nbytes, True))
        items.append(MemoryItem("interpreter and libraries", RUNTIME_ESTIMATE_BYTES, True))
        return tuple(items)

    def needed(self, max_context: int, num_pages: int) -> int:
        """Bytes that must be available: all, but for weights that were asked to stay mapped and can be read again."""
        items = self.memory(max_context, num_pages)
        optional = "weights" if self.config.weights_memory == "mapped" else None
        return sum(item.num_bytes for item in items if item.name != optional)

    def fits(self, max_context: int, num_pages: int, margin: int = 0) -> bool:
        return self.needed(max_context, num_pages) + margin <= self.hardware.available_bytes

    def largest_context(self, most: int) -> int | None:
        """The largest context up to `most` that fits with the pages of one; None if none does."""

        def fits(context: int) -> bool:
            return self.fits(context, pages_for(context))

        shortest = 2
        return _largest(fits, shortest, most) if most >= shortest and fits(shortest) else None


def _max_context(config: EngineConfig, trained: int) -> tuple[int, Choice | None]:
    if config.max_context != "auto":
        if config.max_context > trained:
            raise ConfigError(
                f"max_context {config.max_context} is more than the {trained} tokens this model was trained for"
            )
        return config.max_context, None
    value = min(DEFAULT_CONTEXT, trained)
    reason = "the default" if value == DEFAULT_CONTEXT else f"the model was trained for {trained} tokens"
    if config.kv_capacity != "auto" and config.kv_capacity < value:
        value, reason = config.kv_capacity, "kv_capacity holds no more"
    return value, Choice("max_context", value, reason)


def _num_pages(sizing: _Sizing, max_context: int, trained: int) -> tuple[int, Choice | None]:
    """Pages of KV memory that fit, or CapacityError."""
    least = pages_for(max_context)
    capacity = sizing.config.kv_capacity
    if capacity != "auto":
        num_pages = pages_for(capacity)
        if sizing.fits(max_context, num_pages):
            return num_pages, None
        if sizing.fits(max_context, least):
            largest = _largest(lambda pages: sizing.fits(max_context, pages), least, num_pages)
            raise _capacity_error(sizing, max_context, capacity, largest * PAGE_TOKENS)
    elif sizing.fits(max_context, least):
        lanes = sizing.config.max_concurrency
        num_pages, reason = least * lanes, f"{lanes} x max_context"
        if not sizing.fits(max_context, num_pages, MARGIN_BYTES):
            # One context was shown to fit, so it is the floor even where it leaves no margin.
            num_pages = _largest(lambda p: p == least or sizing.fits(max_context, p, MARGIN_BYTES), least, num_pages)
            reason = f"what fits in the memory that is available, of {lanes} x max_context"
        return num_pages, Choice("kv_capacity", num_pages * PAGE_TOKENS, reason)

    raise _context_error(sizing, max_context, trained)


def _largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest value in `[low, high]` that fits; `low` does, and fitting never comes back once lost."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _capacity_error(sizing: _Sizing, max_context: int, capacity: int, largest: int) -> CapacityError:
    needed, available = sizing.needed(max_context, pages_for(capacity)), sizing.hardware.available_bytes
    return CapacityError(
        f"kv_capacity {capacity} needs {needed} bytes of memory and {available} are available; the largest kv_capacity "
        f"that fits is {largest}",
        field="kv_capacity",
        largest=largest,
        needed=needed,
    )


def _context_error(sizing: _Sizing, max_context: int, trained: int) -> CapacityError:
    """Names the largest context up to `trained` by KV format, and what could be given up if none fits."""
    needed, available = sizing.needed(max_context, pages_for(max_context)), sizing.hardware.available_bytes
    largest: dict[str, int | None] = {}
    for kv_dtype in get_args(KVFormat):
        other = replace(sizing, config=replace(sizing.config, kv_dtype=kv_dtype))
        largest[kv_dtype] = other.largest_context(trained)
    words = [f"{value or 'none'} with {kv_dtype} KV" for kv_dtype, value in largest.items()]
    advice = f"the largest max_context that fits is {' and '.join(words)}"
    if not any(largest.values()):
        advice = "no value fits"
        mapped = replace(sizing, config=replace(sizing.config, weights_memory="mapped"))
        if sizing.config.weights_memory == "auto" and mapped.fits(max_context, pages_for(max_context)):
            short = needed - available
            advice += f"; weights_memory=mapped would run, but read at least {short} bytes from the file in every step"
    return CapacityError(
        f"max_context {max_context} needs {needed} bytes of memory and {available} are available; {advice}",
        field="max_context",
        largest=largest[sizing.config.kv_dtype],
        needed=needed,
    )


def _prefill_chunk(config: EngineConfig, max_context: int) -> tuple[int, Choice | None]:
    if config.prefill_chunk <= max_context:
        return config.prefill_chunk, None
    return max_context, Choice("prefill_chunk", max_context, "a chunk is never longer than the context")


def _threads(config: EngineConfig, hardware: Hardware) -> tuple[int, Choice | None]:
    if config.threads != "auto":
        return config.threads, None
    value = min(hardware.cpus, MAX_THREADS)
    return value, Choice("threads", value, f"this process may use {hardware.cpus} CPUs")


def _isa(config: EngineConfig, hardware: Hardware) -> tuple[str, Choice | None]:
    known = ", ".join(hardware.isas)
    if config.isa == "auto":
        return hardware.isas[-1], Choice("isa", hardware.isas[-1], f"the best of what this CPU has: {known}")
    if config.isa not in hardware.isas:
        raise ConfigError(f"isa is {config.isa!r}; this CPU has {known}")
    return config.isa, None


def _weights_memory(sizing: _Sizing, max_context: int) -> tuple[WeightsMemory, Choice | None]:
    if sizing.config.weights_memory != "auto":
        return sizing.config.weights_memory, None
    num_pages = pages_for(max_context)
    obstacle = obstacle_to_copy(
        sizing.plan_memory(sizing.artifact, sizing.options(max_context, num_pages))["weights"],
        huge_pages=sizing.hardware.huge_pages,
        available_bytes=sizing.hardware.available_bytes,
    )
    if obstacle:
        return "mapped", Choice("weights_memory", "mapped", f"{obstacle}; counted as if the whole file stays in memory")
    if not sizing.fits(max_context, num_pages, MARGIN_BYTES):
        reason = "a copy of the weights leaves no margin beside the rest; counted as if the whole file stays in memory"
        return "mapped", Choice("weights_memory", "mapped", reason)
    return "huge", Choice("weights_memory", "huge", "huge pages are read faster, and a copy of the weights fits")


def _shortage(sizing: _Sizing, max_context: int, num_pages: int) -> Choice | None:
    """What a plan has to say whose mapped weights do not fit beside the rest."""
    items = sizing.memory(max_context, num_pages)
    short = sum(item.num_bytes for item in items) - sizing.hardware.available_bytes
    if short <= 0:
        return None
    reason = (
        f"beside the rest, {short} bytes of the weights find no memory; every step reads at least those from the file"
    )
    return Choice("weights_memory", sizing.weights_memory, reason)


def _state(sizes: StateSizes | None, speculation: SpeculationPlan | None) -> tuple[StatePlan | None, Choice | None]:
    if sizes is None:
        return None, None
    return plan_state(sizes, verify_rows=_verify_rows(speculation))


def _verify_rows(speculation: SpeculationPlan | None) -> int:
    """`EnginePlan.verify_rows`."""
    return 1 if speculation is None else 1 + speculation.window


def _with_snapshots(sizing: _Sizing, sizes: StateSizes | None, max_context: int) -> tuple[_Sizing, Choice | None]:
    """The same with room for snapshots, beside one context at least if their number is automatic."""
    state = sizing.state
    if state is None or sizes is None:
        return sizing, None

    def with_count(count: int) -> _Sizing:
        return replace(sizing, state=replace(state, max_snapshots=count))

    def fits(count: int) -> bool:
        return with_count(count).fits(max_context, pages_for(max_context), MARGIN_BYTES)

    count, choice = plan_snapshots(sizing.config, sizes.slot_bytes, sizing.hardware.available_bytes, fits)
    return with_count(count), choice
