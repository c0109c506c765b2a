"""Serve a model on this machine, ask it through OpenAI's own client, and show where the time went.

python examples/serve_and_ask.py smollm2 "What is the capital of France?"     (needs: pip install openai)
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any

from openai import OpenAI

AT_MOST_S = 300


@contextmanager
def served(model: str) -> Iterator[str]:
    """The URL of a server that runs meanwhile; it is gone afterwards, whatever happened."""
    command = [sys.executable, "-m", "ninfer", "serve", model, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        watchdog = Timer(AT_MOST_S, server.kill)
        watchdog.start()
        try:
            # One line on stdout says where it is, once the model is loaded.
            line = server.stdout.readline() if server.stdout else ""
            address = re.search(r" at (http://\S+)", line)
            if address is None:
                sys.exit("the server did not start")
            print(line, end="")
            yield address.group(1)
        finally:
            server.terminate()
            server.wait()
            watchdog.cancel()


def main(model: str, question: str) -> None:
    with served(model) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="none", timeout=AT_MOST_S)
        (served_model,) = client.models.list()
        messages: Any = [{"role": "user", "content": question}]
        stream = client.chat.completions.create(
            model=served_model.id, messages=messages, temperature=0, max_tokens=200, stream=True
        )
        timings: dict[str, Any] = {}
        for chunk in stream:
            print("".join(choice.delta.content or "" for choice in chunk.choices), end="", flush=True)
            timings = (chunk.model_extra or {}).get("timings", timings)
        phases = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in timings["seconds"].items())
        print(f"\n[{timings['prompt_n']} tokens read, {timings['predicted_n']} written: {phases}]")


if __name__ == "__main__":
    main(*sys.argv[1:3])
