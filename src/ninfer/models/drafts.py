"""Draft companions: which kinds there are, and the checks that one belongs to the model it is attached to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ninfer.artifact import Artifact
from ninfer.errors import UnsupportedError
from ninfer.models.companion import DraftHeadConfig, DraftTarget
from ninfer.models.dflash import DFlashConfig
from ninfer.models.mtp import MTPConfig
from ninfer.models.registry import read_config
from ninfer.models.weights import check_tensors

CompanionConfig = MTPConfig | DFlashConfig | DraftHeadConfig

_KINDS: Mapping[str, Callable[..., CompanionConfig]] = {
    "mtp": MTPConfig.read,
    "dflash": DFlashConfig.read,
    "draft_head": DraftHeadConfig.read,
}

COMPANIONS: tuple[str, ...] = tuple(_KINDS)


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
