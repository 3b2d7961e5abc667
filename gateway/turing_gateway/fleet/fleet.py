"""All engines of one gateway: who is there, their assets, and the streams that run on them."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import zmq.asyncio
from msgspec.structs import replace

from turing_gateway.fleet.assets import Assets, AssetSet
from turing_gateway.fleet.discovery import INTERVAL, Source, look, sources
from turing_gateway.fleet.link import ENDS, SILENCE, Link
from turing_gateway.fleet.sockets import Connection, open_link
from turing_gateway.fleet.view import EngineView
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import Failed, ModelInfo, StreamEvent, Submit

ASSETS_TIMEOUT = 10.0
"""Seconds that a caller waits for tokenizer and template of a model."""


class Stream:
    """The events of one sequence in order; iteration ends behind its ``Finished`` or ``Failed``."""

    __slots__ = ("_ended", "_events", "_waiter", "engine")

    def __init__(self, engine: EngineView) -> None:
        self.engine = engine
        self._events: deque[StreamEvent] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False

    def put(self, event: StreamEvent) -> None:
        """Add an event; the reader's own limits (max_tokens) bound how many there can be."""
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> StreamEvent:
        if self._ended:
            raise StopAsyncIteration
        while not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        event = self._events.popleft()
        self._ended = isinstance(event, ENDS)
        return event


class Fleet:
    """The engines behind ``endpoints`` (see ``discovery``); belongs to one running loop."""

    def __init__(
        self, endpoints: Sequence[str], *, gateway: str = "gateway", silence: float = SILENCE
    ) -> None:
        self.closed = False
        self._sources = sources(endpoints)
        self._gateway = gateway
        self._silence = silence
        self._found: dict[Source, list[str]] = {source: [] for source in self._sources}
        self._connections: dict[str, Connection] = {}
        self._streams: dict[int, Stream] = {}
        self._rids = itertools.count(1)
        self._assets = Assets()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pulse = asyncio.Event()
        self._context: zmq.asyncio.Context | None = None

    @property
    def views(self) -> list[EngineView]:
        """Every engine that is dialled, up or not."""
        return [connection.view for connection in self._connections.values()]

    @property
    def ready(self) -> bool:
        """Whether any engine takes new work."""
        return any(view.ready for view in self.views)

    def models(self) -> list[ModelInfo]:
        """Return every model known from a Welcome, those of ready engines first; one per name."""
        ordered = sorted(self.views, key=lambda view: not view.ready)
        first: dict[str, ModelInfo] = {}
        for view in ordered:
            if view.info is not None:
                first.setdefault(view.info.name, view.info)
        return list(first.values())

    def serving(self, info: ModelInfo) -> list[EngineView]:
        """Return the engines, up or not, that serve this very model."""
        wanted = (info.name, info.digest)
        return [v for v in self.views if v.info and (v.info.name, v.info.digest) == wanted]

    def adapters(self, info: ModelInfo) -> set[str]:
        """Return the adapters that any engine has loaded on this model."""
        return {name for view in self.serving(info) for name in view.adapters}

    async def start(self) -> None:
        """Dial the engines; returns at once, ``changed`` tells when one is up."""
        self._context = zmq.asyncio.Context()
        await self._discover([source for source in self._sources if not source.changes])
        changing = [source for source in self._sources if source.changes]
        if changing:
            self._spawn(self._keep_discovering(changing))

    def interrupt(self) -> None:
        """End every stream, also those to come, with ``DRAINING``; nothing is resumed any more."""
        self.closed = True
        for rid, stream in self._streams.items():
            stream.put(_interruption(rid))
        self._wake()

    async def close(self) -> None:
        """Hang up everywhere; open streams fail with ``ENGINE_LOST``."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()
        self.closed = True
        self._wake()
        if self._context is not None:
            self._context.destroy(linger=0)

    async def changed(self, timeout: float) -> None:
        """Wait until an engine comes up or goes down, at most ``timeout`` seconds."""
        pulse = self._pulse
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await pulse.wait()

    @asynccontextmanager
    async def submit(
        self, engine: EngineView, request: Submit, pages: int
    ) -> AsyncIterator[Stream]:
        """Run ``request`` (its rid and epoch are filled in here) on ``engine``.

        ``pages`` is its whole footprint. Leaving the scope aborts what has not ended. A stream that
        cannot start, or is cut off, ends in ``Failed`` with ``ENGINE_LOST`` or ``DRAINING``.
        """
        rid = next(self._rids)
        stream = self._streams[rid] = Stream(engine)
        connection = self._connections.get(engine.endpoint)
        try:
            if self.closed:
                stream.put(_interruption(rid))
            elif connection is None or connection.view is not engine:
                stream.put(Failed(rid, Code.ENGINE_LOST, f"engine {engine.name} is gone"))
            else:
                connection.submit(replace(request, rid=rid), pages)
            yield stream
        finally:
            del self._streams[rid]
            if connection is not None:
                connection.abort(rid)
                self._drop_if_done(connection)

    async def assets(self, info: ModelInfo) -> AssetSet:
        """Return a model's files, from memory or from an engine that serves it.

        ``NO_ENGINE`` when they are not known and cannot be had.
        """
        deadline = time.monotonic() + ASSETS_TIMEOUT
        while (left := deadline - time.monotonic()) > 0:
            serving = self.serving(info)
            for view in serving:
                if (files := self._assets.of(view)) is not None:
                    return files
            if not any(view.alive for view in serving):
                break
            await self.changed(left)
        raise TuringError(Code.NO_ENGINE, f"no engine has the tokenizer of {info.name}")

    def _deliver(self, events: Sequence[StreamEvent]) -> None:
        streams = self._streams
        for event in events:
            stream = streams.get(event.rid)
            if stream is not None:
                stream.put(event)

    def _notice(self, connection: Connection) -> None:
        self._drop_if_done(connection)
        self._fetch_missing()
        self._wake()

    def _wake(self) -> None:
        self._pulse.set()
        self._pulse = asyncio.Event()

    def _fetch_missing(self) -> None:
        for connection in self._connections.values():
            if connection.view.alive and self._assets.missing(connection.view):
                self._spawn(self._fetch(connection))

    async def _fetch(self, connection: Connection) -> None:
        if not await self._assets.fetch(connection):
            self._fetch_missing()
        self._assets.keep_only(self.views)
        self._wake()

    async def _keep_discovering(self, changing: Sequence[Source]) -> None:
        while True:
            await self._discover(changing)
            await asyncio.sleep(INTERVAL)

    async def _discover(self, asked: Sequence[Source]) -> None:
        looks = [look(source, self._found[source]) for source in asked]
        self._found.update(zip(asked, await asyncio.gather(*looks), strict=True))
        wanted = {address for found in self._found.values() for address in found}
        for address in sorted(wanted - self._connections.keys()):
            self._dial(address)
        for address in self._connections.keys() - wanted:
            self._connections[address].retire()

    def _dial(self, address: str) -> None:
        assert self._context is not None
        link = Link(address, self._gateway, silence=self._silence)
        self._connections[address] = open_link(self._context, link, self._deliver, self._notice)

    def _drop_if_done(self, connection: Connection) -> None:
        address = connection.view.endpoint
        if connection.link.done and self._connections.get(address) is connection:
            del self._connections[address]
            self._spawn(connection.close())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _interruption(rid: int) -> Failed:
    return Failed(rid, Code.DRAINING, "the server stopped before the answer was complete")
