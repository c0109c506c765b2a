"""Errors as HTTP answers: the one table from class and kind to status and words."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ninfer.errors import BackendError, EngineFailedError, InvariantError, NInferError, OverloadedError, RequestError


@dataclass(frozen=True, slots=True)
class Fault:
    """An error as a client sees it, in no protocol's words.

    code: a stable machine word. position: requests that wait in front, where the server is full.
    """

    status: int
    type: str
    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None
    position: int | None = None

    def headers(self) -> dict[str, str]:
        found = {}
        if self.retry_after_s is not None:
            found["retry-after"] = str(math.ceil(self.retry_after_s))
        if self.position is not None:
            found["x-ninfer-queue-position"] = str(self.position)
        return found


INVALID = "invalid_request_error"

# (class, kind) -> (status, type, code). A kind of None stands for all that have no row of their own.
TABLE: dict[tuple[type[NInferError], str | None], tuple[int, str, str]] = {
    (RequestError, "bad_value"): (400, INVALID, "invalid_value"),
    (RequestError, "unsupported_field"): (400, INVALID, "unsupported_field"),
    (RequestError, "unsupported_content"): (400, INVALID, "unsupported_content"),
    (RequestError, "context_length_exceeded"): (400, INVALID, "context_length_exceeded"),
    (RequestError, "bad_token_id"): (400, INVALID, "invalid_token_id"),
    (RequestError, "template_error"): (400, INVALID, "template_error"),
    (RequestError, "control_text"): (400, INVALID, "control_text"),
    (RequestError, "invalid_text"): (400, INVALID, "invalid_text"),
    (RequestError, "inexpressible_text"): (400, INVALID, "inexpressible_text"),
    (RequestError, "invalid_tool_history"): (400, INVALID, "invalid_tool_history"),
    (RequestError, "invalid_json"): (400, INVALID, "invalid_json"),
    (RequestError, "invalid_api_key"): (401, INVALID, "invalid_api_key"),
    (RequestError, "model_not_found"): (404, INVALID, "model_not_found"),
    (RequestError, "not_found"): (404, INVALID, "not_found"),
    (RequestError, "response_not_found"): (404, INVALID, "response_not_found"),
    (RequestError, "item_not_found"): (404, INVALID, "item_not_found"),
    (RequestError, "method_not_allowed"): (405, INVALID, "method_not_allowed"),
    (RequestError, "body_timeout"): (408, INVALID, "body_timeout"),
    (RequestError, "request_too_large"): (413, INVALID, "request_too_large"),
    (RequestError, "client_gone"): (499, INVALID, "client_gone"),
    (OverloadedError, "queue_full"): (429, "rate_limit_error", "server_overloaded"),
    (OverloadedError, "queue_timeout"): (503, "server_error", "request_queue_timeout"),
    (OverloadedError, "request_timeout"): (504, "server_error", "request_timeout"),
    (OverloadedError, "unavailable"): (503, "server_error", "service_unavailable"),
    (BackendError, None): (500, "server_error", "generation_failed"),
    (EngineFailedError, None): (500, "server_error", "engine_failed"),
    (InvariantError, None): (500, "server_error", "internal_error"),
    (NInferError, None): (500, "server_error", "internal_error"),
}


def fault_of(error: BaseException) -> Fault:
    """The fault of an error. What nobody raised on purpose is an internal error whose words stay inside."""
    if not isinstance(error, NInferError):
        return Fault(500, "server_error", "internal_error", "internal error; the server's log has more")
    kind = getattr(error, "kind", None)
    row = next(row for cls in type(error).__mro__ for row in (TABLE.get((cls, kind)), TABLE.get((cls, None))) if row)
    status, type_word, code = row
    return Fault(
        status,
        type_word,
        code,
        str(error),
        getattr(error, "param", None),
        getattr(error, "retry_after_s", None),
        getattr(error, "position", None),
    )


def openai_error(fault: Fault) -> dict[str, object]:
    """The error body of the OpenAI protocols."""
    return {"error": {"message": fault.message, "type": fault.type, "param": fault.param, "code": fault.code}}
