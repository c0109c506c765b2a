"""Other model files to `.ninfer`: GGUF files and Hugging Face directories."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ninfer.artifact import Artifact, ArtifactWriter
from ninfer.convert.checkpoint import Checkpoint
from ninfer.convert.encode import encode
from ninfer.convert.format_choice import FormatChoice
from ninfer.convert.gguf.reader import MAGIC
from ninfer.convert.gguf.source import open_gguf
from ninfer.convert.huggingface import open_draft, open_huggingface
from ninfer.convert.provenance import check_unchanged, provenance, source_files
from ninfer.convert.report import ConversionReport, TensorReport
from ninfer.errors import ArtifactError, ConfigError
from ninfer.models.drafts import target_of

PathLike = str | os.PathLike[str]
ProgressCallback = Callable[[int, int], None]
"""Called with (source bytes done, source bytes in total)."""


def convert(
    src: PathLike,
    out: PathLike,
    *,
    weights: str | None = None,
    recipe: str | None = None,
    target_model: PathLike | None = None,
    progress: ProgressCallback | None = None,
) -> ConversionReport:
    """Write the checkpoint `src` as the artifact `out`, which appears whole or not at all.

    `target_model`: the artifact that a draft checkpoint drafts for; other checkpoints have none.
    `weights`: format of all weight matrices (`formats.NAMES`); `recipe`: the name of a choice by place (`recipes`).
    Without both, matrices keep what the source holds, exactly where we have its format. Vectors are f32. Equal sources
    give equal bytes. Memory is bounded by the largest tensor.
    Raises ConfigError for bad arguments, ArtifactError for a broken source, ConversionError for one we do not support.
    """
    source, target = Path(src), Path(out)
    choice = FormatChoice.of(weights, recipe)
    check_target(target)
    with open_checkpoint(source) if target_model is None else _open_draft(source, target_model) as checkpoint:
        if any(target.exists() and target.samefile(file) for file in checkpoint.files):
            raise ConfigError(f"{target} is part of the source; choose another output")
        return write_artifact(checkpoint, target, choice, progress)


def _open_draft(source: Path, target_model: PathLike) -> Checkpoint:
    with Artifact.open(target_model) as model:
        target = target_of(model)
    if not source.is_dir():
        raise ConfigError(f"{source}: drafts are imported from the directory of a Hugging Face checkpoint")
    return open_draft(source, target)


def check_target(target: Path) -> None:
    """ConfigError for a path at which no file can appear."""
    if target.is_dir():
        raise ConfigError(f"{target} is a directory; the output must be a file name")
    if not target.parent.is_dir():
        raise ConfigError(f"{target.parent} is no directory; the output's directory must exist")


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a source of any kind we read: a directory is Hugging Face's, a file must be GGUF."""
    if path.is_dir():
        return open_huggingface(path)
    if path.suffix == ".safetensors":
        raise ConfigError(f"{path}: give the directory that holds this file and its config.json")
    if path.is_file():
        try:
            with open(path, "rb") as stream:
                start = stream.read(len(MAGIC))
        except OSError as error:
            raise ArtifactError(f"cannot be read: {error.strerror}", file=path) from error
        if path.suffix == ".ninfer" and start != MAGIC:
            raise ConfigError(f"{path}: is already a .ninfer file, there is nothing to convert")
    return open_gguf(path)


def write_artifact(
    checkpoint: Checkpoint, target: Path, choice: FormatChoice, progress: ProgressCallback | None = None
) -> ConversionReport:
    """Write an open checkpoint as an artifact; raises as `convert`."""
    files = source_files(checkpoint)
    origin = provenance(checkpoint, files, choice)
    matrices = [a.rule.target for a in checkpoint.assignments if len(a.rule.shape) == 2]
    wanted = choice.formats([name for name in matrices if name not in checkpoint.exact])
    total = sum(assignment.nbytes for assignment in checkpoint.assignments)
    done = 0
    reports: list[TensorReport] = []
    with ArtifactWriter(target, checkpoint.architecture, checkpoint.config, origin) as writer:
        for assignment in checkpoint.assignments:
            encoded = encode(assignment, wanted.get(assignment.rule.target))
            writer.add(assignment.rule.target, encoded.format, encoded.layout, assignment.rule.shape, encoded.data)
            reports.append(encoded.report)
            done += assignment.nbytes
            if progress is not None:
                progress(done, total)
        for name, content in checkpoint.resources.items():
            writer.add_resource(name, content)
        check_unchanged(files)
        writer.finish({**choice.record(), "tensors": {report.name: report.to_json() for report in reports}})
    with Artifact.open(target) as artifact:
        return ConversionReport(
            path=target,
            source=checkpoint.path,
            source_kind=checkpoint.kind,
            architecture=checkpoint.architecture,
            weights=choice.weights,
            recipe=None if choice.recipe is None else choice.recipe.name,
            tensors=reports,
            resources=list(checkpoint.resources),
            notes=checkpoint.notes,
            source_bytes=sum(file.nbytes for file in files),
            file_bytes=artifact.file_bytes,
            digest=artifact.digest,
        )
