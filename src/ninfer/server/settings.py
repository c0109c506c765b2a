"""What the operator of a server asked for, besides the engine's settings."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from ninfer.errors import ConfigError

ToolParser = Literal["auto", "hermes", "qwen-xml", "none"]


def _help(text: str) -> dict[str, str]:
    """Metadata of a field: meaning, unit, range and the reason of its default, for CLI help and docs."""
    return {"help": text}


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of a server; each field's meaning is in its metadata, also shown as CLI help.

    A bad value is a ConfigError that names field, value and limits.
    """

    host: str = field(
        default="127.0.0.1",
        metadata=_help(
            "Address to listen on. The default is reachable from this machine only; anything else should have "
            "--api-key."
        ),
    )
    port: int = field(
        default=8080, metadata=_help("Port to listen on, 0 to 65535. 0: a free one; the line at the start names it.")
    )
    api_key: str | None = field(
        default=None,
        metadata=_help(
            "Key that every request but /health must bring, as `Authorization: Bearer KEY` or `x-api-key: KEY`. "
            "NINFER_API_KEY sets it without showing it in the list of processes."
        ),
    )
    model_id: str | None = field(
        default=None, metadata=_help("Name of the model in requests and answers. Otherwise the MODEL argument's name.")
    )
    max_pending_requests: int = field(
        default=16,
        metadata=_help(
            "Requests that may wait beside the running ones, >= 0; one more is refused with 429. 16: what a person "
            "still waits for."
        ),
    )
    pending_timeout_ms: int = field(
        default=30_000,
        metadata=_help(
            "Milliseconds from the arrival of a request until it must have started, > 0; then it fails with 503."
        ),
    )
    request_timeout_ms: int = field(
        default=0,
        metadata=_help(
            "Milliseconds from the arrival of a request until it must have ended, >= 0; then it fails with an error, "
            "in a stream too. 0: no limit, because only the client knows how long an answer may take."
        ),
    )
    drain_timeout_ms: int = field(
        default=30_000,
        metadata=_help(
            "Milliseconds that running requests may still take after SIGTERM, >= 0; then they fail with an error."
        ),
    )
    default_max_tokens: int | None = field(
        default=None,
        metadata=_help(
            "Tokens of an answer at most where the request names no limit, >= 1. Otherwise it may fill the context."
        ),
    )
    default_thinking_budget: int | None = field(
        default=None,
        metadata=_help(
            "Tokens of thinking at most where the request names no budget, >= 0; then thinking is closed and the "
            "answer begins. Otherwise thinking has no limit of its own."
        ),
    )
    tool_parser: ToolParser = field(
        default="auto",
        metadata=_help(
            "Form of the model's tool calls: hermes (JSON in <tool_call>), qwen-xml (<function=name> in <tool_call>), "
            "none (calls stay text). auto: what the chat template teaches."
        ),
    )
    max_request_mib: int = field(
        default=32, metadata=_help("Size of a request's body at most, MiB, >= 1; more is refused with 413.")
    )
    response_store_max_records: int = field(
        default=1024,
        metadata=_help(
            "Answers of /v1/responses that are kept for later requests, >= 0; those used longest ago make room."
        ),
    )
    response_store_max_mib: int = field(
        default=64,
        metadata=_help(
            "Size of the kept answers with their conversations at most, MiB, >= 1; the plan counts all of it."
        ),
    )
    request_log_jsonl: str | None = field(
        default=None, metadata=_help("File that gets one JSON line per event of every request; it is appended to.")
    )
    log_stats_interval_ms: int = field(
        default=5000,
        metadata=_help(
            "Milliseconds between throughput lines of the request log and the intervals of /metrics, >= 100. Nothing "
            "is written while the server is idle."
        ),
    )
    cors: bool = field(
        default=False, metadata=_help("Let pages of any origin use this server from a browser. Off: none may.")
    )

    def __post_init__(self) -> None:
        limits = {
            "port": (0, 65535),
            "max_pending_requests": (0, 100_000),
            "pending_timeout_ms": (1, None),
            "request_timeout_ms": (0, None),
            "drain_timeout_ms": (0, None),
            "default_max_tokens": (1, None),
            "default_thinking_budget": (0, None),
            "max_request_mib": (1, 4096),
            "response_store_max_records": (0, 1_000_000),
            "response_store_max_mib": (1, 1 << 20),
            "log_stats_interval_ms": (100, None),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if value is not None and (value < low or (high is not None and value > high)):
                limit = f">= {low}" if high is None else f"in [{low}, {high}]"
                raise ConfigError(f"{name} must be {limit}, got {value}")
        if self.tool_parser not in get_args(ToolParser):
            raise ConfigError(f"tool_parser must be one of {', '.join(get_args(ToolParser))}, got {self.tool_parser!r}")
        for name in ("host", "api_key", "model_id", "request_log_jsonl"):
            if getattr(self, name) == "":
                raise ConfigError(f"{name} must not be empty")

    @property
    def response_store_bytes(self) -> int:
        """What the kept answers may take."""
        return self.response_store_max_mib << 20 if self.response_store_max_records else 0

    def to_dict(self) -> dict[str, object]:
        """JSON values for logs; the key is not among them."""
        shown = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "api_key"}
        return {**shown, "api_key_configured": self.api_key is not None}
