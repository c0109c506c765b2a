"""Drafts by kind: which files one is made of, the checks that they belong to their target, loading and its cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ninfer.artifact import Artifact
from ninfer.backends.base import Beside, Matrix, weight_names
from ninfer.backends.options import RuntimeOptions
from ninfer.errors import ArtifactError, ConfigError, UnsupportedError
from ninfer.models.companion import (
    COMPANIONS,
    SHORTLIST_HEAD,
    SHORTLIST_IDS,
    DraftHead,
    DraftHeadConfig,
    DraftTarget,
)
from ninfer.models.dflash import PREDECESSOR, SUCCESSOR, DFlashConfig
from ninfer.models.draft_model import DraftModel, DraftPass, DraftWeights, RowTable, SelectorTables
from ninfer.models.loading import Model, backend_functions
from ninfer.models.mtp import MTPConfig, MTPModule
from ninfer.models.qwen3_5 import Qwen35Config
from ninfer.models.registry import ModelConfig, read_config
from ninfer.models.weights import ArtifactWeights, check_tensors
from ninfer.ops.graph import Feature, Graph

CompanionConfig = MTPConfig | DFlashConfig | DraftHeadConfig

_READERS = (MTPConfig.read, DFlashConfig.read, DraftHeadConfig.read)
_KINDS: Mapping[str, Callable[..., CompanionConfig]] = dict(zip(COMPANIONS, _READERS, strict=True))


def read_companion(companion: Artifact) -> CompanionConfig:
    """The configuration of a companion whose tensors are those that it asks for.

    UnsupportedError for a file that is no draft companion, ArtifactError for a wrong one.
    """
    if companion.architecture not in _KINDS:
        raise UnsupportedError(
            f"{companion.path} has architecture {companion.architecture!r}; a draft has one of {', '.join(COMPANIONS)}"
        )
    config = _KINDS[companion.architecture](companion.config, file=companion.path)
    check_tensors(companion, config)
    return config


def target_of(target: Artifact) -> DraftTarget:
    """How a companion names this model."""
    config = read_config(target.architecture, target.config, file=target.path)
    return DraftTarget(target.weights_digest, config.vocab_size, config.hidden_size, config.num_layers)


def attach(companion: Artifact, target: Artifact) -> CompanionConfig:
    """The configuration of a companion of `target`; ConfigError that names both files if it is another model's."""
    config = read_companion(companion)
    config.target.check(target_of(target), draft=companion.path, target=target.path)
    return config


@dataclass(frozen=True)
class DraftSource:
    """A draft that is ready to be loaded or planned.

    module: what runs. features: what its target must be loaded with. files: by weight the file that has it, for all
    weights that are not the target's. shortlist: rows of its head, None for the target's whole head.
    """

    target: Artifact
    target_config: ModelConfig
    module: MTPModule | DFlashConfig
    features: tuple[Feature, ...]
    files: Mapping[str, Artifact]
    shortlist: int | None

    @property
    def digest(self) -> str:
        """Of the file that has the module."""
        return next(iter(self.files.values())).digest

    @property
    def head(self) -> DraftHead:
        config = self.target_config
        if self.shortlist is not None:
            return DraftHead(SHORTLIST_HEAD, self.shortlist, self.shortlist)
        return DraftHead(config.head_name, config.vocab_size, config.num_decodable)


def find_mtp(target: Artifact, draft: Artifact | None, *, shortlist: bool) -> DraftSource:
    """MTP drafts for a model: of the attached file, else of its own `mtp` tensors.

    shortlist: whether they are to be chosen from the attached file's shortlist. ConfigError if something is missing or
    belongs to another model, ArtifactError for a wrong file.
    """
    config = read_config(target.architecture, target.config, file=target.path)
    attached = None if draft is None else attach(draft, target)
    files: dict[str, Artifact] = {}
    if isinstance(attached, MTPConfig) and draft is not None:
        module, file = attached.module, draft
    else:
        _check_kind(attached, draft, "mtp", (DraftHeadConfig,))
        own = config.find_mtp() if isinstance(config, Qwen35Config) else None
        if own is None:
            raise ConfigError(f"spec mtp: {target.path} has no MTP module of its own; attach one with draft")
        module, file = own, target
    files |= dict.fromkeys(module.tensor_shapes(), file)
    size = _shortlist(attached, draft, files, wanted=shortlist)
    return DraftSource(target, config, module, ("final",), files, size)


def find_dflash(target: Artifact, draft: Artifact | None, *, shortlist: bool) -> DraftSource:
    """Block drafts for a model, of the attached file; parameters and errors as `find_mtp`."""
    config = read_config(target.architecture, target.config, file=target.path)
    if draft is None:
        raise ConfigError(f"spec dflash2: no draft is attached to {target.path}; attach one with draft")
    attached = attach(draft, target)
    if not isinstance(attached, DFlashConfig):
        raise ConfigError(f"spec dflash2: the draft {draft.path} is one of architecture {draft.architecture!r}")
    own = [name for name in attached.tensor_shapes() if not name.startswith("shortlist.")]
    files = dict.fromkeys(own, draft)
    size = _shortlist(attached, draft, files, wanted=shortlist)
    return DraftSource(target, config, attached, attached.features, files, size)


def _check_kind(
    attached: CompanionConfig | None, draft: Artifact | None, spec: str, kinds: tuple[type[CompanionConfig], ...]
) -> None:
    if attached is not None and draft is not None and not isinstance(attached, kinds):
        raise ConfigError(f"spec {spec}: the draft {draft.path} is one of architecture {draft.architecture!r}")


