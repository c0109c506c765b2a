"""A ready engine from a plan and the file it was made for."""

from __future__ import annotations

from ninfer.artifact import Artifact
from ninfer.engine.calibration import measure_step_costs
from ninfer.engine.drafting import make_proposer, open_draft
from ninfer.engine.engine import Engine, token_memory
from ninfer.engine.plan import EnginePlan
from ninfer.engine.window import RoundCosts
from ninfer.errors import ConfigError
from ninfer.models import load_model
from ninfer.models.drafts import load_draft
from ninfer.text.tokenizer import Tokenizer


def load_engine(plan: EnginePlan, artifact: Artifact, tokenizer: Tokenizer | None = None) -> Engine:
    """Load the model as planned: this is where memory is allocated, and where the costs of rounds are measured if draft
    windows are to set themselves.

    ConfigError for a plan of another artifact; the model's own errors (ArtifactError, UnsupportedError, BackendError).
    """
    if plan.artifact_digest != artifact.digest:
        raise ConfigError(f"the plan was made for another file than {artifact.path}; plan again")
    speculation = plan.speculation
    with open_draft(plan.config, artifact) as source:
        if source is not None and speculation is not None and source.digest != speculation.draft_digest:
            raise ConfigError(f"the plan was made with another draft than {plan.config.draft}; plan again")
        model = load_model(artifact, plan.options, () if source is None else source.features)
        try:
            draft = None if source is None else load_draft(source, model, plan.max_concurrency)
        except BaseException:
            model.close()
            raise
    costs = None
    if speculation is not None and speculation.adaptive:
        costs = RoundCosts(measure_step_costs(model, plan, token_memory(plan)))
    return Engine(plan, model, tokenizer, proposer=make_proposer(plan, model, draft), costs=costs)
