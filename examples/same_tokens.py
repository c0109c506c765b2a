"""The determinism law, seen: the same requests alone and together, in small chunks and large, give the same tokens.

python examples/same_tokens.py smollm2
"""

from __future__ import annotations

import sys

from ninfer.artifact import Artifact
from ninfer.convert.library import resolve_model
from ninfer.decoding import SamplingParams
from ninfer.engine import Delta, EngineConfig, GenerationRequest, detect_hardware, load_engine, plan_engine
from ninfer.text.frontend import load_frontend

TEXTS = ("The sea was", "Two plus two is", "def fibonacci(n):\n")
SAMPLING = SamplingParams(temperature=0.8, top_p=0.95, seed=7)


def main(model: str) -> None:
    with Artifact.open(resolve_model(model)) as artifact:
        tokenizer, _ = load_frontend(artifact.find_resource)
        if tokenizer is None:
            sys.exit("this model has no tokenizer")
        requests = [GenerationRequest(tuple(tokenizer.encode_prompt(t)), 24, SAMPLING) for t in TEXTS]
        together = answers(artifact, requests, EngineConfig(max_context=256, max_concurrency=3, prefill_chunk=128))
        alone = answers(artifact, requests, EngineConfig(max_context=256, max_concurrency=1, prefill_chunk=3))
        for text, ids in zip(TEXTS, together, strict=True):
            print(f"{text!r} -> {tokenizer.decode(ids)!r}")
        print("same tokens" if together == alone else "DIFFERENT TOKENS")


def answers(artifact: Artifact, requests: list[GenerationRequest], config: EngineConfig) -> list[list[int]]:
    """Token ids of each request; as many run at once as the configuration allows."""
    with load_engine(plan_engine(config, artifact, detect_hardware()), artifact) as engine:
        found: dict[int, list[int]] = {engine.submit(request): [] for request in requests}
        for event in engine.drain():
            if isinstance(event, Delta):
                found[event.request_id].extend(event.ids)
    return list(found.values())


if __name__ == "__main__":
    main(sys.argv[1])
