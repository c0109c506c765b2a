"""Which sampling a command uses: what was asked, over what the model's author recommends, over greedy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import click

from ninfer.cli.fields import Decorated, field_options, field_values
from ninfer.decoding import SamplingParams
from ninfer.errors import ArtifactError, RequestError

RANDOM_ONLY = ("top_k", "top_p", "min_p", "seed")
"""Fields that change nothing in a greedy answer."""
RECOMMENDED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Fields that the generation config of a checkpoint may set; the Hugging Face names are ours."""


def sampling_options(function: Decorated) -> Decorated:
    """Adds `--greedy` and one option per sampling field; an option that is not given is None."""
    greedy = click.option("--greedy", is_flag=True, help="Take the most probable token, whatever the model recommends.")
    decorate: Callable[[Decorated], Decorated] = field_options(SamplingParams, defaults=False, without=("logit_bias",))
    return decorate(greedy(function))


def recommended_sampling(generation_config: bytes | None) -> dict[str, Any]:
    """The sampling fields a checkpoint recommends: empty without a file or when the file does not ask to sample.

    `generation_config`: content of a `generation_config.json`. Fields it does not name stay neutral: the defaults of
    the library that wrote it are not the author's recommendation. ArtifactError for content that is no JSON object.
    """
    if generation_config is None:
        return {}
    field = "frontend/generation_config.json"
    try:
        config = json.loads(generation_config)
    except ValueError as error:
        raise ArtifactError(f"not JSON: {error}", field=field) from error
    if not isinstance(config, dict):
        raise ArtifactError(f"a JSON object was expected, got {type(config).__name__}", field=field)
    if not config.get("do_sample", False):
        return {}
    found = {name: config[name] for name in RECOMMENDED if config.get(name) is not None}
    return {"temperature": 1.0, **found}


def choose_sampling(arguments: Mapping[str, Any], *, greedy: bool, recommended: Mapping[str, Any]) -> SamplingParams:
    """The sampling of a request: given options over the recommended fields; greedy when neither sets a temperature.

    RequestError when a given option would change nothing (`--top-p` of a greedy answer) or contradicts `--greedy`.
    """
    given = {name: value for name, value in field_values(SamplingParams, arguments).items() if value is not None}
    if greedy and given.get("temperature", 0) != 0:
        raise RequestError(
            f"--greedy and --temperature {given['temperature']:g} contradict each other", param="temperature"
        )
    params = SamplingParams(**{**recommended, **({"temperature": 0.0} if greedy else {}), **given})
    idle = [name for name in RANDOM_ONLY if name in given]
    if params.temperature == 0 and idle:
        flag = "--" + idle[0].replace("_", "-")
        raise RequestError(
            f"{flag} changes nothing in a greedy answer; set --temperature above 0 or leave it out", param=idle[0]
        )
    return params
