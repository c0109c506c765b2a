"""Given options win over what the model recommends, which wins over greedy; an option without effect is refused."""

from __future__ import annotations

import json

import pytest

from ninfer.cli.sampling import choose_sampling, recommended_sampling
from ninfer.decoding import SamplingParams
from ninfer.errors import ArtifactError, RequestError

CONFIG = json.dumps({"do_sample": True, "temperature": 0.6, "top_p": 0.95, "eos_token_id": 2}).encode()


def choose(recommended=None, *, greedy=False, **given) -> SamplingParams:
    return choose_sampling(given, greedy=greedy, recommended=recommended or {})


def test_recommendation_of_the_artifact() -> None:
    assert recommended_sampling(None) == {}
    assert recommended_sampling(b"{}") == {}
    assert recommended_sampling(b'{"do_sample": false, "temperature": 0.6}') == {}
    assert recommended_sampling(b'{"do_sample": true}') == {"temperature": 1.0}
    assert recommended_sampling(CONFIG) == {"temperature": 0.6, "top_p": 0.95}


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff"])
def test_broken_recommendation_is_the_files_fault(content) -> None:
    with pytest.raises(ArtifactError, match="generation_config"):
        recommended_sampling(content)


def test_priority() -> None:
    recommended = recommended_sampling(CONFIG)
    assert choose() == SamplingParams()
    assert choose(recommended) == SamplingParams(temperature=0.6, top_p=0.95)
    assert choose(recommended, temperature=0.9, top_k=7) == SamplingParams(temperature=0.9, top_p=0.95, top_k=7)
    assert choose(recommended, greedy=True).is_greedy
    assert choose(recommended, greedy=True, presence_penalty=0.5).presence_penalty == 0.5


def test_contradiction_and_options_without_effect_are_refused() -> None:
    with pytest.raises(RequestError, match="contradict"):
        choose(greedy=True, temperature=0.5)
    for given in ({"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"seed": 1}):
        with pytest.raises(RequestError, match="changes nothing in a greedy answer"):
            choose(**given)
    assert choose(temperature=0.5, seed=1).seed == 1


def test_values_out_of_range_name_the_field() -> None:
    with pytest.raises(RequestError, match="temperature"):
        choose(temperature=3.0)
