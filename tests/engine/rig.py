"""An engine core without threads, model or time, and a bare peer for the real sockets."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import TypeVar

import zmq

from turing_engine.admit import Gatekeeper
from turing_engine.core import EngineCore, Identity
from turing_engine.grammar.compiler import Compiler
from turing_engine.grammar.source import KINDS
from turing_engine.plan.plan import Plan, Result
from turing_engine.plan.scheduler import Scheduler, SchedulerConfig
from turing_engine.run.executor import Executor
from turing_engine.run.masks import Masks
from turing_engine.run.runner import RunnerSpec
from turing_engine.run.scripted import ScriptedRunner, scripted_files, scripted_info
from turing_engine.stats import loading
from turing_engine.wire import Inbound, Wire
from turing_protocol.codec import decode_from_engine, encode, pack, unpack
from turing_protocol.lanes import CHUNK
from turing_protocol.messages import (
    MAJOR,
    MINOR,
    Failed,
    Finished,
    FromEngine,
    Hello,
    Limits,
    PageEvents,
    Ping,
    Stats,
    Step,
    StreamEvent,
    Submit,
    ToEngine,
    Tokens,
    Welcome,
)
from turing_protocol.sampling import Constraint, Sampling

EPOCH = 77
GATEWAY = b"gateway"
M = TypeVar("M")

_names = itertools.count()


class Clock:
    """Time that moves when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class StillWire(Wire):
    """A wire whose thread never runs: what the core sends is kept for the test."""

    def __init__(self, clock: Clock) -> None:
        bind = f"inproc://still-{next(_names)}"
        super().__init__(bind, f"{bind}-state", loading("e", EPOCH), clock=clock)
        self.sent: list[tuple[bytes, FromEngine]] = []
        self.pages: list[PageEvents] = []
        self.reopened: list[bytes] = []
        self.stopped = False

    def send(self, gateway: bytes, message: FromEngine) -> None:
        self.sent.append((gateway, message))

    def publish(self, events: PageEvents) -> None:
        self.pages.append(events)

    def reopen(self, gateway: bytes) -> None:
        self.reopened.append(gateway)

    def stop(self) -> None:
        self.stopped = True
        self._router.close()
        self._state.close()
        self._context.term()
        self._close_wake()


class FlakyRunner(ScriptedRunner):
    """Raises what ``errors`` holds, one per step, before it computes anything."""

    def __init__(self, spec: RunnerSpec) -> None:
        super().__init__(spec)
        self.errors: list[Exception] = []
        self.clock: Clock | None = None

    def run(self, plan: Plan, masks: Masks | None = None) -> Result:
        if self.clock is not None:
            self.clock.now += 0.010
        if self.errors:
            raise self.errors.pop(0)
        return super().run(plan, masks)


def make_core(
    wire: Wire,
    clock: Callable[[], float],
    runner: ScriptedRunner,
    limits: Limits,
    model: str = "scripted:",
    compiler: Compiler | None = None,
) -> EngineCore:
    """Return a core behind ``wire`` that serves a scripted model."""
    info, files = scripted_info(model), scripted_files()
    welcome = Welcome(MAJOR, MINOR, EPOCH, "e", "tcp://*:1", info, limits, dict.fromkeys(files, ""))
    config = SchedulerConfig(
        pages=limits.pages_total,
        max_running=limits.max_running,
        max_waiting=limits.max_waiting,
        max_step_tokens=512,
        chunk=CHUNK,
        context=limits.context,
    )
    return EngineCore(
        wire,
        Scheduler(config),
        Executor(runner),
        Gatekeeper(info, limits, runner.vocab_size),
        Identity(welcome, files, lambda: (1, 2)),
        compiler=compiler,
        clock=clock,
    )


class Rig:
    """A core, its clock, and shortcuts to talk to it as gateways do."""

    def __init__(
        self,
        model: str = "scripted:",
        *,
        pages: int = 64,
        max_running: int = 8,
        max_waiting: int = 16,
        context: int = 2048,
        compiler: Compiler | None = None,
    ) -> None:
        self.clock = Clock()
        self.wire = StillWire(self.clock)
        self.runner = FlakyRunner(make_spec(model, pages=pages, max_running=max_running))
        self.runner.clock = self.clock
        kinds = () if compiler is None else KINDS
        limits = Limits(context, pages, max_running, max_waiting, constraints=kinds)
        self.core = make_core(self.wire, self.clock, self.runner, limits, model, compiler)
        self.scheduler = self.core.scheduler

    def __enter__(self) -> "Rig":
        self.receive(Hello(MAJOR, MINOR, "g"))
        self.sent(Welcome)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if not self.wire.stopped:
            self.wire.stop()

    def post(self, message: ToEngine, gateway: bytes = GATEWAY) -> None:
        """Put a message where the wire would."""
        self.wire.inbox.put(Inbound(gateway, message, self.clock()))

    def receive(self, message: ToEngine, gateway: bytes = GATEWAY) -> None:
        """Let the core handle one message."""
        self.post(message, gateway)
        self.core.intake()

    def turns(self, count: int = 1) -> None:
        """Let the core go round ``count`` times, messages first."""
        for _ in range(count):
            if not self.wire.inbox.empty():
                self.core.intake()
            self.core.turn()

    def finish(self) -> None:
        """Go round until no sequence is left."""
        for _ in range(10_000):
            if not self.scheduler.has_work:
                return
            self.turns()
        raise AssertionError("the work never ends")

    def sent(self, kind: type[M], gateway: bytes = GATEWAY) -> list[M]:
        """Take the messages of one kind out of what was sent to ``gateway``."""
        found: list[M] = [m for to, m in self.wire.sent if to == gateway and isinstance(m, kind)]
        self.wire.sent = [
            (to, m) for to, m in self.wire.sent if to != gateway or not isinstance(m, kind)
        ]
        return found

    def events(self, gateway: bytes = GATEWAY) -> list[StreamEvent]:
        """Take every event that was sent to ``gateway``."""
        return [event for step in self.sent(Step, gateway) for event in step.events]


