"""Start, watch, restart and stop the processes of one server.

Each program runs in a process group of its own, so a Ctrl-C on the terminal reaches the supervisor
alone. The kernel ends it with the supervisor (Linux; ``--exit-with-parent`` does it elsewhere).
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

HOLD_S = 1.0
"""How long the newest line of a starting program is held back: it may be its reason to end."""
ENGINE_STOP_S = 10.0
POLL_S = 0.05

Say = Callable[[str], None]


class Program(msgspec.Struct, frozen=True):
    """A command to keep running; ``name`` is what messages call it."""

    name: str
    argv: tuple[str, ...]


class StartFailed(Exception):
    """A program ended before the server was ready; its text is one line for the user."""


class Backoff:
    """Pauses between restarts: 0.2 s, doubled for each early death, at most 10 s."""

    def __init__(self, first: float = 0.2, most: float = 10.0, healthy: float = 30.0) -> None:
        self.first = first
        self.most = most
        self.healthy = healthy
        self._next = first

    def after(self, lived: float) -> float:
        """Return the pause in seconds after a process that lived for ``lived`` seconds."""
        if lived >= self.healthy:
            self._next = self.first
        pause = self._next
        self._next = min(self.most, pause * 2)
        return pause


def to_stderr(line: str) -> None:
    """Write one line of a program, or about one, where it does not mix with answers."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


class Child:
    """One process of a program, with its output passed on line by line."""

    def __init__(
        self, process: asyncio.subprocess.Process, lines: asyncio.StreamReader, say: Say
    ) -> None:
        self._process = process
        self._lines = lines
        self._say = say
        self._held: deque[str] = deque(maxlen=1)
        self.reason = ""
        """The last line it wrote."""

    @classmethod
    async def start(cls, program: Program, environ: Mapping[str, str] | None, say: Say) -> "Child":
        """Start ``program``; without ``environ`` it inherits ours."""
        # A pipe of our own: asyncio's would let wait() wait for whoever else holds its other end.
        read, write = os.pipe()
        lines = asyncio.StreamReader(limit=2**20)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(read, "rb")
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *program.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write,
                stderr=asyncio.subprocess.STDOUT,
                env=environ,
                process_group=0,
                preexec_fn=partial(_die_with, os.getpid()) if sys.platform == "linux" else None,
            )
        finally:
            os.close(write)
        return cls(process, lines, say)

    @property
    def pid(self) -> int:
        """Its process id, which is its process group too."""
        return self._process.pid

    async def ended(self, hold: Callable[[], bool]) -> int:
        """Pass its output on until it ends, and return its exit code (negative: a signal).

        While ``hold()`` the newest line is kept for a second, so that the line that says why the
        program ends stays in ``reason`` and is not shown twice.
        """
        pump = asyncio.create_task(self._pump(hold))
        try:
            code = await self._process.wait()
        finally:
            self.signal(signal.SIGKILL)  # what it may have left in its group
            await pump
        return code

    def signal(self, number: int) -> None:
        """Send a signal to its process group; one that has ended ignores it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    async def _pump(self, hold: Callable[[], bool]) -> None:
        while True:
            timeout = HOLD_S if self._held else None
            try:
                line = await asyncio.wait_for(self._lines.readline(), timeout)
            except TimeoutError:
                self._pass_on()
                continue
            except ValueError:  # a line beyond the limit; the reader has dropped it
                continue
            if not line:
                break
            self._take(line.decode(errors="replace").rstrip(), hold())
        if not hold():
            self._pass_on()

    def _take(self, line: str, hold: bool) -> None:
        self._pass_on()
        if line:
            self.reason = line
            self._held.append(line)
        if not hold:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._held:
            self._say(self._held.popleft())


class Supervisor:
    """Keeps engines and a gateway running until it is told to stop.

    A program that ends before the server is ready fails the start; one that ends later is started
    again after a pause. ``stop`` drains the gateway before it ends the engines.
    """

    def __init__(
        self,
        engines: Sequence[Program],
        gateway: Program | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        grace_s: float = 30.0,
        say: Say = to_stderr,
    ) -> None:
        self._engines = list(engines)
        self._gateway = gateway
        self._environ = environ
        self._grace_s = grace_s
        self._say = say
        self._ready = False
        self._stopping = False
        self._forced = False
        self._children: dict[str, Child] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}

    async def start(self, ready: Callable[[], Awaitable[bool]]) -> None:
        """Start every program and return once ``ready()``; raises ``StartFailed``."""
        for program in [*self._engines, *([self._gateway] if self._gateway else [])]:
            self._keepers[program.name] = asyncio.create_task(self._keep(program))
        while not await ready():
            for keeper in self._keepers.values():
                if keeper.done():
                    keeper.result()
            await asyncio.sleep(POLL_S)
        self._ready = True

    async def stop(self) -> bool:
        """Stop the gateway, which drains, then the engines; False when one had to be killed."""
        self._stopping = True
        if self._gateway is not None:
            await self._end([self._gateway], self._grace_s + 5)
        await self._end(self._engines, ENGINE_STOP_S)
        return not self._forced

    def kill(self) -> None:
        """End everything at once."""
        self._stopping = self._forced = True
        self._signal(self._keepers, signal.SIGKILL)

    def _signal(self, names: Iterable[str], number: int) -> None:
        for name in names:
            child = self._children.get(name)
            if child is None:  # starting, between two lives, or over
                self._keepers[name].cancel()
            else:
                child.signal(number)

    async def _keep(self, program: Program) -> None:
        backoff = Backoff()
        while not self._stopping:
            started = time.monotonic()
            child = await Child.start(program, self._environ, self._say)
            self._children[program.name] = child
            try:
                code = await child.ended(lambda: not self._ready)
            finally:
                del self._children[program.name]
            if self._stopping:
                return
            if not self._ready:
                raise StartFailed(_why(program, code, child.reason))
            pause = backoff.after(time.monotonic() - started)
            self._say(f"{program.name} ended ({_how(code)}); starting it again in {pause:g} s")
            await asyncio.sleep(pause)

    async def _end(self, programs: Sequence[Program], seconds: float) -> None:
        keepers = {p.name: self._keepers[p.name] for p in programs if p.name in self._keepers}
        self._signal(keepers, signal.SIGTERM)
        if keepers and (await asyncio.wait(keepers.values(), timeout=seconds))[1]:
            self.kill()
            await asyncio.wait(keepers.values())


async def supervise(
    supervisor: Supervisor, ready: Callable[[], Awaitable[bool]], announce: Callable[[], None]
) -> bool:
    """Run until SIGTERM or SIGINT, then drain; a second signal ends everything at once.

    ``announce`` is called when the server is ready. Returns False when something had to be killed;
    raises ``StartFailed``.
    """
    stopping = asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():
            supervisor.kill()
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    told = loop.create_task(stopping.wait())
    start = loop.create_task(supervisor.start(ready))
    try:
        await asyncio.wait({start, told}, return_when=asyncio.FIRST_COMPLETED)
        if start.done():
            start.result()
            announce()
            await told
    finally:
        start.cancel()
        told.cancel()
        clean = await supervisor.stop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return clean


_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def _die_with(parent: int) -> None:
    """Between fork and exec: have the kernel kill this process when ``parent`` ends."""
    assert _prctl is not None
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _how(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def _why(program: Program, code: int, line: str) -> str:
    for prefix in ("turing-engine: ", "turing-gateway: ", "Error: ", "error: "):
        line = line.removeprefix(prefix)
    return f"{program.name} did not start ({_how(code)}): {line or 'it gave no reason'}"
