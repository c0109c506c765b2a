"""Texts that models are compared on, the windows of tokens they are cut into, and whose tokens these are.

The bundled texts were written for this purpose and are part of this package under its licence. Their words, numbers and
names mean nothing; they only have to look like what people give to models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ninfer.artifact import Artifact
from ninfer.errors import ConfigError, RequestError
from ninfer.text.frontend import load_frontend
from ninfer.text.tokenizer import Tokenizer

BUILTIN = "builtin"
BUILTIN_VERSION = 1
"""Counts changes of the bundled texts: figures of different versions cannot be compared."""

PARTS = {"prose": "prose.txt", "code": "code.txt", "json": "json.txt", "chinese": "chinese.txt"}
"""Part -> file in `texts`; `builtin` is all of them, one after the other."""


@dataclass(frozen=True)
class Text:
    """A text by the name it was asked for."""

    name: str
    content: str

    @property
    def digest(self) -> str:
        """BLAKE2b-256 (hex) of its UTF-8 bytes."""
        return blake2b(self.content.encode(), digest_size=32).hexdigest()


@dataclass(frozen=True, eq=False)
class Window:
    """A piece of a text as a model reads it: after `inputs[i]` it has to predict `targets[i]`.

    `start` counts the text's tokens before the window. What a prompt begins with (BOS) stands in front of `inputs`.
    """

    text: str
    start: int
    inputs: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int32]


def load_text(name: str) -> Text:
    """`builtin`, a part of it (`builtin/code`), or a UTF-8 file. ConfigError for what is none of these."""
    folder = files("ninfer.bench") / "texts"
    if name == BUILTIN:
        return Text(name, "\n".join((folder / file).read_text(encoding="utf-8") for file in PARTS.values()))
    if name.startswith(f"{BUILTIN}/"):
        part = name.removeprefix(f"{BUILTIN}/")
        if part not in PARTS:
            raise ConfigError(
                f"no bundled text {name!r}; there is {', '.join(f'{BUILTIN}/{known}' for known in PARTS)}"
            )
        return Text(name, (folder / PARTS[part]).read_text(encoding="utf-8"))
    try:
        return Text(name, Path(name).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"text {name} is not UTF-8: {error}") from error
    except OSError as error:
        raise ConfigError(f"text {name} cannot be read: {error.strerror}; {BUILTIN!r} is the bundled one") from error


def cut_windows(texts: Sequence[Text], tokenizer: Tokenizer, context: int, count: int | None) -> list[Window]:
    """`count` windows of `context` positions, evenly spread over all that fit one after the other; None: all of them.

    ConfigError when a text is too short for one window, or `count` is more than there are or leaves a text out.
    """
    begin = list(tokenizer.bos_ids)
    stride = context - len(begin)
    if stride < 1:
        raise ConfigError(f"a context of {context} tokens has no room after the {len(begin)} that begin every prompt")
    windows: list[Window] = []
    for text in texts:
        ids = np.array(tokenizer.encode(text.content), dtype=np.int32)
        starts = range(0, len(ids) - stride, stride)
        if not starts:
            raise ConfigError(
                f"text {text.name} has {len(ids)} tokens; one window of context {context} needs {stride + 1}: "
                "give a longer text or a smaller --context"
            )
        for start in starts:
            inputs = np.concatenate([np.array(begin, dtype=np.int32), ids[start : start + stride]])
            targets = np.concatenate([inputs[1:], ids[start + stride : start + stride + 1]])
            windows.append(Window(text.name, start, inputs, targets))
    if count is None:
        return windows
    if count > len(windows):
        raise ConfigError(f"{count} windows of context {context} were asked for and {len(windows)} fit into the text")
    chosen = [windows[index * len(windows) // count] for index in range(count)]
    left_out = {text.name for text in texts} - {window.text for window in chosen}
    if left_out:
        raise ConfigError(f"{count} windows leave out text {', '.join(sorted(left_out))}; ask for more windows")
    return chosen


def shared_tokenizer(reference: Artifact, artifacts: Sequence[Artifact]) -> Tokenizer:
    """The tokenizer of the reference, if every artifact has the same vocabulary; ConfigError names both digests."""
    found = {}
    for artifact in (reference, *artifacts):
        tokenizer, _ = load_frontend(artifact.find_resource, file=artifact.path)
        if tokenizer is None:
            raise ConfigError(f"{artifact.path} has no tokenizer, so nothing says that its token ids are the same")
        found[artifact.path] = (tokenizer, vocabulary_digest(tokenizer))
    shared, wanted = found[reference.path]
    for path, (_, digest) in found.items():
        if digest != wanted:
            raise ConfigError(
                f"{path} has another vocabulary than the reference {reference.path} (digests {digest} and {wanted}): "
                "their token ids cannot be compared"
            )
    return shared


def vocabulary_digest(tokenizer: Tokenizer) -> str:
    """BLAKE2b-256 (hex) of what every id means: its bytes, or that it is control or unused; and of what begins a
    prompt."""
    digest = blake2b(f"{tokenizer.vocab_size} {tokenizer.bos_ids}".encode(), digest_size=32)
    for token_id in range(tokenizer.vocab_size):
        try:
            data = tokenizer.token_bytes(token_id)
        except RequestError:
            digest.update(b"unused")
            continue
        digest.update(b"control" if token_id in tokenizer.control_ids else b"text")
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.hexdigest()
