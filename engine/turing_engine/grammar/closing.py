"""Ends an answer before its tokens run out: always knows a way from here to a legal end.

After every token the known way is brought up to date: it got shorter, it still holds, or another
one is sought. A token behind which no way fits into what is left is sent back and drawn again from
the way itself; where the way fills what is left, only its next token is legal. So once a way fits,
one always fits, and the answer ends in time.
"""

from typing import Final

from llguidance import LLMatcher

from turing_engine.grammar.search import shortest_end, shortest_way
from turing_engine.grammar.vocabulary import Vocabulary

LIMIT: Final = 128
"""States that one search between two steps may look at."""
WINDOW: Final = 256
"""Tokens before the limit from which on, at the latest, a way is known."""
WIDTH: Final = 8
"""The window is at least so many times as long as the shortest answer."""


class Closing:
    """The known way of one answer. ``first`` is one from the start."""

    def __init__(
        self, parser: LLMatcher, vocabulary: Vocabulary, first: list[int], max_tokens: int
    ) -> None:
        self._parser = parser
        self._vocabulary = vocabulary
        self._first = first
        self._window = max(WINDOW, WIDTH * len(first))
        self._way: list[int] | None = first if max_tokens <= self._window else None
        self._refused = False
        self.works = len(first) <= max_tokens
        """Whether the answer will end in time."""
        self.hurried = False
        """Whether tokens were ruled out because the answer had to end."""

    def next(self, left: int) -> list[int] | None:
        """Return the one id that may come next, or none where the answer must end here.

        ``left`` includes the token to come. ``None`` is for no restriction.
        """
        if not self.works or self._way is None:
            return None
        if not self._refused and len(self._way) < left:
            return None
        self.hurried = True
        return self._way[:1]

    def follow(self, token: int, left: int) -> bool:
        """Take note of ``token``, which the parser has taken already and ``left`` may follow.

        False when the answer could not be ended in time: the caller takes the token back.
        """
        if not self.works or left > self._window:
            return True
        if self._way is None:
            self._begin(left)
            return True
        way = self._updated(self._way, token, left)
        self._refused = way is None or len(way) > left
        if way is None or self._refused:
            return False
        self._way = way
        return True

    def _begin(self, left: int) -> None:
        self._way = shortest_way(self._parser, self._vocabulary, hint=self._first, limit=LIMIT)
        self.works = self._way is not None and len(self._way) <= left

    def _updated(self, way: list[int], token: int, left: int) -> list[int] | None:
        if way and token == way[0]:
            self.hurried |= len(way) > left
            return way[1:]
        if len(way) < left and self._vocabulary.ends(self._parser, way):
            return way
        ends = shortest_end(self._parser, self._vocabulary, way)
        if ends is not None and len(ends) < left:
            return ends
        other = shortest_way(self._parser, self._vocabulary, hint=way, limit=LIMIT)
        return min((w for w in (ends, other) if w is not None), key=len, default=None)
