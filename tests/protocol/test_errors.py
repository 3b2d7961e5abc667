"""The one exception type, and codes that may never be renumbered."""

from turing_protocol.errors import Code, TuringError

WIRE_1 = """
INVALID UNAUTHORIZED FORBIDDEN NOT_FOUND METHOD_NOT_ALLOWED
MODEL_NOT_FOUND TOO_LARGE UNSUPPORTED CONTEXT_TOO_LONG CONSTRAINT_INVALID
NEVER_FITS OVERLOADED SHED NO_ENGINE DRAINING
DEADLINE ENGINE_LOST STEP_FAILED INTERNAL VERSION
"""


def test_codes_keep_their_numbers() -> None:
    assert [code.name for code in sorted(Code)][: len(WIRE_1.split())] == WIRE_1.split()
    assert [int(code) for code in sorted(Code)] == list(range(1, len(Code) + 1))


def test_an_error_carries_what_a_front_needs() -> None:
    error = TuringError(Code.OVERLOADED, "the queue is full", param="lane", retry_ms=2000)
    assert (error.code, error.message, error.param, error.retry_ms) == (
        Code.OVERLOADED,
        "the queue is full",
        "lane",
        2000,
    )
    assert str(error) == "the queue is full"


def test_param_and_retry_are_optional() -> None:
    error = TuringError(Code.INTERNAL, "it broke")
    assert error.param is None and error.retry_ms == 0
