"""A loaded model with its engine and text side: what `run` and `chat` share."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ninfer.artifact import Artifact
from ninfer.cli.models import find_model
from ninfer.cli.output import notice
from ninfer.engine import Engine, EngineConfig, detect_hardware, load_engine, plan_engine
from ninfer.metrics import RequestTimeline, now_ns
from ninfer.text.frontend import load_frontend
from ninfer.text.template import ChatTemplate
from ninfer.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Session:
    """A model ready to answer.

    tokenizer, template: None for models that came without. timeline: of the request that had to wait for the loading;
    it arrived when the file was found, because importing a model into the cache is no part of answering.
    """

    artifact: Artifact
    engine: Engine
    tokenizer: Tokenizer | None
    template: ChatTemplate | None
    timeline: RequestTimeline

    def identity(self) -> dict[str, str]:
        """Which file answers, as JSON values."""
        return {
            "file": str(self.artifact.path),
            "architecture": self.artifact.architecture,
            "digest": self.artifact.digest,
        }


@contextmanager
def open_session(model: str, config: EngineConfig, *, besides: Mapping[str, int] | None = None) -> Iterator[Session]:
    """Finds, plans and loads a model; closes everything at the end. besides: as `plan_engine`."""
    path = find_model(model)
    timeline = RequestTimeline(arrival_ns=now_ns())
    timeline.load_start_ns = timeline.arrival_ns
    with Artifact.open(path) as artifact:
        if artifact.random is not None:
            notice("the weights of this model are random; what it says means nothing")
        plan = plan_engine(config, artifact, detect_hardware(), besides=besides)
        tokenizer, template = load_frontend(artifact.find_resource)
        with load_engine(plan, artifact, tokenizer) as engine:
            timeline.load_end_ns = now_ns()
            yield Session(artifact, engine, tokenizer, template, timeline)


def keep_openssl_out() -> None:
    """Let `hashlib`, if it is still to be imported, use Python's own digests in this process.

    Jinja imports it for a cache that is not used here, and OpenSSL would be 3.4 MB of the memory of a chat: 2 % with a
    model of 135 million weights. A module that is None counts as one that cannot be found, and `hashlib` does without
    this one. Only for processes that belong to a command: other code may want what only OpenSSL has.
    """
    sys.modules.setdefault("_hashlib", None)  # type: ignore[arg-type]  # None is what blocks an import
