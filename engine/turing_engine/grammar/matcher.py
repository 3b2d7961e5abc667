"""Follows the output of one sequence through its grammar: what may come next, what has come."""

from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from turing_engine.grammar.closing import Closing
from turing_engine.grammar.source import tidy
from turing_engine.grammar.vocabulary import Vocabulary
from turing_engine.plan.grammar import Verdict

_EVERYTHING: Final = -1
"""An int32 with all bits set."""

HURRIED: Final = "the answer was closed early so that it fits into max_tokens"


class Ends(msgspec.Struct, frozen=True):
    """What ends an answer that may end, beside the end-of-sequence ids."""

    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    """Whether the answer goes on for as long as the grammar lets it."""
    min_tokens: int = 0


class Matcher:
    """One sequence's place in a grammar; owned by one thread at a time. See ``plan.Grammar``.

    An id of ``ends`` is legal only where the answer may end, and ends it there. If nothing else is
    legal at another place, it is taken as text.
    """

    def __init__(
        self,
        parser: LLMatcher,
        vocabulary: Vocabulary,
        ends: Ends,
        *,
        closing: Closing | None = None,
        warnings: tuple[str, ...] = (),
    ) -> None:
        self._parser = parser
        self._vocabulary = vocabulary
        self._ends = ends
        self._closing = closing
        self._warnings = warnings
        self._outputs = 0
        self._hidden = sorted(ends.stop_ids | vocabulary.eos_ids)
        self._shown = sorted(ends.stop_ids if ends.ignore_eos else set(self._hidden))
        self.error = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what the client should know of the answer so far."""
        hurried = self._closing is not None and self._closing.hurried
        return (*self._warnings, HURRIED) if hurried else self._warnings

    @property
    def accepting(self) -> bool:
        """Return whether the answer may end here."""
        return bool(self._parser.is_accepting())

    def mask(self, words: memoryview, left: int) -> None:
        """Write the ids that may come next; ``left`` includes the one to come."""
        row: NDArray[np.int32] = np.frombuffer(words, np.int32)
        only = self._closing.next(left) if self._closing is not None else None
        if only is not None:
            row[:] = 0
            _allow(row, only or self._vocabulary.eos_ids)
            return
        self._parser.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if self._fails():
            row[:] = _EVERYTHING
        else:
            self._place_ends(row)

    def accept(self, token: int, left: int) -> Verdict:
        """Take a sampled token, behind which ``left`` more may come."""
        if self._fails():
            return Verdict.BROKEN
        if self._is_end(token):
            return Verdict.END
        if not self._parser.consume_token(token):
            self._fails()
            return Verdict.BROKEN
        if self._closing is not None and not self._closing.follow(token, left):
            self._parser.rollback(1)
            return Verdict.RETRY
        self._outputs += 1
        return Verdict.DONE if self._is_done(left) else Verdict.GO

    def replay(self, token: int, left: int) -> Verdict:
        """Take a token that was sent already, even if the answer cannot be ended in time then."""
        verdict = self.accept(token, left)
        if verdict is not Verdict.RETRY:
            return verdict
        self._closing = None
        return self.accept(token, left)

    def forced(self) -> list[int]:
        """Return the ids that must come next, whatever the model thinks; often none."""
        return list(self._parser.compute_ff_tokens())

    def _place_ends(self, row: NDArray[np.int32]) -> None:
        may_end = self.accepting
        if may_end and self._enough:
            _forbid(row, self._hidden)
            _allow(row, self._shown)
        elif may_end or self._ends.stop_ids:
            before = row.copy()
            _forbid(row, self._hidden)
            if not row.any():
                row[:] = before
        if not row.any():
            _allow(row, self._vocabulary.eos_ids)

    @property
    def _enough(self) -> bool:
        return self._outputs >= self._ends.min_tokens

    def _is_end(self, token: int) -> bool:
        if token in self._vocabulary.eos_ids:
            return True
        return token in self._ends.stop_ids and self.accepting and self._enough

    def _is_done(self, left: int) -> bool:
        if self._parser.is_stopped():
            return True
        closes = self._closing is not None and self._closing.works
        return closes and left == 0 and self.accepting

    def _fails(self) -> bool:
        if not self.error and self._parser.is_error():
            self.error = tidy(self._parser.get_error())
        return bool(self.error)


def _allow(row: NDArray[np.int32], ids: Iterable[int]) -> None:
    words = row.view(np.uint32)
    for token in ids:
        words[token >> 5] |= np.uint32(1 << (token & 31))


def _forbid(row: NDArray[np.int32], ids: Iterable[int]) -> None:
    words = row.view(np.uint32)
    for token in ids:
        words[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
