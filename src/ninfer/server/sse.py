"""Server-sent events."""

from __future__ import annotations

import msgspec

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # a proxy that collects events defeats their purpose
}
HEARTBEAT = b": still working\n\n"
"""A comment, which clients skip: keeps proxies and clients from giving up on a silent stream."""
DONE = b"data: [DONE]\n\n"
"""The end of an OpenAI stream."""

_encoder = msgspec.json.Encoder()


def event(data: object) -> bytes:
    """An event without a name, its data one line of JSON."""
    return b"data: " + _encoder.encode(data) + b"\n\n"


def named(name: str, data: object) -> bytes:
    """An event with a name."""
    return f"event: {name}\n".encode() + event(data)
