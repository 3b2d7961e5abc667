"""Which gateway is waiting for which sequence, and the grouping of events into Steps. No I/O.

A gateway has a session from its ``Hello`` on. Whatever a session loses without the gateway's doing
(its lease ended, it stopped reading) is owed to it as one ``Failed`` per stream, so that a gateway
that was only asleep never waits for ever.
"""

from collections.abc import Iterable

import msgspec

from turing_engine.plan.sequence import Sequence
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import Failed, Step, StreamEvent

LEASE_SECONDS = 10.0
"""Silence after which a gateway's streams are dropped."""
FORGET_SECONDS = 600.0
"""Silence after which a gateway has to say Hello again."""


class Stream(msgspec.Struct, eq=False):
    """One accepted Submit: its sequence, and what only this engine's life of it knows."""

    sequence: Sequence
    prior: int = 0
    """Output tokens that another engine generated."""
    last_at: float = 0.0
    """When its latest token was sent, 0 before the first."""

    @property
    def generated(self) -> int:
        """Output tokens that this engine generated."""
        return self.sequence.output_len - self.prior


class _Session(msgspec.Struct, eq=False):
    heard: float
    last_rid: int = -1
    streams: dict[int, Stream] = {}
    owed: set[int] = set()
    """Streams that were dropped, while the gateway could not be told."""
    cut: bool = False
    """Frames are being dropped, so more may become owed."""


class Sessions:
    """All gateways of one engine. Owned by the core; the clock is passed in, in seconds."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, _Session] = {}
        self._events: dict[bytes, list[StreamEvent]] = {}

    def __len__(self) -> int:
        """Streams that have not ended."""
        return sum(len(session.streams) for session in self._sessions.values())

    def hello(self, gateway: bytes, now: float) -> list[Stream]:
        """Open or reset the session of ``gateway``; return the streams it held, now dropped."""
        old = self._sessions.pop(gateway, None)
        self._events.pop(gateway, None)
        self._sessions[gateway] = _Session(heard=now)
        return list(old.streams.values()) if old else []

    def hear(self, gateway: bytes, now: float) -> None:
        """Renew the lease, and say now what the gateway could not be told before."""
        session = self._sessions.get(gateway)
        if session is None:
            return
        session.heard = max(session.heard, now)
        if session.cut:
            return
        for rid in sorted(session.owed):
            self.tell(gateway, _lost(rid))
        session.owed.clear()

    def claim(self, gateway: bytes, rid: int) -> bool:
        """Take ``rid`` for a new stream; False when it was used before and must be ignored.

        A gateway without a session is ``Code.ENGINE_LOST``: its Hello came to another process, or
        too long ago.
        """
        session = self._sessions.get(gateway)
        if session is None:
            raise TuringError(Code.ENGINE_LOST, "this engine does not know the gateway")
        if rid <= session.last_rid:
            return False
        session.last_rid = rid
        return True

    def open(self, stream: Stream) -> None:
        """Keep ``stream`` under the (gateway, rid) of its sequence, which was claimed before."""
        gateway, rid = stream.sequence.owner
        self._sessions[gateway].streams[rid] = stream

    def find(self, owner: tuple[bytes, int]) -> Stream:
        """Return the open stream of ``owner``; ``KeyError`` when there is none."""
        gateway, rid = owner
        return self._sessions[gateway].streams[rid]

    def holds(self, sequence: Sequence) -> bool:
        """Whether the stream of ``sequence`` is open."""
        gateway, rid = sequence.owner
        session = self._sessions.get(gateway)
        stream = session.streams.get(rid) if session else None
        return stream is not None and stream.sequence is sequence

    def close(self, owner: tuple[bytes, int]) -> Stream | None:
        """Forget the stream of ``owner``; None when it ended before. Idempotent."""
        gateway, rid = owner
        session = self._sessions.get(gateway)
        return session.streams.pop(rid, None) if session else None

    def lose(self, gateway: bytes, *, gone: bool) -> list[Stream]:
        """Drop what ``gateway`` holds because a frame to it was lost; return the streams.

        ``gone``: its connection ended, so it says Hello before anything else. Otherwise it is told
        of the loss when it is heard after ``reopened``.
        """
        session = self._sessions.get(gateway)
        if session is None:
            return []
        streams, session.streams = session.streams, {}
        session.owed.update(streams)
        session.cut = True
        if gone:
            del self._sessions[gateway]
            self._events.pop(gateway, None)
        return list(streams.values())

    def reopened(self, gateway: bytes, rids: Iterable[int]) -> None:
        """Frames reach ``gateway`` again; ``rids`` had events in those that were lost."""
        session = self._sessions.get(gateway)
        if session is not None and session.cut:
            session.owed.update(rids)
            session.cut = False

    def expire(self, now: float) -> list[Stream]:
        """Drop the streams of every gateway whose lease has ended, tell it, and return them."""
        dropped: list[Stream] = []
        for gateway, session in list(self._sessions.items()):
            silent = now - session.heard
            if silent > FORGET_SECONDS:
                del self._sessions[gateway]
            if silent > LEASE_SECONDS and session.streams:
                dropped += session.streams.values()
                for rid in session.streams:
                    self.tell(gateway, _lost(rid))
                session.streams = {}
        return dropped

    def tell(self, gateway: bytes, event: StreamEvent) -> None:
        """Add ``event`` to the Step that ``gateway`` gets next."""
        self._events.setdefault(gateway, []).append(event)

    def steps(self, step: int) -> Iterable[tuple[bytes, Step]]:
        """Return one Step per gateway with everything told since the last call."""
        events, self._events = self._events, {}
        return [(gateway, Step(step, told)) for gateway, told in events.items()]

    def streams(self) -> list[Stream]:
        """Return every open stream."""
        return [stream for s in self._sessions.values() for stream in s.streams.values()]


def _lost(rid: int) -> Failed:
    return Failed(rid, Code.ENGINE_LOST, "the engine lost touch with the gateway")
