"""The engine's sockets: one ROUTER for requests and tokens, one PUB for state.

One thread owns both, so nothing else in the process may touch ZeroMQ. The core reads ``inbox`` and
writes through ``send``, ``publish`` and ``stats``; a slow gateway can never block it.
"""

import math
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec
import zmq

from turing_protocol.codec import decode_to_engine, encode
from turing_protocol.errors import TuringError
from turing_protocol.messages import (
    PAGES_TOPIC,
    STATS_TOPIC,
    FromEngine,
    PageEvents,
    Ping,
    Pong,
    Stats,
    Step,
    ToEngine,
)

STATS_SECONDS = 0.1
SEND_MARK = 8192
"""Frames that may wait for one gateway; the next one costs it its session."""
STATE_MARK = 1000
"""State frames that may wait for one subscriber; more are dropped."""
INBOX_MARK = 10_000
"""Messages the core has not read yet; above this the sockets are left unread."""
MAX_FRAME = 64 << 20
"""Bytes; a peer that sends a longer frame is disconnected by libzmq."""
LINGER_MS = 1000
_BURST = 256
"""Frames read before anything else is looked at."""


class Inbound(msgspec.Struct, frozen=True):
    """A decoded message and when it was read, in seconds of the wire's clock."""

    gateway: bytes
    message: ToEngine
    at: float


class Lost(msgspec.Struct, frozen=True):
    """A frame for ``gateway`` could not be sent; all that follow are dropped until ``reopen``.

    ``gone``: its connection no longer exists. Otherwise it stopped reading.
    """

    gateway: bytes
    gone: bool


class Reopened(msgspec.Struct, frozen=True):
    """Frames for ``gateway`` are sent again; ``rids`` had events in those that were dropped."""

    gateway: bytes
    rids: frozenset[int]


class Down(msgspec.Struct, frozen=True):
    """The wire thread ended by itself: the engine can serve nobody."""

    error: str


class Later(msgspec.Struct, frozen=True):
    """Something that another thread has made ready for the core: ``run`` is called there."""

    run: Callable[[], None]


Item = Inbound | Lost | Reopened | Down | Later
Inbox = queue.SimpleQueue[Item]


class _Reopen(msgspec.Struct, frozen=True):
    """Marks the place in the outbox from which a lost gateway is sent to again."""


