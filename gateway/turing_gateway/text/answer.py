"""The text of an answer to its pieces: reasoning first, then text and tool calls."""

from collections.abc import Iterator

import msgspec

from turing_gateway.text.pieces import Kind, Piece, plain
from turing_gateway.text.reasoning import Tags, ThinkSplitter
from turing_gateway.text.tools.scanner import Scanner


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """How the answer to one call is to be read; the default is as text and nothing else."""

    tags: Tags | None = None
    inside: bool = False
    """Whether the prompt has opened the reasoning."""
    budget: int | None = None
    """Most tokens of reasoning."""
    end_ids: tuple[int, ...] = ()
    """The tokens of the tag that ends it."""
    visible: frozenset[int] = frozenset()
    """Special tokens that the parsers have to see."""
    forced: bool = False
    """Whether the answer can be nothing but tool calls."""
    parallel: bool = True
    """Whether there may be more than one call."""


class AnswerParser:
    """Parses one answer, whatever the pieces its text comes in."""

    def __init__(self, reading: Reading, tools: Scanner | None = None) -> None:
        tags = reading.tags
        self._think = ThinkSplitter(tags, inside=reading.inside) if tags else None
        self._tools = tools
        self._forced, self._parallel = reading.forced, reading.parallel
        self._dropping = False
        self.calls = 0
        """Tool calls that have begun."""

    @property
    def thinking(self) -> bool:
        """Whether the reasoning has begun and not ended."""
        return self._think is not None and self._think.inside

    @property
    def called(self) -> bool:
        """Whether there are calls and the last one is complete."""
        return self.calls > 0 and not (self._tools and self._tools.open and not self._dropping)

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces that ``text`` completes."""
        return list(self._calls(self._think.feed(text) if self._think else plain(text)))

    def close(self) -> list[Piece]:
        """Return what was held back, at the end of the answer."""
        pieces = list(self._calls(self._think.close() if self._think else []))
        return pieces + [
            self._shown(piece) for piece in (self._tools.close() if self._tools else [])
        ]

    def _calls(self, pieces: list[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            if piece.kind is Kind.TEXT and self._tools is not None:
                yield from map(self._shown, self._tools.feed(piece.text))
            else:
                yield piece

    def _shown(self, piece: Piece) -> Piece:
        """Leave out of ``piece`` what the call does not want."""
        if piece.kind is Kind.CALL:
            self._dropping = self.calls > 0 and not self._parallel
            self.calls += not self._dropping
        silent = self._forced if piece.kind is Kind.TEXT else self._dropping
        return Piece(Kind.TEXT, "", piece.size) if silent else piece
