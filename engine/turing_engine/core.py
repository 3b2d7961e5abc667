"""The step loop: take messages, plan, compute, settle, tell.

Everything happens on one thread between two steps, so sequences are aborted and admitted without
locks. The wire thread only moves frames; the runner only computes.
"""

import enum
import queue
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from turing_engine.admit import Gatekeeper
from turing_engine.compiling import Compiling
from turing_engine.grammar.compiler import Compiler
from turing_engine.plan.plan import Plan
from turing_engine.plan.scheduler import Progress, Scheduler
from turing_engine.plan.sequence import Sequence
from turing_engine.run.executor import Executor
from turing_engine.run.masks import Masks, make_words
from turing_engine.run.runner import DeviceError
from turing_engine.sessions import Sessions, Stream
from turing_engine.stats import Facts, Recorder, timings
from turing_engine.wire import Inbound, Item, Later, Lost, Reopened, Wire
from turing_protocol.codec import compatible, pack
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import (
    MAJOR,
    Abort,
    Asset,
    Done,
    Drain,
    DropAdapter,
    Failed,
    Fetch,
    Finished,
    Hello,
    LoadAdapter,
    PageEvents,
    Ping,
    Reason,
    Refused,
    Started,
    State,
    Submit,
    Tokens,
    Welcome,
)

IDLE_SECONDS = 0.05
"""Longest wait for a message when there is nothing to compute."""
SNAPSHOT_SECONDS = 0.05
LEASE_CHECK_SECONDS = 1.0
FAILURES_BROKEN = 3
"""Failing steps in a row after which the engine is no good."""


NOBODY = b""
"""Sender of messages that come from inside the process; no socket has this identity."""


class Exit(enum.IntEnum):
    """How the process ends."""

    OK = 0
    BROKEN = 70


class Identity(msgspec.Struct, frozen=True):
    """What this engine is for its gateways."""

    welcome: Welcome
    assets: Mapping[str, bytes]
    memory: Callable[[], tuple[int, int]]
    """Returns the bytes of the device in use and in all."""

    @property
    def epoch(self) -> int:
        """The random number of this process life."""
        return self.welcome.epoch


