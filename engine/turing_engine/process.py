"""The life of an engine process: load, serve, drain on a signal, and never outlive its welcome.

The main thread only waits for signals, so that it can act while a step hangs in native code.
"""

import ctypes
import os
import queue
import secrets
import signal
import socket
import sys
import time
from threading import Thread
from types import FrameType
from typing import NoReturn

import structlog
import zmq

from turing_engine.build import build
from turing_engine.core import EngineCore, Exit
from turing_engine.settings import EngineSettings, is_exposed
from turing_engine.stats import loading
from turing_engine.wire import Wire
from turing_protocol.errors import Code, TuringError

WATCH_SECONDS = 0.5
HANG_SECONDS = 300.0
"""How long the step loop may stand still: longer than the longest step of a slow machine."""
OVERTIME_SECONDS = 5.0
"""How long a step may go on after the end of the drain."""
_PR_SET_PDEATHSIG = 1


class Pulse:
    """Notices that a count stands still.

    Looks are counted instead of seconds: a process that was stopped as a whole and goes on is well.
    """

    def __init__(self, looks: int) -> None:
        self._looks = looks
        self._last = -1
        self._same = 0

    def stopped(self, count: int) -> bool:
        """Take a look; whether the last ``looks`` ones all saw this count before."""
        self._same = self._same + 1 if count == self._last else 0
        self._last = count
        return self._same >= self._looks


class EngineProcess:
    """One engine; ``run`` returns the exit code."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._log = structlog.get_logger("engine")
        self._epoch = secrets.randbits(62) + 1
        self._wire = open_wire(settings, self._epoch)
        self._events: queue.SimpleQueue[int | Exit | Exception] = queue.SimpleQueue()
        self._core: EngineCore | None = None
        self._parent = os.getppid()
        self._stopping = False
        self._deadline = float("inf")
        self._pulse = Pulse(round(HANG_SECONDS / WATCH_SECONDS))

    def run(self) -> int:
        """Serve until drained (0) or broken (70); what stops the model from loading is raised.

        SIGTERM and SIGINT drain; a second one ends the process at once.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        if self._settings.exit_with_parent:
            die_with_parent()
        self._wire.start()
        self._log.info("listening", bind=self._wire.endpoint, state=self._wire.state_endpoint)
        if is_exposed(self._wire.endpoint):
            self._log.warning("anyone who reaches this address can use the engine")
        Thread(target=self._work, name="core", daemon=True).start()
        return self._wait()

    def _wait(self) -> int:
        while True:
            try:
                event = self._events.get(timeout=WATCH_SECONDS)
            except queue.Empty:
                self._watch()
                continue
            if isinstance(event, Exception):
                self._wire.stop()
                raise event
            if event is Exit.BROKEN:
                self._leave(event)  # a broken device may hang an orderly exit
            if isinstance(event, Exit):
                return event
            self._stop(event)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._events.put(number)

    def _work(self) -> None:
        """Load and serve, on the core thread."""
        began = time.monotonic()
        try:
            core = build(self._settings, self._wire, self._epoch)
            self._core = core
            self._log.info("ready", seconds=round(time.monotonic() - began, 3))
            self._events.put(core.run())
        except Exception as error:
            self._events.put(error)

    def _stop(self, number: int) -> None:
        """Drain at the first signal; leave at the second, or when there is nothing to drain."""
        if self._stopping:
            self._log.warning("stopped by a second signal")
            self._leave(128 + number)
        if self._core is None:
            self._log.info("stopped while loading")
            self._wire.stop()
            self._leave(Exit.OK)
        self._drain(self._core, self._settings.drain_seconds)

    def _drain(self, core: EngineCore, seconds: float) -> None:
        self._log.info("stopping", seconds=seconds)
        core.drain(seconds)
        self._stopping = True
        self._deadline = time.monotonic() + seconds + OVERTIME_SECONDS

    def _watch(self) -> None:
        orphaned = self._settings.exit_with_parent and os.getppid() != self._parent
        if orphaned and not self._stopping:
            self._log.warning("the parent process is gone")
            if self._core is None:
                self._leave(Exit.OK)
            self._drain(self._core, 0.0)
        if self._core is not None and self._pulse.stopped(self._core.turns):
            self._log.error("the step loop hangs; ending for a fresh start", seconds=HANG_SECONDS)
            self._leave(Exit.BROKEN)
        if time.monotonic() > self._deadline:
            self._log.error("a step did not end in time")
            self._leave(Exit.BROKEN)

    def _leave(self, code: int) -> NoReturn:
        """End now: the core thread may be in native code that cannot be interrupted."""
        sys.stderr.flush()
        os._exit(code)


def open_wire(settings: EngineSettings, epoch: int) -> Wire:
    """Bind the sockets; an address that cannot be bound is ``Code.INVALID``."""
    bind, state_bind = settings.bind, settings.state_endpoint
    for endpoint in (bind, state_bind):
        if is_served(endpoint):
            raise TuringError(Code.INVALID, f"{endpoint} is served already", param="bind")
    try:
        return Wire(bind, state_bind, loading(settings.name, epoch))
    except zmq.ZMQError as error:
        raise TuringError(
            Code.INVALID, f"cannot bind {bind} and {state_bind}: {error.strerror}", param="bind"
        ) from None


def is_served(endpoint: str) -> bool:
    """Whether a process listens on an ipc path, which libzmq would take from it unasked."""
    scheme, _, path = endpoint.partition("://")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            return scheme == "ipc" and probe.connect_ex(path) == 0
        except OSError:  # no path at all: binding will say so
            return False


def die_with_parent() -> None:
    """Let the kernel end this process when the thread that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
