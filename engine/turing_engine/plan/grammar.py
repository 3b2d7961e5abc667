"""What the scheduler sees of a grammar that constrains a sequence."""

import enum
from typing import Protocol


class Verdict(enum.IntEnum):
    """What became of a sampled token."""

    GO = 0
    """It is part of the answer, and more may follow."""
    DONE = 1
    """It is part of the answer and completes it."""
    END = 2
    """It ends the answer without being part of it."""
    RETRY = 3
    """It is legal, but behind it the answer could not be ended in time: draw again."""
    BROKEN = 4
    """The grammar failed; ``error`` says why, and the sequence cannot go on."""


class Grammar(Protocol):
    """Follows the output of one sequence. ``left`` counts tokens up to the sequence's limit."""

    @property
    def error(self) -> str:
        """Return why the grammar failed; empty while it works."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what the client should know of the answer so far."""

    def mask(self, words: memoryview, left: int) -> None:
        """Write the ids that may come next, id ``i`` as bit ``i % 32`` of int32 ``i // 32``.

        ``left`` includes the token to come. Of a grammar that failed the mask allows everything.
        """

    def accept(self, token: int, left: int) -> Verdict:
        """Take a sampled token, behind which ``left`` more may come.

        After ``RETRY`` nothing has changed but that ``mask`` allows less.
        """
