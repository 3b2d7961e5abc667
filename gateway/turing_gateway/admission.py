"""The early answer before anything is sent: admit, try again later (429), or shed (503).

It is cheap and may be a little behind; the engine is the judge of what it takes.
"""

import msgspec

from turing_protocol.errors import Code
from turing_protocol.lanes import Lane
from turing_protocol.prefix import PAGE

AMPLE = 90
"""Percent of all pages up to which every lane is admitted."""
FULL = 95
"""Percent above which work that can wait is shed."""
RETRY_MS = 2000


class Room(msgspec.Struct, frozen=True):
    """What is known of an engine's space; pages count whole footprints."""

    pages_total: int
    load: int
    waiting: int
    max_waiting: int


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
        return Verdict(Code.OVERLOADED, f"{room.waiting} requests are waiting already", RETRY_MS)
    after = room.load + pages * count
    if lane == Lane.INTERACTIVE or room.load == 0 or after * 100 <= AMPLE * total:
        return ADMIT
    code = Code.OVERLOADED if after * 100 <= FULL * total else Code.SHED
    words = f"KV memory would be {after * 100 / total:.1f} % full; the {lane.name.lower()} lane"
    return Verdict(code, f"{words} is taken up to {AMPLE} %", RETRY_MS)
