"""Grammars as constraints: what a completion's text must be, token by token, by the `llguidance` library.

The library decides which tokens keep the text within the grammar; what is ours is the contract around it: errors that
say what is wrong with a grammar, a compact form of JSON, and no token that the vocabulary does not have.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np

from ninfer.decoding.constraint import TokenIds
from ninfer.errors import BackendError, RequestError
from ninfer.text.tokenizer import Tokenizer

MAX_CACHED = 32
"""Compiled grammars that are kept: clients send the same one with every request."""

JSON_FORM = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""How JSON is written: on one line, with at most one space behind commas and colons, so that no model can fill its
budget with white space."""


def json_rule(schema: object) -> str:
    """The right side of a Lark rule for JSON that fits `schema`, an object or a boolean."""
    value = dict(schema) if isinstance(schema, dict) else {} if schema is True else {"not": {}}
    return "%json " + json.dumps({**value, "x-guidance": JSON_FORM})


def text_rule(text: str) -> str:
    """The right side of a Lark rule for a text."""
    return json.dumps(text, ensure_ascii=False)


class Grammar:
    """A compiled grammar: a `Constraint`."""

    def __init__(self, matcher: Any) -> None:
        """`matcher`: the library's, which has consumed nothing."""
        self._matcher = matcher

    def start(self) -> GrammarState:
        return GrammarState(self._matcher.deep_copy())


class GrammarState:
    """A place within a grammar: a `ConstraintState`."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    @property
    def is_complete(self) -> bool:
        return bool(self._matcher.is_accepting())

    def allowed(self, num_tokens: int) -> TokenIds:
        mask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._require_sound()
        return np.flatnonzero(np.unpackbits(mask, bitorder="little")[:num_tokens])

    def advance(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._require_sound()

    def _require_sound(self) -> None:
        if self._matcher.is_error():
            raise BackendError(f"the constraint cannot go on: {_first_line(self._matcher.get_error())}")


class GrammarCompiler:
    """Makes grammars for one vocabulary; may be used from any thread. The first use takes a second."""

    def __init__(self, tokenizer: Tokenizer, end_token_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._end_token_ids = sorted(end_token_ids)
        self._lock = Lock()
        self._library: Any = None
        self._compiled = lru_cache(maxsize=MAX_CACHED)(self._compile)

    def lark(self, text: str, *, param: str) -> Grammar:
        """A grammar in the library's dialect of Lark. RequestError (`param`) with the library's words if it is none."""
        from llguidance import LLMatcher  # here: a server that is never asked for a grammar does not load it

        return self._made(LLMatcher.grammar_from_lark(text), param)

    def regex(self, text: str, *, param: str) -> Grammar:
        """A regular expression of the whole text."""
        from llguidance import LLMatcher

        return self._made(LLMatcher.grammar_from_regex(text), param)

    def gbnf(self, text: str, *, param: str) -> Grammar:
        """A grammar as llama.cpp has them, rule `root`, or in Lark, rule `start`."""
        from llguidance import grammar_from

        try:
            source = grammar_from("gbnf", text)
        except ValueError as error:
            raise RequestError(f"{param}: {_first_line(str(error))}", param=param) from error
        return self._made(source, param)

    def check_schema(self, schema: object, *, param: str) -> None:
        """RequestError (`param`) for a JSON schema that is wrong, or says what cannot be held to."""
        if not isinstance(schema, dict | bool):
            raise RequestError(f"{param} must be a JSON schema: an object or a boolean", param=param)
        self.lark(f"start: {json_rule(schema)}", param=param)

    def _made(self, source: str, param: str) -> Grammar:
        with self._lock:
            found = self._compiled(source)
        if isinstance(found, str):
            raise RequestError(f"{param}: {found}", param=param)
        return found

    def _compile(self, source: str) -> Grammar | str:
        """The grammar, or what is wrong with it."""
        from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

        if self._library is None:
            wrapper = TokenizerWrapper(_Vocabulary(self._tokenizer, self._end_token_ids))
            self._library = LLTokenizer(wrapper, eos_token=self._end_token_ids)
        is_error, messages = LLMatcher.validate_grammar_with_warnings(source, self._library)
        if is_error:
            return _first_line(messages[0])
        matcher = LLMatcher(self._library, source, log_level=0)
        return _first_line(matcher.get_error()) if matcher.is_error() else Grammar(matcher)


class _Vocabulary:
    """A tokenizer as the library wants to see it."""

    def __init__(self, tokenizer: Tokenizer, end_token_ids: list[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = end_token_ids[0]
        self.bos_token_id = None
        self.special_token_ids = sorted(tokenizer.control_ids.union(end_token_ids))
        self.tokens = [self._bytes(token) for token in range(tokenizer.vocab_size)]

    def _bytes(self, token: int) -> bytes:
        try:
            return self._tokenizer.token_bytes(token)
        except RequestError:
            return b""  # an unused id, which the library then never allows

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8") if isinstance(text, bytes) else text)


def _first_line(text: str) -> str:
    return text.strip().split("\n<state>")[0][:500]