def make_spec(model: str = "scripted:", *, pages: int = 64, max_running: int = 8) -> RunnerSpec:
    return RunnerSpec(
        model=model,
        pages=pages,
        kv_bytes=0,
        max_running=max_running,
        max_step_tokens=512,
        context=4096,
    )


def make_submit(
    rid: int = 1,
    prompt: bytes = b"hello",
    *,
    max_tokens: int = 8,
    prior: tuple[int, ...] = (),
    epoch: int = EPOCH,
    sampling: Sampling | None = None,
    constraint: Constraint | None = None,
) -> Submit:
    """Return a greedy request; each byte of ``prompt`` is one id."""
    chosen = sampling or Sampling(max_tokens=max_tokens, temperature=0.0)
    ids = pack(list(prompt))
    return Submit(rid, epoch, ids, chosen, prior=pack(prior), constraint=constraint)


def ids_of(events: list[StreamEvent], rid: int) -> list[int]:
    """Return the tokens that ``events`` hold for ``rid``."""
    tokens = [event for event in events if isinstance(event, Tokens) and event.rid == rid]
    return [token for event in tokens for token in unpack(event.ids)]


def ends_of(events: list[StreamEvent]) -> dict[int, Finished | Failed]:
    """Return the last event of every rid that ended; no rid may end twice."""
    ends = [event for event in events if isinstance(event, Finished | Failed)]
    by_rid = {event.rid: event for event in ends}
    assert len(by_rid) == len(ends)
    return by_rid


def failure_of(events: list[StreamEvent], rid: int) -> Failed:
    """Return the Failed that ended ``rid``."""
    failed = ends_of(events)[rid]
    assert isinstance(failed, Failed)
    return failed


class LiveEngine:
    """A core on its own thread behind real ipc sockets, with a clock that can be pushed."""

    def __init__(
        self, folder: Path, model: str = "scripted:", *, send_mark: int = 8192, pages: int = 4096
    ) -> None:
        self._shift = 0.0
        self.endpoint, self.state_endpoint = f"ipc://{folder}/e", f"ipc://{folder}/e-state"
        first = loading("e", EPOCH)
        self.wire = Wire(
            self.endpoint, self.state_endpoint, first, clock=self.clock, send_mark=send_mark
        )
        self.wire.start()
        self._model = model
        self._runner = ScriptedRunner(make_spec(model, pages=pages, max_running=64))
        self.core: EngineCore | None = None
        self._thread = Thread(target=self._run)

    def clock(self) -> float:
        """Return monotonic time plus what ``push`` added."""
        return time.monotonic() + self._shift

    def push(self, seconds: float) -> None:
        """Let ``seconds`` pass at once."""
        self._shift += seconds

    def load(self) -> "LiveEngine":
        """Start the core; until then the engine is loading."""
        limits = Limits(1 << 16, self._runner.pages, 64, 256)
        self.core = make_core(self.wire, self.clock, self._runner, limits, self._model)
        self._thread.start()
        return self

    def stats(self) -> Stats:
        """Return the snapshot that is published next."""
        return self.wire.stats

    def __enter__(self) -> "LiveEngine":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self.core is None:
            self.wire.stop()
        else:
            self.core.drain(0.0)
            self._thread.join()

    def _run(self) -> None:
        assert self.core is not None
        self.core.run()


class Peer:
    """A gateway reduced to one DEALER; reads with a timeout, so a lost answer fails the test."""

    def __init__(self, endpoint: str, identity: bytes = b"peer", *, hwm: int = 0) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.set(zmq.IDENTITY, identity)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.RCVTIMEO, 20_000)
        self.socket.set(zmq.RCVHWM, hwm)
        self.socket.connect(endpoint)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._context.destroy(linger=0)

    def send(self, message: ToEngine) -> None:
        self.socket.send(encode(message))

    def receive(self, kind: type[M]) -> M:
        """Return the next message of one kind; others are skipped."""
        while True:
            message = decode_from_engine(self.socket.recv())
            if isinstance(message, kind):
                return message

    def greet(self) -> Welcome:
        self.send(Hello(MAJOR, MINOR, "peer"))
        return self.receive(Welcome)

    def until_ended(self, *rids: int) -> list[StreamEvent]:
        """Return all events up to the end of the last of ``rids``; pings when nothing comes."""
        events: list[StreamEvent] = []
        while not set(rids) <= ends_of(events).keys():
            if not self.socket.poll(500):
                self.send(Ping(0.0))
            message = decode_from_engine(self.socket.recv())
            if isinstance(message, Step):
                events += message.events
        return events


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until ``condition`` is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
