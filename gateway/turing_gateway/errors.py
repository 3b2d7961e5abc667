"""Error codes as HTTP: status, the body each API has for them, and when to retry."""

import math
from collections.abc import Callable

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from turing_protocol.admission import RETRY_MS
from turing_protocol.errors import Code, TuringError
from turing_protocol.lanes import Lane

_INVALID = "invalid_request_error"
_OVERLOADED = "overloaded_error"

_HTTP: dict[Code, tuple[int, str, str | None]] = {
    Code.INVALID: (400, _INVALID, None),
    Code.UNAUTHORIZED: (401, "authentication_error", "invalid_api_key"),
    Code.FORBIDDEN: (403, "permission_error", "forbidden"),
    Code.NOT_FOUND: (404, _INVALID, "not_found"),
    Code.METHOD_NOT_ALLOWED: (405, _INVALID, "method_not_allowed"),
    Code.MODEL_NOT_FOUND: (404, _INVALID, "model_not_found"),
    Code.TOO_LARGE: (413, _INVALID, "request_too_large"),
    Code.UNSUPPORTED: (400, _INVALID, "unsupported_parameter"),
    Code.CONTEXT_TOO_LONG: (400, _INVALID, "context_length_exceeded"),
    Code.CONSTRAINT_INVALID: (400, _INVALID, "invalid_json_schema"),
    Code.NEVER_FITS: (400, _INVALID, "never_fits"),
    Code.OVERLOADED: (429, "rate_limit_error", "queue_full"),
    Code.SHED: (503, _OVERLOADED, "overloaded"),
    Code.NO_ENGINE: (503, _OVERLOADED, "no_engine"),
    Code.DRAINING: (503, _OVERLOADED, "draining"),
    Code.DEADLINE: (504, "timeout_error", "deadline_exceeded"),
    Code.ENGINE_LOST: (500, "server_error", "engine_lost"),
    Code.STEP_FAILED: (500, "server_error", "step_failed"),
    Code.INTERNAL: (500, "server_error", "internal_error"),
    Code.VERSION: (500, "server_error", "version_mismatch"),
}

_ANTHROPIC = {
    400: _INVALID,
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: _INVALID,
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: _OVERLOADED,
}


class ErrorFields(msgspec.Struct, frozen=True):
    """What went wrong: words, a class of errors, the field or header, and a word for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(msgspec.Struct, frozen=True):
    """The body of an error under OpenAI's paths, and wherever no other API is meant."""

    error: ErrorFields


class AnthropicFields(msgspec.Struct, frozen=True):
    """What went wrong: a class of errors and words."""

    type: str
    message: str


class AnthropicError(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """The body of an error under Anthropic's paths."""

    error: AnthropicFields
    request_id: str


class OllamaError(msgspec.Struct, frozen=True):
    """The body of an error under Ollama's paths: one sentence."""

    error: str


Shape = Callable[[TuringError, str], tuple[int, bytes]]
"""Status and JSON body of an error of the request with the given id."""


def status_of(code: Code) -> int:
    """Return the HTTP status of ``code``."""
    return _HTTP[code][0]


def envelope(error: TuringError) -> bytes:
    """Return ``error`` as JSON bytes in OpenAI's shape."""
    _, kind, word = _HTTP[error.code]
    param = "model" if error.param is None and error.code is Code.MODEL_NOT_FOUND else error.param
    return msgspec.json.encode(OpenAIError(ErrorFields(error.message, kind, param, word)))


def retry_headers(error: TuringError, lane: Lane | None = None) -> dict[str, str]:
    """Return the headers that steer a client's retries; empty unless the status is 429 or 503.

    ``Retry-After`` has whole seconds as HTTP demands, ``retry-after-ms`` is exact. Shed background
    work is marked not to be retried, so that SDKs do not multiply the load that shed it.
    """
    if status_of(error.code) not in (429, 503):
        return {}
    wait = error.retry_ms or RETRY_MS
    headers = {"retry-after": str(math.ceil(wait / 1000)), "retry-after-ms": str(wait)}
    if error.code is Code.SHED and lane is Lane.BACKGROUND:
        headers["x-should-retry"] = "false"
    return headers


def openai_error(error: TuringError, request_id: str) -> tuple[int, bytes]:
    """Return status and body as OpenAI has them."""
    return status_of(error.code), envelope(error)


def anthropic_error(error: TuringError, request_id: str) -> tuple[int, bytes]:
    """Return status and body as Anthropic has them: what is overloaded is 529 there, not 503."""
    status = 529 if status_of(error.code) == 503 else status_of(error.code)
    what = AnthropicFields(_ANTHROPIC.get(status, "api_error"), error.message)
    return status, msgspec.json.encode(AnthropicError(what, request_id))


def ollama_error(error: TuringError, request_id: str) -> tuple[int, bytes]:
    """Return status and body as Ollama has them: one sentence, in which the field is named."""
    named = error.param is None or error.param in error.message
    words = error.message if named else f"{error.param}: {error.message}"
    return status_of(error.code), msgspec.json.encode(OllamaError(words))


_SHAPES: dict[str, Shape] = {"/v1/messages": anthropic_error, "/api": ollama_error}
"""The API that a path belongs to, itself or what lies under it; OpenAI's for all others."""


def error_response(
    error: TuringError,
    lane: Lane | None = None,
    *,
    shape: Shape = openai_error,
    request_id: str = "",
) -> Response:
    """Return ``error`` as a JSON response in ``shape``."""
    status, body = shape(error, request_id)
    return Response(body, status, retry_headers(error, lane), media_type="application/json")


def refuse(scope: Scope, error: TuringError) -> Response:
    """Return ``error`` as the answer to the request ``scope``, in the shape of its API."""
    state = scope.get("state", {})
    return error_response(
        error,
        state.get("lane"),
        shape=_shape(scope["path"]),
        request_id=state.get("request_id", ""),
    )


def _shape(path: str) -> Shape:
    for root, shape in _SHAPES.items():
        if path == root or path.startswith(root + "/"):
            return shape
    return openai_error


def error_body(path: str) -> type[msgspec.Struct]:
    """Return what the body of an error is under ``path``."""
    bodies: dict[Shape, type[msgspec.Struct]] = {
        openai_error: OpenAIError,
        anthropic_error: AnthropicError,
        ollama_error: OllamaError,
    }
    return bodies[_shape(path)]
