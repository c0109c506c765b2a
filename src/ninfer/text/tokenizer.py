"""Text to token ids and back, exactly, for byte-level vocabularies in the `tokenizer.json` form.

Encoding is done by the `tokenizers` library; what we add is a closed contract around it:

* *Text is never control.* A control token (an added token marked `special`) comes out of `encode` only when the caller
  says `allow_control=True`. Otherwise `<|im_end|>` in the text is eight ordinary tokens.
* *Nothing is lost.* A vocabulary without a token for some byte makes the library drop that byte; we refuse the text.
* *Nothing is added.* No prefix space, no begin or end token, no truncation, no padding.

Added tokens that are not special (`<think>`, `<tool_call>`) are ordinary vocabulary: they are matched in any text, as
the reference tokenizers do, and decode to their text.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

from ninfer.errors import ArtifactError, RequestError, UnsupportedError
from ninfer.text.byte_alphabet import BYTE_TO_CHAR, spelled_bytes

# Bytes that no UTF-8 text contains; a vocabulary may lack them without consequence.
_NEVER_IN_UTF8 = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})


class Tokenizer:
    """One vocabulary, immutable after loading; every method may be called from any thread.

    `control_tokens`: text of each control token -> id. `bos_ids`: what the vocabulary's own rules put in front of a raw
    prompt (empty for most; `encode_prompt` uses it).
    """

    def __init__(self, library: Any, *, bos_ids: tuple[int, ...]) -> None:
        """`library`: a `tokenizers.Tokenizer` that `from_json` has checked; use `from_json`."""
        self._library = library
        self._added: dict[int, str] = {}
        control: dict[str, int] = {}
        for token_id, token in sorted(library.get_added_tokens_decoder().items()):
            self._added[token_id] = token.content
            if token.special:
                control[token.content] = token_id
        self.control_tokens: Mapping[str, int] = MappingProxyType(control)
        self.control_ids: frozenset[int] = frozenset(control.values())
        self.bos_ids = bos_ids
        # Alternation takes the first branch that fits, so longest first is the longest match at the leftmost position.
        longest_first = sorted(control, key=lambda text: (-len(text), text))
        self._control_pattern = re.compile("|".join(map(re.escape, longest_first))) if control else None
        self._lost_pattern = _pattern_of_lost_bytes(library)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_json(cls, data: bytes, *, file: object = None) -> Tokenizer:
        """Load the content of a `tokenizer.json`. `file`: named in errors.

        Raises `ArtifactError` for a broken file, `UnsupportedError` for a kind of tokenizer whose text could not be
        given back exactly.
        """
        library = _load_library(data, file)
        _require_exact(library, file)
        library.no_truncation()
        library.no_padding()
        library.encode_special_tokens = True
        return cls(library, bos_ids=_begin_ids(library, file))

    def beginning_with(self, *bos_ids: int) -> Tokenizer:
        """The same vocabulary with other `bos_ids`. Raises `RequestError` for an id it does not have."""
        for token_id in bos_ids:
            self.token_bytes(token_id)
        return Tokenizer(self._library, bos_ids=bos_ids)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id (ids below may be unused). An embedding matrix may have more rows."""
        return 1 + max(self._library.get_vocab(with_added_tokens=True).values())

    def encode(self, text: str, *, allow_control: bool = False) -> list[int]:
        """Ids of `text`. With `allow_control`, control tokens written in it become their ids, else ordinary text.

        Raises `RequestError` for a lone surrogate and for characters that the vocabulary cannot express.
        """
        if not allow_control:
            return self._encode_ordinary(text)
        ids: list[int] = []
        for part in self.split_control(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(self._encode_ordinary(part))
        return ids

    def encode_prompt(self, text: str, *, allow_control: bool = False) -> list[int]:
        """Ids of a raw prompt: `encode` with `bos_ids` in front, once, also when the text itself begins with them."""
        return self.with_bos(self.encode(text, allow_control=allow_control))

    def with_bos(self, ids: list[int]) -> list[int]:
        """`ids` beginning with `bos_ids` exactly once: put in front unless already there."""
        begin = list(self.bos_ids)
        return ids if ids[: len(begin)] == begin else begin + ids

    def split_control(self, text: str) -> list[str | int]:
        """`text` cut at its control tokens, leftmost longest match: nonempty text parts and control ids, in order."""
        if self._control_pattern is None:
            return [text] if text else []
        parts: list[str | int] = []
        start = 0
        for match in self._control_pattern.finditer(text):
            if match.start() > start:
                parts.append(text[start : match.start()])
            parts.append(self.control_tokens[match.group()])
            start = match.end()
        if start < len(text):
            parts.append(text[start:])
        return parts

    def decode(self, ids: Iterable[int], *, skip_control: bool = True) -> str:
        """Text of `ids`; U+FFFD stands for byte sequences that are not UTF-8, and only for them.

        Raises `RequestError` for an id that is not in the vocabulary.
        """
        data = b"".join(self.token_bytes(i) for i in ids if not (skip_control and i in self.control_ids))
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token; for an added token its text in UTF-8. `RequestError` if there is no such id."""
        try:
            return self._bytes[token_id]
        except (KeyError, TypeError):
            return self._find_bytes(token_id)

    def _find_bytes(self, token_id: int) -> bytes:
        try:
            index = operator.index(token_id)
            spelled = self._library.id_to_token(index)
        except (TypeError, OverflowError):
            spelled = None
        if spelled is None:
            raise RequestError(f"token id {token_id!r} is not in the vocabulary", kind="bad_token_id", param="ids")
        data = None if index in self._added else spelled_bytes(spelled)
        if data is None:
            data = spelled.encode("utf-8")
        self._bytes[index] = data
        return data

    def _encode_ordinary(self, text: str) -> list[int]:
        self._require_expressible(text)
        # The batch call is the one that computes no character offsets: half the time on long prompts.
        ids: list[int] = self._library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if not self.control_ids.isdisjoint(ids):
            # Only a vocabulary whose merges build a control token can come here (none known does).
            raise RequestError("the text contains a word that the vocabulary reserves for control", kind="control_text")
        return ids

    def _require_expressible(self, text: str) -> None:
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(
                f"character {error.start} is the lone surrogate U+{ord(text[error.start]):04X}; send valid Unicode",
                kind="invalid_text",
            ) from error
        if self._lost_pattern is None:
            return
        if self._library.normalizer is not None:
            data = self._library.normalizer.normalize_str(text).encode("utf-8")
        lost = self._lost_pattern.search(data)
        if lost:
            position = len(data[: lost.start()].decode("utf-8", errors="ignore"))
            char = data.decode("utf-8")[position]
            raise RequestError(
                f"character {position} is U+{ord(char):04X}, which this model's vocabulary cannot express; remove it",
                kind="inexpressible_text",
            )


def _load_library(data: bytes, file: object) -> Any:
    from tokenizers import Tokenizer as Library  # here: programs that only handle ids never pay for it

    try:
        return Library.from_buffer(data)
    except ValueError as error:
        raise ArtifactError(f"not a usable tokenizer: {error}", file=file, field="tokenizer.json") from error
    except BaseException as error:
        # A panic of the library's Rust code (seen: a subword prefix longer than a merge) is no `Exception`, and its
        # class has no importable name.
        if type(error).__name__ != "PanicException":
            raise
        raise ArtifactError(f"not a usable tokenizer: {error}", file=file, field="tokenizer.json") from error


def _pattern_of_lost_bytes(library: Any) -> re.Pattern[bytes] | None:
    """Matches a byte of UTF-8 text that has no token of its own, or None if every byte has one."""
    lost = [b for b, char in BYTE_TO_CHAR.items() if b not in _NEVER_IN_UTF8 and library.token_to_id(char) is None]
    return re.compile(b"[" + b"".join(b"\\x%02x" % byte for byte in lost) + b"]") if lost else None


def _require_exact(library: Any, file: object) -> None:
    """Refuse what could not be given back byte for byte, and added tokens with matching rules that we do not apply."""
    decoder = _component(library.decoder)
    if decoder.get("type") != "ByteLevel":
        raise _unsupported(f"its decoder is {decoder.get('type')!r}", file)
    if type(library.model).__name__ != "BPE":
        raise _unsupported(f"its model is {type(library.model).__name__}", file)
    if library.model.dropout:
        raise _unsupported("its model drops merges at random", file)
    if library.model.continuing_subword_prefix or library.model.end_of_word_suffix:
        raise _unsupported("its model marks the parts of words", file)
    splitter = _component(library.pre_tokenizer)
    if any(stage.get("add_prefix_space") for stage in (splitter, *splitter.get("pretokenizers", ()))):
        raise _unsupported("it puts a space in front of the text", file)
    for token in library.get_added_tokens_decoder().values():
        rules = [name for name in ("lstrip", "rstrip", "single_word") if getattr(token, name)]
        if token.special and rules:
            raise _unsupported(f"its control token {token.content!r} has the matching rule {', '.join(rules)}", file)


def _begin_ids(library: Any, file: object) -> tuple[int, ...]:
    """Ids that the file's post-processor puts in front of a single text; what it appends is not for prompts."""
    processor = _component(library.post_processor)
    stages = processor["processors"] if processor.get("type") == "Sequence" else [processor]
    begin: list[int] = []
    for stage in stages:
        match stage.get("type"):
            case None | "ByteLevel":  # absent, or about character offsets only
                continue
            case "TemplateProcessing":
                for piece in stage["single"]:
                    if "Sequence" in piece:
                        break
                    name = piece["SpecialToken"]["id"]
                    if name not in stage["special_tokens"]:
                        raise ArtifactError(
                            f"the post-processor has no ids for {name!r}", file=file, field="tokenizer.json"
                        )
                    begin.extend(stage["special_tokens"][name]["ids"])
            case other:
                raise _unsupported(f"its post-processor is {other!r}", file)
    return tuple(begin)


def _component(part: Any) -> dict[str, Any]:
    """A pipeline stage as its JSON object (what the library writes to the file), or {} if absent."""
    if part is None:
        return {}
    state: dict[str, Any] = json.loads(part.__getstate__())
    return state


def _unsupported(what: str, file: object) -> UnsupportedError:
    where = f"{file}: " if file is not None else ""
    return UnsupportedError(f"{where}tokenizer not supported: {what}; only exact byte-level BPE is")
