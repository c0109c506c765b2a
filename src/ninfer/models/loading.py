"""From an artifact to a model that runs, and what that will cost before it is done."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from ninfer.artifact import Artifact
from ninfer.backends.base import CompileGraph, Executable, Matrix, PlanMemory
from ninfer.backends.options import RuntimeOptions
from ninfer.errors import InvariantError
from ninfer.models.batch import PAGE_TOKENS, BatchLimits, ForwardBatch, check_batch
from ninfer.models.registry import ModelConfig, read_config
from ninfer.models.weights import ArtifactWeights, check_tensors
from ninfer.ops.graph import Feature, Graph


class Model:
    """A loaded model: a recorded graph on a backend, with KV pages of `page_tokens` tokens."""

    page_tokens = PAGE_TOKENS

    def __init__(
        self, config: ModelConfig, executable: Executable, options: RuntimeOptions, *, recurrent: bool = False
    ) -> None:
        self.config = config
        self.options = options
        self._executable: Executable | None = executable
        self._limits = BatchLimits(
            config.vocab_size,
            options.max_rows,
            options.max_logit_rows,
            options.num_pages,
            options.num_state_slots if recurrent else 0,
            options.num_journals,
            options.journal_rows,
        )

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes held, by the names in `backends.base.MEMORY_PARTS`."""
        return self._live().memory

    def forward(self, batch: ForwardBatch) -> npt.NDArray[np.float32]:
        """Run one step; gives the logits float32 `[R, V]`, valid until the next step.

        InvariantError for a batch that is not valid, before anything is written.
        """
        check_batch(batch, self._limits)
        return self._live().forward(batch)

    def feature(self, feature: Feature) -> npt.NDArray[np.float32]:
        """A feature of all rows of the last step, float32 `[T, hidden_size]`; a view, valid until the next step.

        InvariantError for a feature that the model was not loaded with.
        """
        return self._live().feature(feature)

    @property
    def executable(self) -> Executable:
        """What runs, for a draft that runs beside it."""
        return self._live()

    def held_matrix(self, name: str) -> Matrix:
        """A weight where it is held, for a draft model that shares it and closes before this one."""
        return self._live().held_matrix(name)

    @property
    def last_forward_ns(self) -> int:
        """Nanoseconds the last step spent in kernels; the rest of `forward` and of an engine's step is overhead."""
        return self._live().last_forward_ns

    def close(self) -> None:
        """Release all memory; only `close` may be called after it."""
        if self._executable is not None:
            self._executable.close()
            self._executable = None

    def _live(self) -> Executable:
        if self._executable is None:
            raise InvariantError("the model was closed")
        return self._executable


def load_model(artifact: Artifact, options: RuntimeOptions, features: Collection[Feature] = ()) -> Model:
    """Load the model of an artifact as `options` say, with `features` to be read after every step.

    The artifact must stay open as long as the model. ArtifactError for a configuration or tensors that are wrong (it
    names them), UnsupportedError for what the family or the backend does not implement, BackendError if memory runs
    out, InvariantError for features of layers that the model does not have.
    """
    config, graph = _record(artifact, features)
    compile_graph, _ = backend_functions(options)
    executable = compile_graph(graph, ArtifactWeights(artifact), options)
    return Model(config, executable, options, recurrent=bool(graph.state_layers))


def plan_memory(artifact: Artifact, options: RuntimeOptions, features: Collection[Feature] = ()) -> dict[str, int]:
    """The exact bytes that `load_model` will hold, by the names in `backends.base.MEMORY_PARTS`; allocates nothing."""
    _, graph = _record(artifact, features)
    _, plan = backend_functions(options)
    return plan(graph, ArtifactWeights(artifact), options)


def _record(artifact: Artifact, features: Collection[Feature]) -> tuple[ModelConfig, Graph]:
    config = read_config(artifact.architecture, artifact.config, file=artifact.path)
    check_tensors(artifact, config)
    graph = Graph()
    config.record(graph, features)
    missing = [feature for feature in features if feature not in graph.features]
    if missing:
        raise InvariantError(f"feature {missing[0]} of a model that has layers 0 to {config.num_layers - 1}")
    return config, graph


def backend_functions(options: RuntimeOptions) -> tuple[CompileGraph, PlanMemory]:
    """The two functions of the chosen backend; imported here, because only one is needed and both take time."""
    if options.backend == "reference":
        from ninfer.backends.reference import executable as reference

        return reference.compile_graph, reference.plan_memory
    from ninfer.backends.cpu import executable as cpu

    return cpu.compile_graph, cpu.plan_memory
