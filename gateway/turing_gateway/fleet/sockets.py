"""Drives a Link over ZeroMQ: one DEALER, its monitor, and one SUB per engine."""

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from turing_gateway.fleet.link import (
    TICK,
    Action,
    Answer,
    Deliver,
    Dial,
    Link,
    Send,
    Subscribe,
)
from turing_gateway.fleet.view import EngineView, LinkState
from turing_protocol.codec import decode_from_engine, decode_state, encode
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import (
    STATS_TOPIC,
    Asset,
    Done,
    Fetch,
    Stats,
    StreamEvent,
    Submit,
    ToEngine,
)

SEND_MARK = 10_000
"""Messages that may wait for a stalled engine before it counts as lost."""
STATE_MARK = 100
RECONNECT_MS = 50
RECONNECT_MOST_MS = 1000
CONNECT_TIMEOUT_MS = 2000
_WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED

Reader = Callable[[zmq.asyncio.Socket], Coroutine[Any, Any, None]]

log = logging.getLogger(__name__)


def state_endpoint(dialled: str, named: str) -> str:
    """Return the address of the state socket; host ``*`` means the host that was dialled."""
    url = urlsplit(named)
    if url.scheme != "tcp" or url.hostname != "*":
        return named
    host = urlsplit(dialled).netloc.rpartition(":")[0] if dialled.startswith("tcp://") else ""
    return f"tcp://{host or '127.0.0.1'}:{url.port}"


