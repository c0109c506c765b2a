"""Every exception NInfer raises, one tree. Each answers: whose fault, what was seen, what is allowed, what to do."""

from __future__ import annotations


class NInferError(Exception):
    """Root of all errors raised on purpose; the message is one sentence a person can act on."""


class RequestError(NInferError):
    """The caller's fault: a value out of range, a context too long, an unsupported field.

    `kind` is a stable machine word (`bad_value`, `context_length_exceeded`, ...); `param` names the field.
    """

    def __init__(self, message: str, *, kind: str = "bad_value", param: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.param = param


class OverloadedError(NInferError):
    """Load, or a server that is going away: the same request may succeed later or elsewhere.

    `kind`: `queue_full`, `queue_timeout` (no place before the deadline), `request_timeout` (not finished before the
    deadline) or `unavailable` (draining or failed). `position`: requests that were waiting in front, where that is
    known; `retry_after_s`: seconds after which another attempt is sensible.
    """

    def __init__(
        self, message: str, *, kind: str, position: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.position = position
        self.retry_after_s = retry_after_s


class FormatError(NInferError):
    """Values that a storage format cannot represent (NaN, infinity, a scale beyond float16)."""


class ArtifactError(NInferError):
    """A model file is at fault: wrong magic, truncated, overlapping, missing tensor.

    `file` and `field` say where; both are part of the message.
    """

    def __init__(self, message: str, *, file: object = None, field: str | None = None) -> None:
        where = ": ".join(str(part) for part in (file, field) if part is not None)
        super().__init__(f"{where}: {message}" if where else message)
        self.file = None if file is None else str(file)
        self.field = field


class RecordError(NInferError):
    """A run record, or a log to make one from, is at fault: damaged, of another version, not what it claims to be."""

    def __init__(self, message: str, *, file: object = None) -> None:
        super().__init__(message if file is None else f"{file}: {message}")


class ConversionError(NInferError):
    """A source cannot be converted: a tensor without a rule, a type we do not import."""


class ConfigError(NInferError):
    """The operator's fault: unknown or contradicting settings; the message names the fields."""


class CapacityError(ConfigError):
    """What was asked does not fit in memory: it takes `needed` bytes.

    `largest` is the largest value of `field` that does fit, None if none.
    """

    def __init__(self, message: str, *, field: str, largest: int | None, needed: int) -> None:
        super().__init__(message)
        self.field = field
        self.largest = largest
        self.needed = needed


class UnsupportedError(NInferError):
    """Valid but not implemented here: an op, format, instruction set or missing extra; the message names it."""


class BackendError(NInferError):
    """The machine's fault at run time: out of memory, non-finite logits."""


class InvariantError(NInferError):
    """Our bug: state that must never be; never caught midway."""


class EngineFailedError(NInferError):
    """An exception that nobody raised on purpose ended the engine; it is the cause of this one."""
