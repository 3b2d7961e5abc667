"""Runs the application under hypercorn: limits, signals, and an orderly end."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

from hypercorn.asyncio import serve as run_hypercorn
from hypercorn.config import Config
from starlette.types import ASGIApp

from turing_gateway.drain import Drain
from turing_gateway.settings import GatewaySettings

BACKLOG = 2048
KEEP_ALIVE_S = 75.0
"""Idle connections are kept this long: routers pool them."""
MAX_HEADER_BYTES = 32 * 1024
CLOSE_S = 1.0
"""Time that connections get to close when their requests are done."""
PARENT_POLL_S = 0.5

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_log = logging.getLogger(__name__)


async def serve(
    app: ASGIApp, settings: GatewaySettings, drain: Drain, interrupt: Callable[[], None]
) -> bool:
    """Serve ``app`` until SIGTERM, SIGINT or, if so set, the end of the parent process.

    The first of them starts ``drain`` and gives running requests ``grace_seconds``; a second signal
    cuts that short. ``interrupt`` then has what still runs tell its client so. Returns whether all
    could finish. ``OSError`` when the address cannot be bound.
    """
    listener = bind(settings.host, settings.port)
    _log.info("listening on %s", url(listener))
    # Hypercorn takes the descriptor over and closes it.
    config = _config(listener.detach())
    stop = _Stop(settings.grace_seconds, drain, interrupt)

    async def stopped() -> None:
        await stop.wait()
        config.graceful_timeout = 0.0 if drain.active else CLOSE_S

    with stop.watching(parent=settings.exit_with_parent):
        await run_hypercorn(cast(Any, app), config, shutdown_trigger=stopped)
    return stop.clean


def bind(host: str, port: int) -> socket.socket:
    """Return a TCP socket bound to ``host:port``; port 0 takes a free one. ``OSError`` if taken."""
    info = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = info[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def url(listener: socket.socket) -> str:
    """Return the address of ``listener`` as a URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _config(descriptor: int) -> Config:
    config = Config()
    config.bind = [f"fd://{descriptor}"]
    config.backlog = BACKLOG
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.h11_max_incomplete_size = MAX_HEADER_BYTES
    config.include_server_header = False
    config.errorlog = logging.getLogger("hypercorn.error")
    config.errorlog.setLevel(logging.WARNING)
    return config


class _Stop:
    """Waits for the reason to stop, and then for the work to be done."""

    def __init__(self, grace: float, drain: Drain, interrupt: Callable[[], None]) -> None:
        self._grace = grace
        self._drain = drain
        self._interrupt = interrupt
        self._first = asyncio.Event()
        self._second = asyncio.Event()
        self.clean = False

    async def wait(self) -> None:
        """Return when the server may close; ``clean`` tells whether no request was cut off."""
        await self._first.wait()
        self._drain.started = True
        _log.info("stopping; %d requests in flight", self._drain.active)
        ends = [asyncio.ensure_future(self._drain.idle()), asyncio.ensure_future(self._forced())]
        await asyncio.wait(ends, timeout=self._grace, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        self.clean = self._drain.active == 0
        if not self.clean:
            self._interrupt()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._drain.idle(), CLOSE_S)

    @contextmanager
    def watching(self, *, parent: bool) -> Iterator[None]:
        """Listen for signals, and for the end of the parent process, while in the scope."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._signal)
        orphan = asyncio.ensure_future(self._orphaned()) if parent else None
        try:
            yield
        finally:
            if orphan:
                orphan.cancel()
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _signal(self) -> None:
        if self._first.is_set():
            self._second.set()
        self._first.set()

    async def _forced(self) -> None:
        await self._second.wait()

    async def _orphaned(self) -> None:
        parent = os.getppid()
        while os.getppid() == parent:
            await asyncio.sleep(PARENT_POLL_S)
        self._first.set()