class Wire:
    """Owns the sockets. ``inbox``, ``stats`` and ``step_began`` are what it shares with the core.

    ``stats`` is the snapshot that is published every 100 ms, also while a step runs; ``step_began``
    is the start of the running step on ``clock``, 0 between steps. Both are replaced whole.
    Binding happens here: an address that cannot be bound raises ``zmq.ZMQError``.
    """

    def __init__(
        self,
        bind: str,
        state_bind: str,
        stats: Stats,
        *,
        clock: Callable[[], float] = time.monotonic,
        send_mark: int = SEND_MARK,
    ) -> None:
        self.inbox: Inbox = queue.SimpleQueue()
        self.stats = stats
        self.step_began = 0.0
        self.bad_frames = 0
        self._clock = clock
        self._outbox: deque[tuple[bytes, FromEngine | _Reopen | PageEvents]] = deque()
        self._cut: dict[bytes, set[int]] = {}
        self._seq = 0
        self._stopping = False
        self._woken = False
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_in.setblocking(False)
        self._context = zmq.Context(io_threads=1)
        try:
            self._router = _open_router(self._context, bind, send_mark)
            self._state = _open_state(self._context, state_bind)
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            self._close_wake()
            raise
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.state_endpoint = self._state.getsockopt_string(zmq.LAST_ENDPOINT)
        self._thread = threading.Thread(target=self._serve, name="wire", daemon=True)

    def start(self) -> None:
        """Begin to read, send and publish."""
        self._thread.start()

    def send(self, gateway: bytes, message: FromEngine) -> None:
        """Queue ``message`` for ``gateway``; order is kept, failure comes back as ``Lost``."""
        self._post(gateway, message)

    def reopen(self, gateway: bytes) -> None:
        """Send to ``gateway`` again from here on: what it missed has been settled."""
        self._post(gateway, _Reopen())

    def publish(self, events: PageEvents) -> None:
        """Queue prefix-cache events for every subscriber."""
        self._post(b"", events)

    def stop(self) -> None:
        """Send what is queued (at most a second for unread frames) and close the sockets."""
        self._stopping = True
        self._wake()
        self._thread.join()
        self._close_wake()

    def _post(self, gateway: bytes, item: FromEngine | _Reopen | PageEvents) -> None:
        self._outbox.append((gateway, item))
        self._wake()

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._wake_out.send(b"\0")

    def _serve(self) -> None:
        try:
            self._loop()
        except Exception as error:
            self.inbox.put(Down(f"{type(error).__name__}: {error}"))
        finally:
            self._router.close(linger=LINGER_MS)
            self._state.close(linger=LINGER_MS)
            self._context.term()

    def _loop(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._wake_in, zmq.POLLIN)
        due = self._clock()
        while not self._stopping:
            now = self._clock()
            if now >= due:
                self._publish_stats(now)
                due = max(due + STATS_SECONDS, now)
            crowded = self.inbox.qsize() >= INBOX_MARK
            poller.modify(self._router, 0 if crowded else zmq.POLLIN)
            ready = dict(poller.poll(math.ceil(max(0.0, due - self._clock()) * 1000)))
            if self._wake_in.fileno() in ready:
                self._wake_in.recv(64)
            if self._router in ready:
                self._receive()
            self._flush()
        self._flush()
        self._publish_stats(self._clock())

    def _receive(self) -> None:
        for _ in range(_BURST):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._accept(frames)

    def _accept(self, frames: list[bytes]) -> None:
        try:
            gateway, frame = frames
            message = decode_to_engine(frame)
        except (ValueError, TuringError):
            self.bad_frames += 1
            return
        if isinstance(message, Ping):
            self._outbox.append((gateway, Pong(message.sent)))
        self.inbox.put(Inbound(gateway, message, self._clock()))

    def _flush(self) -> None:
        self._woken = False
        while self._outbox:
            gateway, item = self._outbox.popleft()
            if isinstance(item, PageEvents):
                self._state.send_multipart([PAGES_TOPIC, encode(item)], zmq.NOBLOCK)
            elif isinstance(item, _Reopen):
                self.inbox.put(Reopened(gateway, frozenset(self._cut.pop(gateway, ()))))
            elif gateway in self._cut:
                self._cut[gateway] |= _rids(item)
            else:
                self._deliver(gateway, item)

    def _deliver(self, gateway: bytes, message: FromEngine) -> None:
        try:
            self._router.send_multipart([gateway, encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            self._cut[gateway] = _rids(message)
            self.inbox.put(Lost(gateway, gone=error.errno == zmq.EHOSTUNREACH))

    def _publish_stats(self, now: float) -> None:
        self._seq += 1
        began = self.step_began
        age_ms = (now - began) * 1000 if began else 0.0
        stats = msgspec.structs.replace(self.stats, seq=self._seq, step_age_ms=age_ms)
        self._state.send_multipart([STATS_TOPIC, encode(stats)], zmq.NOBLOCK)

    def _close_wake(self) -> None:
        self._wake_in.close()
        self._wake_out.close()


def _rids(message: FromEngine) -> set[int]:
    return {event.rid for event in message.events} if isinstance(message, Step) else set()


def _open_router(
    context: zmq.Context[zmq.Socket[bytes]], bind: str, mark: int
) -> zmq.Socket[bytes]:
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a full or vanished peer is an error, not silence
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a reconnected gateway replaces its old connection
    router.setsockopt(zmq.SNDHWM, mark)
    router.setsockopt(zmq.RCVHWM, INBOX_MARK)
    router.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)
    router.setsockopt(zmq.LINGER, 0)
    router.setsockopt(zmq.IPV6, int("[" in bind))
    router.bind(bind)
    return router


def _open_state(context: zmq.Context[zmq.Socket[bytes]], bind: str) -> zmq.Socket[bytes]:
    state = context.socket(zmq.PUB)
    state.setsockopt(zmq.SNDHWM, STATE_MARK)
    state.setsockopt(zmq.LINGER, 0)
    state.setsockopt(zmq.IPV6, int("[" in bind))
    state.bind(bind)
    return state
