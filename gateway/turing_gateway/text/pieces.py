"""What a parser of the answer says about each stretch of the text that it has read."""

import enum
from typing import NamedTuple


class Kind(enum.Enum):
    """What a stretch of an answer is to a client."""

    TEXT = enum.auto()
    THINK = enum.auto()
    CALL = enum.auto()
    """The beginning of a tool call; the piece's text is the name of the tool."""
    ARGUMENTS = enum.auto()
    """A fragment of the JSON object that the call before is made with."""


class Piece(NamedTuple):
    """One stretch: what to show of it, and its length in characters, markup included."""

    kind: Kind
    text: str
    size: int


def plain(text: str) -> list[Piece]:
    """Return ``text`` as the answer itself; no piece for none."""
    return [Piece(Kind.TEXT, text, len(text))] if text else []


def held_back(text: str, tag: str) -> int:
    """Return how many characters at the end of ``text`` may be the beginning of ``tag``."""
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:size]):
            return size
    return 0
