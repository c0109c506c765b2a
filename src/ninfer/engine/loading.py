"""A ready engine from a plan and the file it was made for."""

from __future__ import annotations

from ninfer.artifact import Artifact
from ninfer.engine.engine import Engine
from ninfer.engine.plan import EnginePlan
from ninfer.errors import ConfigError
from ninfer.models import load_model
from ninfer.text.tokenizer import Tokenizer


def load_engine(plan: EnginePlan, artifact: Artifact, tokenizer: Tokenizer | None = None) -> Engine:
    """Load the model as planned: this is where memory is allocated.

    ConfigError for a plan of another artifact; the model's own errors (ArtifactError, UnsupportedError, BackendError).
    """
    if plan.artifact_digest != artifact.digest:
        raise ConfigError(f"the plan was made for another file than {artifact.path}; plan again")
    return Engine(plan, load_model(artifact, plan.options), tokenizer)
