"""Results of vLLM's serving benchmark (`vllm bench serve`, formerly benchmark_serving.py) with `--save-detailed`.

Times were taken by the client. A result that was saved without details has sums only, from which nothing can be judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ninfer.bench.imports.imported import Imported, without
from ninfer.bench.records.schema import Prompt, RequestRow, Response, RowSeconds, RowUsage, digest_of
from ninfer.errors import RecordError

DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors")
SUMS = ("completed", "total_input_tokens", "total_output_tokens", "request_throughput", "output_throughput")
SCENARIO = "requests"


def is_of(documents: Sequence[Any]) -> bool:
    return len(documents) == 1 and isinstance(documents[0], dict) and {"completed", "model_id"} <= documents[0].keys()


def read(documents: Sequence[Mapping[str, Any]]) -> list[Imported]:
    """The one run of a result; RecordError without details."""
    result = documents[0]
    if missing := [name for name in ("output_lens", "ttfts", "itls") if name not in result]:
        raise RecordError(f"has no {', '.join(missing)}: values of each request are saved with --save-detailed")
    count = len(result["ttfts"])
    lengths = {name: len(result[name]) for name in DETAILS if name in result}
    if set(lengths.values()) != {count}:
        raise RecordError(f"values of each request differ in number: {lengths}")
    prompts = [_prompt(number, result) for number in range(count)]
    return [
        Imported(
            facts=_facts(result),
            prompts=prompts,
            samples=[_sample(prompts[number], number, result) for number in range(count)],
            reported={name: result[name] for name in SUMS if name in result},
            extra=without(result, DETAILS),
        )
    ]


def _facts(result: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM sends requests at times drawn for a rate; an infinite one sends all at once, within the concurrency."""
    facts: dict[str, Any] = {"engine.measured_at": "client", "artifact.model": result["model_id"]}
    if backend := result.get("backend", result.get("endpoint_type")):
        facts["settings.backend"] = backend
    if "request_rate" in result:
        is_closed = result["request_rate"] == "inf"
        facts["load.pattern"] = "closed" if is_closed else "open"
        facts["load.rate"] = None if is_closed else result["request_rate"]
        facts["settings.burstiness"] = result.get("burstiness")
    if "max_concurrency" in result:
        facts["load.concurrency"] = result["max_concurrency"]
    return facts


def _prompt(number: int, result: Mapping[str, Any]) -> Prompt:
    """A prompt by its place and length: all that a result says of it."""
    lengths = result.get("input_lens")
    options = {} if lengths is None else {"prompt_tokens": lengths[number]}
    return Prompt(id=f"request-{number + 1:04d}", scenario=SCENARIO, body=None, max_new=None, options=options)


def _sample(prompt: Prompt, number: int, result: Mapping[str, Any]) -> tuple[RequestRow, Response | None]:
    ttft, gaps, completion = (result[name][number] for name in ("ttfts", "itls", "output_lens"))
    text = result["generated_texts"][number] if "generated_texts" in result else None
    message = result["errors"][number] if "errors" in result else ""
    row = RequestRow(
        prompt=prompt.id,
        repeat=0,
        order=number,
        usage=RowUsage(prompt_tokens=prompt.options.get("prompt_tokens"), completion_tokens=completion),
        seconds=RowSeconds(ttft=ttft, decode=sum(gaps), total=ttft + sum(gaps)),
        finish=None if message else "unrecorded",
        is_empty=None if text is None or message else not text.strip(),
        text_digest=None if text is None else digest_of(text),
        error={"kind": "request failed", "message": message} if message else None,
    )
    times = [ttft]
    for gap in gaps:
        times.append(times[-1] + gap)
    return row, Response(text=text, token_seconds=times)