class EngineCore:
    """One engine: sessions, scheduler and executor behind one wire. ``run`` is its whole life."""

    def __init__(
        self,
        wire: Wire,
        scheduler: Scheduler,
        executor: Executor,
        gatekeeper: Gatekeeper,
        identity: Identity,
        *,
        compiler: Compiler | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = State.READY
        self.turns = 0
        """Rounds of the loop, busy or idle; one that stands still hangs."""
        self.sessions = Sessions()
        self.recorder = Recorder(identity.welcome.engine, identity.epoch)
        self._wire = wire
        self.scheduler = scheduler
        self._executor = executor
        self._gatekeeper = gatekeeper
        self.identity = identity
        self._clock = clock
        self._compiling = None
        if compiler is not None:
            self._compiling = Compiling(compiler, self._post, self._compiled)
        self._mask_words = make_words(gatekeeper.limits.max_running, gatekeeper.vocab_size)
        self._log = structlog.get_logger("core")
        self._busy = False
        self._failures = 0
        self._misuses = 0
        self._page_seq = 0
        self._drain_until = float("inf")
        self._snapshot_due = 0.0
        self._lease_due = 0.0
        self._handlers: dict[type, Callable[[bytes, Any, float], None]] = {
            Hello: self._hello,
            Submit: self._submit,
            Abort: self._abort,
            Ping: self._ping,
            Fetch: self._fetch,
            LoadAdapter: self._refuse_adapter,
            DropAdapter: self._refuse_adapter,
            Drain: self._drain,
        }

    def run(self) -> Exit:
        """Serve until drained or broken, tell everyone, and close wire and device."""
        try:
            while not self._over():
                self.intake()
                self.turn()
                self.turns += 1
        except Exception:
            self._log.exception("the step loop failed")
            self.state = State.BROKEN
        self._leave()
        return Exit.BROKEN if self.state is State.BROKEN else Exit.OK

    def drain(self, seconds: float) -> None:
        """Take no new work and let ``run`` return when all is done; callable from any thread."""
        self._wire.inbox.put(Inbound(NOBODY, Drain(0, seconds), self._clock()))

    def intake(self) -> None:
        """Handle what has arrived; wait for it, but not for long, when there is nothing to do."""
        for item in self._arrivals():
            self._take(item)
        self._check_times()
        self._emit()

    def turn(self) -> None:
        """Compute one step, if any sequence can run, and tell what it produced."""
        began = now = self._clock()
        plan = self.scheduler.plan(began)
        self._busy = plan is not None
        if plan is None:
            return
        self._tell_started()
        self._snapshot(began)
        self._wire.step_began = began
        try:
            result = self._executor.launch(plan, self._constrain(plan)).wait()
            now = self._clock()
            progress = self.scheduler.settle(plan, result, now)
        except Exception as error:
            self._fail_step(plan, error)
        else:
            self._failures = 0
            self._tell_progress(progress, now)
            self.recorder.step(now - began, now)
        finally:
            self._wire.step_began = 0.0
        self._publish_pages()
        self._emit()

    # -- the loop's parts -------------------------------------------------------------------------

    def _over(self) -> bool:
        if self.state is State.DRAINING:
            return not len(self.sessions) or self._clock() >= self._drain_until
        return self.state is State.BROKEN

    def _leave(self) -> None:
        rest = [stream.sequence for stream in self.sessions.streams()]
        self._fail(rest, Code.ENGINE_LOST, "the engine ended before the sequence did")
        self._emit()
        self._snapshot_due = 0.0
        self._snapshot(self._clock())
        self._wire.stop()
        if self._compiling is not None:
            self._compiling.close()
        if self.state is not State.BROKEN:
            self._executor.close()

    def _constrain(self, plan: Plan) -> Masks | None:
        rows = self.scheduler.constrained(plan)
        return Masks(self._mask_words, rows) if rows else None

    def _post(self, work: Callable[[], None]) -> None:
        """Have ``work`` done on this loop's thread; callable from any."""
        self._wire.inbox.put(Later(work))

    def _arrivals(self) -> Iterator[Item]:
        inbox = self._wire.inbox
        if not self._busy:
            self._snapshot(self._clock())
            with suppress(queue.Empty):
                yield inbox.get(timeout=IDLE_SECONDS)
        for _ in range(inbox.qsize()):
            yield inbox.get_nowait()

    def _take(self, item: Item) -> None:
        if isinstance(item, Inbound):
            self.sessions.hear(item.gateway, item.at)
            self._handlers[type(item.message)](item.gateway, item.message, item.at)
        elif isinstance(item, Lost):
            streams = self.sessions.lose(item.gateway, gone=item.gone)
            self._log.warning("gateway lost", gone=item.gone, streams=len(streams))
            self._drop(streams)
            self._wire.reopen(item.gateway)
        elif isinstance(item, Reopened):
            self.sessions.reopened(item.gateway, item.rids)
        elif isinstance(item, Later):
            item.run()
        else:
            raise RuntimeError(f"the wire is down: {item.error}")  # noqa: TRY004

    def _check_times(self) -> None:
        now = self._clock()
        late = self.scheduler.expire(now)
        self._fail(late, Code.DEADLINE, "the request did not start before its deadline")
        if self._compiling is not None:
            self._compiling.expire(now)
        if now >= self._lease_due:
            self._lease_due = now + LEASE_CHECK_SECONDS
            self._drop(self.sessions.expire(now))

    def _emit(self) -> None:
        for gateway, step in self.sessions.steps(self.recorder.steps):
            self._wire.send(gateway, step)

    def _publish_pages(self) -> None:
        stored, removed = self.scheduler.drain_page_events()
        if stored or removed:
            self._page_seq += 1
            epoch = self.identity.epoch
            self._wire.publish(PageEvents(epoch, self._page_seq, stored, removed))

    def _snapshot(self, now: float) -> None:
        """Renew what the wire publishes, at most every ``SNAPSHOT_SECONDS``."""
        if now < self._snapshot_due:
            return
        self._snapshot_due = now + SNAPSHOT_SECONDS
        self._wire.stats = self.recorder.stats(now, self._facts())

    def _facts(self) -> Facts:
        scheduler = self.scheduler
        return Facts(
            state=self.state,
            pages_total=self._gatekeeper.limits.pages_total,
            pages_used=scheduler.pages_used,
            pages_cached=scheduler.pages_cached,
            reserved_pages=scheduler.reserved_pages,
            running=scheduler.running,
            waiting=scheduler.waiting,
            waiting_tokens=scheduler.waiting_tokens,
            preemptions=scheduler.preemptions,
            bad_frames=self._misuses + self._wire.bad_frames,
            memory=self.identity.memory(),
        )

    # -- what happened to sequences ---------------------------------------------------------------

    def _tell_started(self) -> None:
        for sequence in self.scheduler.drain_started():
            self._start(sequence)

    def _start(self, sequence: Sequence) -> None:
        gateway, rid = sequence.owner
        knobs = sequence.knobs
        self.recorder.started(sequence)
        self.sessions.tell(
            gateway,
            Started(
                rid,
                sequence.prompt_len,
                sequence.cached,
                knobs.sparsity or 0.0,
                knobs.svd_kv or 0,
                knobs.draft_tokens or 0,
                _warnings(sequence),
            ),
        )

    def _tell_progress(self, progress: Iterable[Progress], now: float) -> None:
        for item in progress:
            gateway, rid = item.sequence.owner
            if item.ids:
                self.recorder.tokens(self.sessions.find(item.sequence.owner), len(item.ids), now)
                self.sessions.tell(gateway, Tokens(rid, pack(item.ids), tuple(item.logprobs)))
            if item.sequence.finish is not None:
                self._finish(item.sequence, item.sequence.finish)
            elif item.failure:
                words = f"the grammar of the answer failed: {item.failure}"
                self._fail([item.sequence], Code.CONSTRAINT_INVALID, words)

    def _finish(self, sequence: Sequence, reason: Reason) -> None:
        gateway, rid = sequence.owner
        self.sessions.close(sequence.owner)
        self.recorder.finished += 1
        self.sessions.tell(
            gateway,
            Finished(
                rid,
                reason,
                sequence.prompt_len,
                sequence.cached,
                sequence.output_len,
                timings(sequence),
                _warnings(sequence),
            ),
        )

    def _fail(self, sequences: Iterable[Sequence], code: Code, message: str) -> None:
        for sequence in sequences:
            stream = self.sessions.close(sequence.owner)
            if stream is not None:
                self.recorder.cut_short([stream])
            self._refuse(*sequence.owner, TuringError(code, message))

    def _refuse(self, gateway: bytes, rid: int, error: TuringError) -> None:
        if error.code in (Code.OVERLOADED, Code.SHED):
            self.recorder.shed += 1
        else:
            self.recorder.failed += 1
        failed = Failed(rid, error.code, error.message, error.retry_ms, error.param)
        self.sessions.tell(gateway, failed)

    def _drop(self, streams: list[Stream]) -> None:
        """Abort streams that nobody waits for any more."""
        now = self._clock()
        for stream in streams:
            self.scheduler.abort(stream.sequence, now)
        self.recorder.aborted += len(streams)
        self.recorder.cut_short(streams)

    def _fail_step(self, plan: Plan, error: Exception) -> None:
        """Fail the sequences of ``plan`` and nobody else; give up when that keeps happening."""
        log_id = secrets.token_hex(4)
        self._log.error("step failed", log_id=log_id, step=plan.step, exc_info=error)
        failed = self.scheduler.fail(plan, self._clock())
        self._fail(
            failed, Code.STEP_FAILED, f"the step failed: {type(error).__name__} (log {log_id})"
        )
        self._failures += 1
        if isinstance(error, DeviceError) or self._failures >= FAILURES_BROKEN:
            self.state = State.BROKEN

    # -- messages ---------------------------------------------------------------------------------

    def _hello(self, gateway: bytes, hello: Hello, at: float) -> None:
        if not compatible(hello.major):
            words = f"this engine speaks wire version {MAJOR}, not {hello.major}"
            self._wire.send(gateway, Refused(Code.VERSION, words))
            return
        self._drop(self.sessions.hello(gateway, at))
        self._wire.send(gateway, self.identity.welcome)
        self._log.info("gateway greeted", gateway=hello.gateway)

    def _submit(self, gateway: bytes, submit: Submit, at: float) -> None:
        try:
            if not self.sessions.claim(gateway, submit.rid):
                self._misuses += 1
                return
            self._admit(gateway, submit, at)
        except TuringError as error:
            self._refuse(gateway, submit.rid, error)
        except Exception as error:
            log_id = secrets.token_hex(4)
            self._log.error("admission failed", log_id=log_id, exc_info=error)
            words = f"the request could not be admitted (log {log_id})"
            self._refuse(gateway, submit.rid, TuringError(Code.INTERNAL, words))
        self.recorder.requests += 1

    def _admit(self, gateway: bytes, submit: Submit, at: float) -> None:
        if submit.epoch != self.identity.epoch:
            raise TuringError(Code.ENGINE_LOST, "the request was meant for an earlier process")
        if self.state is not State.READY:
            raise TuringError(Code.DRAINING, "this engine takes no new work")
        sequence = self._gatekeeper.sequence(gateway, submit, at)
        stream = Stream(sequence, prior=sequence.output_len)
        if submit.constraint is not None and self._compiling is not None:
            self._compiling.start(sequence, submit.constraint, self._clock())
            self.sessions.open(stream)
            return
        if sequence.finish is None:
            self._queue(sequence)
        self.sessions.open(stream)
        self._finish_early(sequence)

    def _compiled(self, sequence: Sequence, error: TuringError | None) -> None:
        """Queue a sequence that has its grammar; what became of one without is told."""
        if not self.sessions.holds(sequence):
            return
        try:
            if error is not None:
                raise error
            if sequence.finish is None:
                self._queue(sequence)
        except TuringError as refusal:
            self.sessions.close(sequence.owner)
            self._refuse(*sequence.owner, refusal)
        else:
            self._finish_early(sequence)

    def _queue(self, sequence: Sequence) -> None:
        now = self._clock()
        self.scheduler.add(sequence, now, self.recorder.tokens_per_s(now))

    def _finish_early(self, sequence: Sequence) -> None:
        """End a sequence that came with its whole output."""
        if sequence.finish is not None:
            self._start(sequence)
            self._finish(sequence, sequence.finish)

    def _abort(self, gateway: bytes, abort: Abort, at: float) -> None:
        stream = self.sessions.close((gateway, abort.rid))
        if stream is not None:
            self._drop([stream])

    def _ping(self, gateway: bytes, ping: Ping, at: float) -> None:
        """Nothing is left to do: the wire has answered and the lease is renewed."""

    def _fetch(self, gateway: bytes, fetch: Fetch, at: float) -> None:
        for name in fetch.names:
            data = self.identity.assets.get(name)
            if data is None:
                answer: Asset | Done = Done(fetch.op, False, f"there is no asset {name[:80]!r}")
            else:
                answer = Asset(fetch.op, name, data)
            self._wire.send(gateway, answer)

    def _refuse_adapter(
        self, gateway: bytes, message: LoadAdapter | DropAdapter, at: float
    ) -> None:
        self._wire.send(gateway, Done(message.op, False, "this engine has no adapter pool"))

    def _drain(self, gateway: bytes, drain: Drain, at: float) -> None:
        self.state = State.DRAINING
        self._drain_until = min(self._drain_until, at + max(0.0, drain.seconds))
        self._log.info("draining", seconds=drain.seconds, streams=len(self.sessions))
        if gateway != NOBODY:
            self._wire.send(gateway, Done(drain.op, True))


def _warnings(sequence: Sequence) -> tuple[str, ...]:
    return sequence.grammar.warnings if sequence.grammar is not None else ()
