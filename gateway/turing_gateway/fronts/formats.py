"""What clients ask an answer to look like, as constraints; every front makes them here."""

from typing import Any, Final

import msgspec

from turing_protocol.errors import Code, TuringError
from turing_protocol.sampling import Constraint

MAX_FORMAT: Final = 256 << 10
"""Bytes of a schema or grammar; an engine takes no more."""


def json_object() -> Constraint:
    """Return the constraint for any JSON object."""
    return Constraint("json_object")


def json_schema(schema: dict[str, Any], field: str, *, strict: bool) -> Constraint:
    """Return the constraint for JSON that fits ``schema``, which ``field`` of the request holds.

    ``strict`` refuses keywords that cannot be kept to, and ends the answer within its tokens;
    otherwise such keywords are ignored and named in the answer's warnings.
    """
    return written("json_schema", msgspec.json.encode(schema).decode(), field, strict=strict)


def written(kind: str, text: str, field: str, *, strict: bool) -> Constraint:
    """Return the constraint of ``kind`` whose source is ``text``.

    The engine that compiles it is the judge of everything but its size.
    """
    if len(text.encode(errors="replace")) > MAX_FORMAT:
        words = f"{field} is larger than {MAX_FORMAT} bytes"
        raise TuringError(Code.CONSTRAINT_INVALID, words, param=field)
    return Constraint(kind, text, strict)
