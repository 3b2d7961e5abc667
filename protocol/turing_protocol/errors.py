"""Error codes shared by gateway and engine, and the one exception type that carries them."""

import enum


class Code(enum.IntEnum):
    """Why a request was not served; each API front maps a code to its own status and words."""

    INVALID = 1
    UNAUTHORIZED = 2
    FORBIDDEN = 3
    NOT_FOUND = 4
    METHOD_NOT_ALLOWED = 5
    MODEL_NOT_FOUND = 6
    TOO_LARGE = 7
    UNSUPPORTED = 8
    CONTEXT_TOO_LONG = 9
    CONSTRAINT_INVALID = 10
    NEVER_FITS = 11
    OVERLOADED = 12
    SHED = 13
    NO_ENGINE = 14
    DRAINING = 15
    DEADLINE = 16
    ENGINE_LOST = 17
    STEP_FAILED = 18
    INTERNAL = 19
    VERSION = 20


class TuringError(Exception):
    """A failure with a code, a sentence for the user, and the field it concerns.

    ``param`` is the dotted path of the request field or the header name, where one is to blame.
    ``retry_ms`` is how long a client should wait before it tries again; 0 means unknown.
    """

    def __init__(
        self, code: Code, message: str, *, param: str | None = None, retry_ms: int = 0
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_ms = retry_ms
