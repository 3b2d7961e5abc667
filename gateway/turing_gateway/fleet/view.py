"""What a gateway believes of one engine: kept by its Link, read by picker, metrics and fronts."""

import enum

import msgspec

from turing_protocol.admission import Room
from turing_protocol.messages import Limits, ModelInfo, State, Stats


class LinkState(enum.IntEnum):
    """Where the connection to an engine stands; new work goes to ``READY`` only."""

    DIALING = 0
    GREETING = 1
    READY = 2
    DRAINING = 3
    LOST = 4


class EngineView(msgspec.Struct, kw_only=True, eq=False):
    """One engine as seen from here.

    What a Welcome told (``name`` to ``adapters``) and the last ``stats`` outlive a lost link, so
    that models and assets stay known; they describe a running engine only while ``alive``.
    """

    endpoint: str
    """Address that is dialled."""
    state: LinkState = LinkState.LOST
    why: str = "not dialled yet"
    """Reason of the last loss; empty while the link is up."""
    leaving: bool = False
    """The address is gone from discovery: no new work, closed after the last stream."""
    name: str = ""
    epoch: int = 0
    info: ModelInfo | None = None
    limits: Limits | None = None
    assets: dict[str, str] = {}
    """Asset name → SHA-256 of its bytes."""
    adapters: tuple[str, ...] = ()
    stats: Stats | None = None
    heard: float = 0.0
    """Monotonic time of the last Stats (or Welcome)."""
    rtt: float = 0.0
    """Seconds between the last Ping and its Pong."""
    own_pages: int = 0
    """Whole footprint of the sequences that this gateway has open there."""
    own_streams: int = 0
    fresh_pages: int = 0
    """The part of ``own_pages`` that was sent after the last Stats and is not counted in it."""
    fresh_streams: int = 0

    @property
    def alive(self) -> bool:
        """Whether the engine is connected and heard of."""
        return self.state in (LinkState.READY, LinkState.DRAINING)

    @property
    def ready(self) -> bool:
        """Whether the engine takes new work."""
        loaded = self.stats is None or self.stats.state == State.READY
        return self.state == LinkState.READY and not self.leaving and loaded

    @property
    def load(self) -> int:
        """Pages spoken for: what the engine reports and what was sent since, or more if it is ours.

        Counts the whole footprint of running and waiting sequences.
        """
        if self.stats is None:
            return self.own_pages
        reported = max(self.stats.reserved_pages, self.stats.pages_used)
        return max(reported + self.fresh_pages, self.own_pages)

    @property
    def sequences(self) -> int:
        """Sequences that run or wait there, counted as ``load`` counts pages."""
        if self.stats is None:
            return self.own_streams
        reported = self.stats.running + self.waiting
        return max(reported + self.fresh_streams, self.own_streams)

    @property
    def waiting(self) -> int:
        """Sequences of all lanes that wait in the engine, as last reported."""
        return sum(self.stats.waiting) if self.stats else 0

    def room(self, limits: Limits) -> Room:
        """Return what admission is decided on: the last Stats and what was sent since."""
        stats = self.stats
        return Room(
            limits.pages_total,
            self.load,
            self.waiting,
            limits.max_waiting,
            stats.waiting_tokens if stats else 0,
            stats.tokens_per_s if stats else 0.0,
        )
