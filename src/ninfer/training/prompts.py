"""Prompts to train a draft on: our own, made of templates and topics, or those of a file.

A topic is either trained on or held out, with all its templates: what is measured on held-out prompts was seen in no
form.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, fields
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path

from ninfer.errors import ConfigError

OWN = "own"
"""The name of our own prompts where a file of prompts may be given."""

TOPIC_FILES = ("english.toml", "chinese.toml")

HELD_OUT_EVERY = 8
"""One topic of so many is held out: one eighth leaves tens of prompts per workload to measure with."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a user says. workload: the kind of text it asks for, by which acceptance is reported."""

    text: str
    workload: str
    held_out: bool

    @property
    def key(self) -> str:
        """Identifies the text, whatever its place in a file."""
        return blake2b(self.text.encode("utf-8"), digest_size=8).hexdigest()


def load_prompts(source: str) -> list[Prompt]:
    """`own`, or a file with one JSON object per line: `{"text": ..., "workload": ..., "held_out": ...}`.

    ConfigError names the first line that is none, that repeats a text, and a file without trained or held-out prompts.
    """
    prompts = own_prompts() if source == OWN else _read(Path(source))
    for held_out in (False, True):
        if not any(prompt.held_out is held_out for prompt in prompts):
            raise ConfigError(f"{source}: no prompt has held_out {str(held_out).lower()}; both kinds are needed")
    return prompts


def own_prompts() -> list[Prompt]:
    """Every template with every topic of the data files in `topics`; always the same list."""
    prompts = []
    for name in TOPIC_FILES:
        sections = tomllib.loads((files("ninfer.training") / "topics" / name).read_text(encoding="utf-8"))
        for workload, section in sections.items():
            for index, topic in enumerate(section["topics"]):
                held_out = index % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
                # Not str.format: topics hold braces of their own.
                prompts += [Prompt(text.replace("{}", topic, 1), workload, held_out) for text in section["templates"]]
    return prompts


def _read(path: Path) -> list[Prompt]:
    wanted = {field.name: {"str": str, "bool": bool}[str(field.type)] for field in fields(Prompt)}
    prompts: list[Prompt] = []
    seen: set[str] = set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: not JSON: {error}") from error
        kinds = {name: type(item) for name, item in value.items()} if isinstance(value, dict) else {}
        if kinds != wanted or not value["text"]:
            raise ConfigError(
                f"{path}, line {number}: needed is an object with text (not empty), workload and held_out (true or "
                f"false), nothing else; got {line[:80]!r}"
            )
        prompt = Prompt(**value)
        if prompt.key in seen:
            raise ConfigError(f"{path}, line {number}: this text is there twice")
        seen.add(prompt.key)
        prompts.append(prompt)
    return prompts
