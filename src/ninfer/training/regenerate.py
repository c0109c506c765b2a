"""Responses of the target itself to the prompts, by our own engine: what a draft has to predict is the target's text.

Responses go to a JSONL file as they are finished. A run that was stopped goes on where it was: an answer depends on its
request alone (the engine's determinism law), so the finished file is the same set of lines however often that happened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ninfer.decoding import SamplingParams
from ninfer.engine import Delta, Engine, Failed, Finished, GenerationRequest
from ninfer.errors import ConfigError
from ninfer.text.template import ChatTemplate
from ninfer.training.prompts import Prompt

GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=1)
"""How a second response to every trained prompt is drawn: other text than greedy, still the target's."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Response:
    """One answer as token ids, a stop token included. key: that of its prompt and the way it was drawn."""

    key: str
    workload: str
    held_out: bool
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]


def response_key(prompt: Prompt, sampling: SamplingParams) -> str:
    return f"{prompt.key}-{'greedy' if sampling.is_greedy else f'seed{sampling.seed}'}"


def regenerate(
    engine: Engine,
    template: ChatTemplate,
    prompts: Sequence[Prompt],
    path: Path,
    *,
    max_new: int,
    progress: Progress = lambda done, total: None,
) -> None:
    """Complete the file `path` to one greedy response per prompt, and a sampled one per trained prompt.

    Held-out prompts are answered greedily, as they are measured. ConfigError for a file of other prompts.
    """
    wanted = {response_key(prompt, GREEDY): (prompt, GREEDY) for prompt in prompts}
    wanted |= {response_key(prompt, SAMPLED): (prompt, SAMPLED) for prompt in prompts if not prompt.held_out}
    present = set()
    for response in _complete_lines(path):
        prompt, _ = wanted.get(response.key, (None, None))
        if prompt is None or (prompt.workload, prompt.held_out) != (response.workload, response.held_out):
            raise ConfigError(f"{path} holds responses to other prompts; give another directory")
        present.add(response.key)
    progress(len(present), len(wanted))
    requests = (
        (key, prompt, _request(template, prompt, sampling, max_new))
        for key, (prompt, sampling) in wanted.items()
        if key not in present
    )
    with path.open("a", encoding="utf-8") as file:
        for done, response in enumerate(_answers(engine, requests), len(present) + 1):
            file.write(json.dumps(asdict(response)) + "\n")
            file.flush()
            progress(done, len(wanted))


def read_responses(path: Path) -> list[Response]:
    """All responses of a finished file, in the order of their keys: the same list for every order of writing."""
    return sorted(_lines(path.read_text(encoding="utf-8")), key=lambda response: response.key)


def _request(template: ChatTemplate, prompt: Prompt, sampling: SamplingParams, max_new: int) -> GenerationRequest:
    ids = tuple(template.encode([{"role": "user", "content": prompt.text}]))
    return GenerationRequest(ids, max_new=max_new, sampling=sampling)


def _answers(engine: Engine, requests: Iterable[tuple[str, Prompt, GenerationRequest]]) -> Iterator[Response]:
    """Answers as they are finished, with every lane of the engine busy."""
    waiting = iter(requests)
    running: dict[int, tuple[str, Prompt, GenerationRequest, list[int]]] = {}
    while True:
        while len(running) <= engine.plan.max_concurrency and (item := next(waiting, None)) is not None:
            running[engine.submit(item[2])] = (*item, [])
        if not running:
            return
        for event in engine.step():
            match event:
                case Delta():
                    running[event.request_id][3].extend(event.ids)
                case Finished():
                    key, prompt, request, ids = running.pop(event.request_id)
                    yield Response(key, prompt.workload, prompt.held_out, request.prompt_ids, tuple(ids))
                case Failed():
                    raise event.error


def _complete_lines(path: Path) -> list[Response]:
    """The responses of a file that may not exist, or may end in the middle of a line, which is then cut off."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    complete = text[: text.rfind("\n") + 1]
    if len(complete) != len(text):
        os.truncate(path, len(complete.encode("utf-8")))
    return _lines(complete)


def _lines(text: str) -> list[Response]:
    return [_response(json.loads(line)) for line in text.splitlines()]


def _response(value: dict[str, object]) -> Response:
    return Response(**{name: tuple(item) if isinstance(item, list) else item for name, item in value.items()})  # type: ignore[arg-type]