class _Pending:
    """A Fetch under way: files by name until all of ``names`` are there."""

    def __init__(self, names: Sequence[str]) -> None:
        self.missing = set(names)
        self.files: dict[str, bytes] = {}
        self.future: asyncio.Future[dict[str, bytes]] = asyncio.get_running_loop().create_future()

    def settle(self, answer: Done | Asset) -> None:
        if self.future.done():
            return
        if isinstance(answer, Done):
            self.fail(TuringError(Code.INTERNAL, answer.message or "the engine sent no assets"))
            return
        self.files[answer.name] = answer.data
        self.missing.discard(answer.name)
        if not self.missing:
            self.future.set_result(self.files)

    def fail(self, error: TuringError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Connection:
    """The sockets and tasks of one Link. All methods belong to the loop's thread."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        link: Link,
        deliver: Callable[[Sequence[StreamEvent]], None],
        changed: Callable[["Connection"], None],
    ) -> None:
        self.link = link
        self._context = context
        self._deliver = deliver
        self._changed = changed
        # Kept over reconnects, so that the engine's Hello rule frees what we held before.
        self._identity = secrets.token_bytes(16)
        self._dealer: zmq.asyncio.Socket | None = None
        self._sockets: list[zmq.asyncio.Socket] = []
        self._readers: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._ops = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._seen: tuple[object, ...] = ()

    @property
    def view(self) -> EngineView:
        """What is believed of the engine."""
        return self.link.view

    def start(self) -> None:
        """Begin to dial; from now on the link keeps itself up until ``close``."""
        self._spawn(self._tick())

    async def close(self) -> None:
        """Close the sockets; open streams fail with ``ENGINE_LOST``."""
        self.retire()
        self._perform(self.link.disconnected(time.monotonic(), "the gateway closed the link"))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def submit(self, submit: Submit, pages: int) -> None:
        """Send a sequence; if it cannot be sent, its stream gets a ``Failed``."""
        self._perform(self.link.submit(submit, pages))

    def abort(self, rid: int) -> None:
        """Stop a sequence if it is still open."""
        self._perform(self.link.abort(rid))

    def retire(self) -> None:
        """Take no new work."""
        self.link.retire(time.monotonic())
        self._notify()

    async def fetch(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return assets by name; ``ENGINE_LOST`` when the link breaks before all are here."""
        op, pending = next(self._ops), _Pending(names)
        if not self.view.alive:
            raise TuringError(Code.NO_ENGINE, f"engine {self.view.endpoint} is not connected")
        self._pending[op] = pending
        try:
            self._perform([Send(Fetch(op, tuple(names)))])
            return await pending.future
        finally:
            self._pending.pop(op, None)

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Deliver):
                self._deliver(action.events)
            elif isinstance(action, Send):
                self._send(action.message)
            elif isinstance(action, Subscribe):
                self._subscribe(action.endpoint)
            elif isinstance(action, Answer):
                self._settle(action.message)
            elif isinstance(action, Dial):
                self._dial()
            else:
                self._hang_up()
        self._notify()

    def _notify(self) -> None:
        view = self.view
        seen = (view.state, view.ready, view.epoch)
        if seen != self._seen:
            self._seen = seen
            if view.state == LinkState.LOST and not (view.leaving or self.link.unanswered):
                log.warning("engine %s lost: %s", view.name or view.endpoint, view.why)
            else:
                log.info("engine %s %s", view.name or view.endpoint, view.state.name.lower())
            self._changed(self)

    def _dial(self) -> None:
        self._dealer = dealer = self._socket(zmq.DEALER)
        dealer.set(zmq.IDENTITY, self._identity)
        dealer.set(zmq.IMMEDIATE, 1)
        dealer.set(zmq.SNDHWM, SEND_MARK)
        dealer.set(zmq.RCVHWM, 0)
        monitor = dealer.get_monitor_socket(_WATCHED)
        self._sockets.append(monitor)
        dealer.connect(self.view.endpoint)
        self._read(monitor, self._read_monitor)
        self._read(dealer, self._read_dealer)

    def _subscribe(self, named: str) -> None:
        sub = self._socket(zmq.SUB)
        sub.set(zmq.RCVHWM, STATE_MARK)
        sub.set(zmq.SUBSCRIBE, STATS_TOPIC)
        sub.connect(state_endpoint(self.view.endpoint, named))
        self._read(sub, self._read_state)

    def _socket(self, kind: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.IPV6, 1)
        socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MOST_MS)
        socket.set(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)
        self._sockets.append(socket)
        return socket

    def _hang_up(self) -> None:
        for task in self._readers:
            task.cancel()
        if self._dealer is not None:
            self._dealer.disable_monitor()
        for socket in self._sockets:
            socket.close(linger=0)
        self._readers, self._sockets, self._dealer = [], [], None
        for pending in self._pending.values():
            pending.fail(TuringError(Code.ENGINE_LOST, f"engine {self.view.name} was lost"))

    def _send(self, message: ToEngine) -> None:
        if self._dealer is None:
            return
        frame = encode(message)
        if _sent(self._dealer, frame):
            return
        # Reading EVENTS makes the socket look at connections that it has not noticed yet.
        if int(self._dealer.get(zmq.EVENTS)) & zmq.POLLOUT and _sent(self._dealer, frame):
            return
        self._lose("the engine takes no messages")

    def _lose(self, why: str) -> None:
        self._perform(self.link.disconnected(time.monotonic(), why))

    def _settle(self, answer: Done | Asset) -> None:
        pending = self._pending.get(answer.op)
        if pending is not None:
            pending.settle(answer)

    def _read(self, socket: zmq.asyncio.Socket, reader: Reader) -> None:
        self._readers.append(self._spawn(self._guard(socket, reader)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guard(self, socket: zmq.asyncio.Socket, reader: Reader) -> None:
        try:
            await reader(socket)
        except TuringError as error:
            self._lose(error.message)
        except zmq.ZMQError as error:
            self._lose(f"socket error: {error}")

    async def _tick(self) -> None:
        while True:
            self._perform(self.link.tick(time.monotonic()))
            await asyncio.sleep(TICK)

    async def _read_dealer(self, dealer: zmq.asyncio.Socket) -> None:
        while True:
            frame = await dealer.recv()
            self._perform(self.link.received(time.monotonic(), decode_from_engine(frame)))

    async def _read_state(self, sub: zmq.asyncio.Socket) -> None:
        while True:
            _, frame = await sub.recv_multipart()
            message = decode_state(frame)
            if isinstance(message, Stats):
                self._perform(self.link.published(time.monotonic(), message))

    async def _read_monitor(self, monitor: zmq.asyncio.Socket) -> None:
        while True:
            event = (await recv_monitor_message(monitor))["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._perform(self.link.connected(time.monotonic()))
            elif event == zmq.EVENT_DISCONNECTED:
                self._lose("the engine closed the connection")


def open_link(
    context: zmq.asyncio.Context,
    link: Link,
    deliver: Callable[[Sequence[StreamEvent]], None],
    changed: Callable[[Connection], None],
) -> Connection:
    """Start to drive ``link``. ``deliver`` takes events, ``changed`` hears of each new state."""
    connection = Connection(context, link, deliver, changed)
    connection.start()
    return connection


def _sent(dealer: zmq.asyncio.Socket, frame: bytes) -> bool:
    """Whether the socket took ``frame`` at once; with NOBLOCK the future is always done."""
    future = cast("asyncio.Future[None]", dealer.send(frame, zmq.NOBLOCK))
    return future.exception() is None
