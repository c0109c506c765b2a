"""Ask a model one question from Python and print the answer as it is made.

python examples/generate.py smollm2 "What is the capital of France?"
"""

from __future__ import annotations

import sys

from ninfer.artifact import Artifact
from ninfer.convert.library import resolve_model
from ninfer.engine import Delta, EngineConfig, Finished, GenerationRequest, detect_hardware, load_engine, plan_engine
from ninfer.text.frontend import load_frontend


def main(model: str, question: str) -> None:
    with Artifact.open(resolve_model(model)) as artifact:
        tokenizer, template = load_frontend(artifact.find_resource)
        if template is None:
            sys.exit("this model has no chat template")
        prompt_ids = template.encode([{"role": "user", "content": question}])

        # The plan knows every byte before one is allocated; what does not fit is an error that says what would.
        plan = plan_engine(EngineConfig(max_context=1024), artifact, detect_hardware())
        with load_engine(plan, artifact, tokenizer) as engine:
            for event in engine.generate(GenerationRequest(tuple(prompt_ids), max_new=200)):
                match event:
                    case Delta():
                        print(event.text, end="", flush=True)
                    case Finished():
                        print(f"\n[{event.reason.value}, {event.usage.completion} tokens]")


if __name__ == "__main__":
    main(*sys.argv[1:3])
