"""Sets of prompts that come with ninfer, or from a file of the same form.

A suite is JSON: `name`, `version`, `about`, and `prompts`, each with `id`, `scenario`, `language`, `text` (one user
turn), `max_new`; for a long context `context_share`: then the text stands behind a made-up log that is as long as is
needed for the prompt to fill that share of the context; and `check` where the answer can be judged (`bench.tasks`).
Whoever changes a suite changes its version.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ninfer.bench.records.schema import Inputs, Prompt, PromptIdentity
from ninfer.errors import ConfigError

SUITES = Path(__file__).parent / "suites"

CountTokens = Callable[[list[dict[str, str]]], int]
"""Tokens that a conversation has once the target has made a prompt of it."""


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    scenario: str
    language: str
    text: str
    max_new: int
    context_share: float | None = None
    check: dict[str, Any] | None = None


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a suite's file."""

    name: str
    version: str
    about: str
    prompts: list[_Entry]


def bundled_suites() -> list[str]:
    """Names of the suites that come with ninfer."""
    return sorted(path.stem for path in SUITES.glob("*.json"))


def load_suite(name: str) -> Suite:
    """A bundled suite by its name, or the suite in a file. ConfigError for neither, and for a file that is no suite."""
    path = SUITES / f"{name}.json" if name in bundled_suites() else Path(name)
    try:
        suite = msgspec.json.decode(path.read_bytes(), type=Suite)
    except OSError as error:
        raise ConfigError(
            f"suite {name!r} is neither {', '.join(bundled_suites())} nor a file that can be read"
        ) from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is no suite: {error}") from error
    ids = [entry.id for entry in suite.prompts]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice or not ids:
        raise ConfigError(f"{path}: " + (f"prompt {twice[0]} is there twice" if twice else "no prompts"))
    return suite


def make_prompts(
    suite: Suite,
    *,
    context: int | None,
    count_tokens: CountTokens,
    languages: Collection[str] = (),
    scenarios: Collection[str] = (),
    max_new: int | None = None,
) -> list[Prompt]:
    """The prompts of a suite as they will be sent, those of some languages and scenarios only if any are named.

    context: tokens of prompt and completion that the target holds. max_new: instead of each prompt's own limit.
    ConfigError for a language or scenario that no prompt has, for a long prompt without a context, and for a context
    that has no room for a prompt and its limit.
    """
    _require_known("language", languages, {entry.language for entry in suite.prompts})
    _require_known("scenario", scenarios, {entry.scenario for entry in suite.prompts})
    prompts = []
    for entry in suite.prompts:
        if (languages and entry.language not in languages) or (scenarios and entry.scenario not in scenarios):
            continue
        limit = max_new or entry.max_new
        text = entry.text
        options: dict[str, Any] = {} if entry.check is None else {"check": entry.check}
        if entry.context_share is not None:
            if context is None:
                raise ConfigError(f"prompt {entry.id} fills a share of the context, which is not known")
            asked = int(entry.context_share * context)
            text = lengthened(entry.text, asked, count_tokens)
            options["asked_prompt_tokens"] = asked
        messages = [{"role": "user", "content": text}]
        if context is not None and (needed := count_tokens(messages) + limit) > context:
            raise ConfigError(f"prompt {entry.id} and its {limit} tokens need a context of {needed}, not {context}")
        prompts.append(
            Prompt(
                id=entry.id,
                scenario=entry.scenario,
                language=entry.language,
                body=messages,
                max_new=limit,
                options=options,
            )
        )
    return prompts


def inputs_of(suite: Suite, prompts: Sequence[Prompt]) -> Inputs:
    """What `run.json` says of the prompts."""
    identities = [PromptIdentity(id=prompt.id, digest=prompt.digest) for prompt in prompts]
    return Inputs(name=suite.name, version=suite.version, prompts=identities)


def lengthened(text: str, num_tokens: int, count_tokens: CountTokens) -> str:
    """`text` behind as many lines of a made-up log as fit into `num_tokens`, none if the text alone has more."""

    def behind(num_lines: int) -> str:
        return "\n".join([*log_lines(num_lines), "", text]) if num_lines else text

    def fits(num_lines: int) -> bool:
        return count_tokens([{"role": "user", "content": behind(num_lines)}]) <= num_tokens

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return behind(low)


def log_lines(count: int) -> list[str]:
    """The first `count` lines of the log, always the same."""
    rng = random.Random(14)
    depots, drivers = ("north", "harbour", "ring", "airport"), ("Ahn", "Brandt", "Costa", "Diallo", "Evans", "Fischer")
    causes = ("cold chain", "traffic", "loading", "weather", "paperwork")
    lines = []
    for number in range(count):
        state = rng.choice(("on time", "on time", "delayed", "cancelled"))
        cause = "" if state == "on time" else f", cause {rng.choice(causes)}"
        lines.append(
            f"week {number // 40 + 1} tour {number + 1}: depot {rng.choice(depots)}, driver {rng.choice(drivers)}, "
            f"{rng.randint(4, 30)} stops, {state}{cause}"
        )
    return lines


def _require_known(what: str, asked: Collection[str], known: Collection[str]) -> None:
    unknown = sorted(set(asked) - set(known))
    if unknown:
        raise ConfigError(f"{what} {unknown[0]!r} is in no prompt of this suite; there are {', '.join(sorted(known))}")


def with_nonce(body: Any, nonce: str) -> Any:
    """The messages of a prompt with a first line of their own, so that no cache knows the beginning."""
    first, *rest = body
    return [{**first, "content": f"[{nonce}]\n{first['content']}"}, *rest]
