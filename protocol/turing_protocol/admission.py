"""One rule for both halves: admit, try again later (429), shed (503), or never (400).

A gateway asks it before anything is sent, from Stats and what it has sent since, which is cheap and
may be a little behind; the engine, which keeps the books, asks it again and is the judge. O(1).
"""

from math import ceil

import msgspec

from turing_protocol.errors import Code
from turing_protocol.lanes import Lane
from turing_protocol.prefix import PAGE

AMPLE = 90
"""Percent of all pages up to which every lane is admitted."""
FULL = 95
"""Percent above which work that can wait is shed."""
RETRY_MS = 2000
"""What a client is told to wait where nothing is known of how fast the engine is."""
RETRY_LEAST_MS = 1000
RETRY_MOST_MS = 30_000


class Room(msgspec.Struct, frozen=True):
    """What is known of an engine's space and speed; pages count whole footprints."""

    pages_total: int
    load: int
    waiting: int
    max_waiting: int
    waiting_tokens: int = 0
    tokens_per_s: float = 0.0
    """Output of the last seconds; 0 is not known."""


class Verdict(msgspec.Struct, frozen=True):
    """``code`` is ``None`` for admitted, else why not; ``retry_ms`` 0 means never."""

    code: Code | None = None
    message: str = ""
    retry_ms: int = 0


ADMIT = Verdict()


def pages_needed(tokens: int) -> int:
    """Return the pages that ``tokens`` (prompt and max_tokens) fill or begin."""
    return -(-tokens // PAGE)


def mark(lane: Lane) -> float:
    """Return the part of all pages up to which there is room for ``lane`` without waiting."""
    return 1.0 if lane == Lane.INTERACTIVE else AMPLE / 100


def decide(room: Room, lane: Lane, pages: int, count: int = 1) -> Verdict:
    """Judge ``count`` sequences of ``pages`` each.

    Interactive work waits in the engine's queue until that is full. Other lanes are refused above
    the watermarks, except by an idle engine: what fits it alone is never refused for ever.
    """
    total = room.pages_total
    if pages > total:
        return Verdict(
            Code.NEVER_FITS, f"the request needs {pages} pages of KV memory; there are {total}"
        )
    if room.waiting >= room.max_waiting:
        words = f"{room.waiting} requests are waiting already; try again later"
        return Verdict(Code.OVERLOADED, words, retry_ms(room.waiting_tokens, room.tokens_per_s))
    after = room.load + pages * count
    if lane == Lane.INTERACTIVE or room.load == 0 or after * 100 <= AMPLE * total:
        return ADMIT
    code = Code.OVERLOADED if after * 100 <= FULL * total else Code.SHED
    words = f"KV memory would be {after * 100 / total:.1f} % full; the {lane.name.lower()} lane"
    excess = ceil(after - AMPLE * total / 100) * PAGE
    wait = retry_ms(excess, room.tokens_per_s)
    return Verdict(code, f"{words} is taken up to {AMPLE} %", wait)


def retry_ms(backlog: int, tokens_per_s: float) -> int:
    """Return the wait until ``backlog`` tokens are worked off, 1 to 30 s.

    Output is the slow kind of work, so its rate errs on the long side for prompts.
    """
    if tokens_per_s <= 0:
        return RETRY_MS
    wait = ceil(min(backlog / tokens_per_s * 1000, RETRY_MOST_MS))
    return max(RETRY_LEAST_MS, wait)