def _shortlist(
    attached: CompanionConfig | None, draft: Artifact | None, files: dict[str, Artifact], *, wanted: bool
) -> int | None:
    """Rows of the shortlist if one is wanted; adds its weights to `files`."""
    if not wanted:
        return None
    if attached is None or draft is None or attached.shortlist_size is None:
        where = "no draft is attached" if draft is None else f"the draft {draft.path} has none"
        raise ConfigError(f"lm_head_draft needs a shortlist, and {where}; make one with `ninfer make-draft-head`")
    files |= {SHORTLIST_HEAD: draft, SHORTLIST_IDS: draft}
    return attached.shortlist_size


def load_draft(source: DraftSource, target: Model, lanes: int) -> DraftModel:
    """Load a draft beside its loaded target, for at most `lanes` sequences at a time.

    It uses embedding, head and threads of the target, and KV pages of its own under the target's page ids; behind
    those, a block draft has one page per lane for blocks that reach beyond a sequence's pages. The draft is closed
    before the target. ArtifactError for a wrong shortlist, UnsupportedError for what the backend does not implement,
    BackendError if memory runs out.
    """
    compile_graph, _ = backend_functions(target.options)
    ids = _shortlist_ids(source)
    selector = _selector_tables(source)
    passes: list[DraftPass] = []
    for graph, options in _record(source, target.options, lanes):
        first = passes[0] if passes else None
        weights = _weights(source, target.held_matrix, first)
        beside = Beside(threads=target.executable, pages=None if first is None else first.executable)
        executable = compile_graph(graph, weights, options, beside)
        passes.append(DraftPass(executable, tuple(graph.input_values()), source.target_config.vocab_size, options))
    return DraftModel(source.module, tuple(passes), ids, selector, target.options.num_pages)


def plan_draft_memory(source: DraftSource, options: RuntimeOptions, lanes: int) -> dict[str, int]:
    """The exact bytes that `load_draft` will hold beside a target of `options`, by the names in
    `backends.base.MEMORY_PARTS`; allocates nothing."""
    _, plan = backend_functions(options)
    shared = ArtifactWeights(source.target)
    total: dict[str, int] = {}
    held: set[str] = set()
    for graph, pass_options in _record(source, options, lanes):
        weights = _weights(source, shared.matrix, None, held)
        for part, size in plan(graph, weights, pass_options).items():
            total[part] = total.get(part, 0) + (0 if part == "kv" and held else size)
        held.update(weight_names(graph)[0])
    return total


def _record(source: DraftSource, target: RuntimeOptions, lanes: int) -> list[tuple[Graph, RuntimeOptions]]:
    """The graphs of a draft in the order of its passes, and how each is run."""
    options = replace(target, num_state_slots=0, num_journals=0, journal_rows=0)
    module, graph = source.module, Graph()
    if isinstance(module, MTPModule):
        module.record(graph, source.head)
        return [(graph, replace(options, max_rows=max(options.max_rows, lanes), max_logit_rows=lanes))]
    block = Graph()
    module.record_context(graph)
    module.record_block(block, source.head)
    rows, logit_rows = lanes * module.block_size, lanes * (module.block_size - 1)
    options = replace(options, num_pages=options.num_pages + lanes)
    return [
        (graph, replace(options, max_logit_rows=1)),
        (block, replace(options, max_rows=rows, max_logit_rows=logit_rows)),
    ]


def _weights(
    source: DraftSource, target: Callable[[str], Matrix], first: DraftPass | None, held: Collection[str] = ()
) -> DraftWeights:
    """Weights of one pass: the target's and those that the first pass holds are shared.

    held: names that a pass before would hold, for plans.
    """
    readers: dict[int, ArtifactWeights] = {}
    own = {name: readers.setdefault(id(file), ArtifactWeights(file)) for name, file in source.files.items()}

    def shared(name: str) -> Matrix | None:
        if first is not None and first.executable.holds(name):
            return first.executable.held_matrix(name)
        if name not in own:
            return replace(target(name), shared=True)
        return replace(own[name].matrix(name), shared=True) if name in held else None

    return DraftWeights(own, shared)


def _selector_tables(source: DraftSource) -> SelectorTables | None:
    module = source.module
    if isinstance(module, MTPModule) or module.selector is None:
        return None
    tables = []
    for name in (PREDECESSOR, SUCCESSOR):
        matrix = ArtifactWeights(source.files[name]).matrix(name)
        if matrix.format not in RowTable.FORMATS:
            file, known = source.files[name].path, ", ".join(RowTable.FORMATS)
            raise ArtifactError(f"has format {matrix.format}; rows are looked up in {known}", file=file, field=name)
        tables.append(RowTable(matrix))
    return SelectorTables(*tables)


def _shortlist_ids(source: DraftSource) -> npt.NDArray[np.int32] | None:
    """The tokens of the shortlist's rows."""
    if source.shortlist is None:
        return None
    file = source.files[SHORTLIST_IDS]
    stored = ArtifactWeights(file).vector(SHORTLIST_IDS)
    limit = source.target_config.num_decodable
    with np.errstate(invalid="ignore"):
        ids = stored.astype(np.int32)
    if not (np.array_equal(ids, stored) and (np.diff(ids) > 0).all() and ids[0] >= 0 and ids[-1] < limit):
        raise ArtifactError(f"must ascend from 0 on below {limit}", file=file.path, field=SHORTLIST_IDS)
    return ids
