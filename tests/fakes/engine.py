"""An engine without a model: the true wire over real sockets, tokens from a formula.

The next token is a function of the whole history (and of the seed unless greedy), so whatever was
resumed, moved or cut can be checked token by token against ``expected``. As a process, in tests/:
``python -m fakes.engine --bind ipc:///path/e.sock``.
"""

import argparse
import hashlib
import secrets
import threading
import time
import zlib
from array import array
from collections import deque
from collections.abc import Sequence

import msgspec
import zmq

from fakes.wire import ASSETS, LIMITS, MODEL, make_stats
from turing_protocol.codec import decode_to_engine, encode, pack, unpack
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import (
    MAJOR,
    MINOR,
    STATS_TOPIC,
    Abort,
    Asset,
    Counters,
    Done,
    Drain,
    Failed,
    Fetch,
    Finished,
    FromEngine,
    Hello,
    Limits,
    ModelInfo,
    Ping,
    Pong,
    Reason,
    Refused,
    Started,
    State,
    Step,
    StreamEvent,
    Submit,
    Timings,
    ToEngine,
    TokenLogprobs,
    Tokens,
    Welcome,
)
from turing_protocol.prefix import PAGE
from turing_protocol.sampling import Sampling

STATS_SECONDS = 0.1


def next_token(history: Sequence[int], sampling: Sampling) -> int:
    """Return the token that follows ``history`` (prompt and everything generated): a letter."""
    seed = 0 if sampling.greedy else sampling.seed
    crc = zlib.crc32(array("q", [seed]).tobytes(), zlib.crc32(pack(history)))
    return ord("a") + crc % 26


def expected(prompt: Sequence[int], sampling: Sampling) -> list[int]:
    """Return all tokens that an undisturbed run gives."""
    history = list(prompt)
    for _ in range(sampling.max_tokens):
        history.append(next_token(history, sampling))
        if history[-1] in sampling.stop_ids:
            break
    return history[len(prompt) :]


class _Sequence(msgspec.Struct, eq=False):
    gateway: bytes
    rid: int
    submit: Submit
    history: list[int]
    prompt: int
    started: bool = False

    @property
    def output(self) -> int:
        return len(self.history) - self.prompt

    @property
    def footprint(self) -> int:
        return -(-(self.prompt + self.submit.sampling.max_tokens) // PAGE)


class FakeEngine:
    """One engine on ``bind``. ``start`` runs it in a thread; ``serve`` in the calling one.

    ``script`` holds outputs to play instead of the formula, one per submit; each is followed by the
    end-of-sequence token.
    ``step_seconds`` is the pause between steps, in each of which every running sequence gets one
    token. ``refuse`` are codes with which the next submits fail.
    """

    def __init__(
        self,
        bind: str,
        *,
        name: str = "fake-0",
        model: ModelInfo = MODEL,
        limits: Limits = LIMITS,
        assets: dict[str, bytes] | None = None,
        adapters: tuple[str, ...] = (),
        step_seconds: float = 0.002,
        script: Sequence[Sequence[int]] = (),
    ) -> None:
        self.bind = bind
        self.name = name
        self.model = model
        self.limits = limits
        self.assets = ASSETS if assets is None else assets
        self.adapters = adapters
        self.step_seconds = step_seconds
        self.script = deque(script)
        self.refuse: deque[Code] = deque()
        self.major = MAJOR
        self.state = State.READY
        self.reserved_elsewhere = 0
        """Pages that another gateway's sequences are said to hold."""
        self.submitted: list[Submit] = []
        self.aborted: list[int] = []
        self.fetched: list[str] = []
        self._plays: dict[tuple[bytes, int], list[int]] = {}
        self._alive = threading.Event()
        self._hung = threading.Event()
        self._thread: threading.Thread | None = None
        self._reset()

    def _reset(self) -> None:
        self.epoch = secrets.randbits(32)
        self.running: list[_Sequence] = []
        self.waiting: list[_Sequence] = []
        self._greeted: set[bytes] = set()
        self._steps = 0
        self._seq = 0
        self._outbox: dict[bytes, list[StreamEvent]] = {}
        self._finished = 0
        self._output_tokens = 0

    @property
    def endpoint(self) -> str:
        """What a gateway dials."""
        return self.bind

    def start(self) -> "FakeEngine":
        """Run in a thread with a new epoch, as a new process would."""
        self._reset()
        self._alive.set()
        bound = threading.Event()
        self._thread = threading.Thread(target=self.serve, args=(bound,), daemon=True)
        self._thread.start()
        if not bound.wait(10):
            raise TimeoutError(f"{self.bind} was not bound")
        return self

    def kill(self) -> None:
        """End at once, in the middle of whatever runs: sockets close, nobody is told."""
        self._alive.clear()
        self._hung.clear()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def hang(self) -> None:
        """Stop doing anything, as after SIGSTOP; sockets stay open."""
        self._hung.set()

    def wake(self) -> None:
        """Go on after ``hang``."""
        self._hung.clear()

    def restart(self) -> None:
        """Kill, and come back on the same address as another process life."""
        self.kill()
        self.start()

    def serve(self, bound: threading.Event | None = None) -> None:
        """Serve until ``kill``."""
        with zmq.Context() as context:
            self._router = context.socket(zmq.ROUTER)
            self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)
            self._pub = context.socket(zmq.PUB)
            for socket in (self._router, self._pub):
                socket.setsockopt(zmq.LINGER, 0)
            self._router.bind(self.bind)
            self.bind = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
            self._pub.bind("tcp://127.0.0.1:*" if self.bind.startswith("tcp") else f"{self.bind}.s")
            if bound is not None:
                bound.set()
            self._alive.set()
            self._loop()
            self._router.close()
            self._pub.close()

    def _loop(self) -> None:
        step_at = stats_at = time.monotonic()
        while self._alive.is_set():
            if self._hung.is_set():
                time.sleep(0.005)
                continue
            self._receive(max(0.0, min(step_at, stats_at) - time.monotonic()))
            now = time.monotonic()
            if now >= stats_at:
                self._publish()
                stats_at = now + STATS_SECONDS
            if now >= step_at:
                self._step()
                step_at = now + self.step_seconds
            self._flush()

    def _receive(self, seconds: float) -> None:
        wait = int(seconds * 1000)
        while self._router.poll(wait):
            gateway, frame = self._router.recv_multipart()
            try:
                self._handle(gateway, decode_to_engine(frame))
            except TuringError as error:
                self._send(gateway, Refused(error.code, error.message))
            wait = 0

    def _handle(self, gateway: bytes, message: ToEngine) -> None:
        if isinstance(message, Hello):
            self._drop(gateway)
            self._greeted.add(gateway)
            self._send(gateway, self._welcome())
        elif isinstance(message, Submit):
            self.submitted.append(message)
            self._admit(gateway, message)
        elif isinstance(message, Abort):
            self.aborted.append(message.rid)
            self._drop(gateway, message.rid)
        elif isinstance(message, Ping):
            self._send(gateway, Pong(message.sent))
        elif isinstance(message, Fetch):
            self._fetch(gateway, message)
        elif isinstance(message, Drain):
            self.state = State.DRAINING
            self._send(gateway, Done(message.op, True))

    def _welcome(self) -> Welcome:
        state = self._pub.getsockopt_string(zmq.LAST_ENDPOINT).replace("127.0.0.1", "*")
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in self.assets.items()}
        return Welcome(
            self.major,
            MINOR,
            self.epoch,
            self.name,
            state,
            self.model,
            self.limits,
            hashes,
            self.adapters,
        )

    def _admit(self, gateway: bytes, submit: Submit) -> None:
        failure = self._judge(gateway, submit)
        if failure is not None:
            self._tell(gateway, Failed(submit.rid, failure, "refused by script", 2000))
            return
        prompt = unpack(submit.prompt)
        history = prompt + unpack(submit.prior)
        sequence = _Sequence(gateway, submit.rid, submit, history, len(prompt))
        if self.script:
            self._plays[gateway, submit.rid] = list(self.script.popleft())
        self.waiting.append(sequence)

    def _judge(self, gateway: bytes, submit: Submit) -> Code | None:
        if self.refuse:
            return self.refuse.popleft()
        if gateway not in self._greeted or submit.epoch != self.epoch:
            return Code.ENGINE_LOST
        if self.state == State.DRAINING:
            return Code.DRAINING
        return Code.OVERLOADED if len(self.waiting) >= self.limits.max_waiting else None

    def _fetch(self, gateway: bytes, fetch: Fetch) -> None:
        for name in fetch.names:
            if name not in self.assets:
                self._send(gateway, Done(fetch.op, False, f"no asset {name}"))
                return
            self.fetched.append(name)
            self._send(gateway, Asset(fetch.op, name, self.assets[name]))

    def _drop(self, gateway: bytes, rid: int | None = None) -> None:
        def kept(sequence: _Sequence) -> bool:
            return sequence.gateway != gateway or rid not in (None, sequence.rid)

        self.running = [sequence for sequence in self.running if kept(sequence)]
        self.waiting = [sequence for sequence in self.waiting if kept(sequence)]

    def _step(self) -> None:
        while self.waiting and len(self.running) < self.limits.max_running:
            self.running.append(self.waiting.pop(0))
        self._steps += 1
        for sequence in list(self.running):
            if not sequence.started:
                sequence.started = True
                self._tell(sequence.gateway, Started(sequence.rid, sequence.prompt, 0))
            self._advance(sequence)

    def _advance(self, sequence: _Sequence) -> None:
        sampling = sequence.submit.sampling
        token: int | None = None
        if sequence.output < sampling.max_tokens:
            token = self._next(sequence)
            sequence.history.append(token)
            count = 1 if sampling.logprobs >= 0 else 0
            logprobs = (TokenLogprobs(-0.5, pack([token]), array("f", [-0.5]).tobytes()),) * count
            self._tell(sequence.gateway, Tokens(sequence.rid, pack([token]), logprobs))
        if token in self.model.eos_ids or token in sampling.stop_ids:
            self._finish(sequence, Reason.STOP)
        elif sequence.output >= sampling.max_tokens:
            self._finish(sequence, Reason.LENGTH)

    def _next(self, sequence: _Sequence) -> int:
        play = self._plays.get((sequence.gateway, sequence.rid))
        if play is not None:
            return play[sequence.output] if sequence.output < len(play) else self.model.eos_ids[0]
        return next_token(sequence.history, sequence.submit.sampling)

    def _finish(self, sequence: _Sequence, reason: Reason) -> None:
        self.running.remove(sequence)
        output = sequence.output
        self._finished += 1
        self._output_tokens += output
        done = Finished(sequence.rid, reason, sequence.prompt, 0, output, Timings(1.0, 2.0, 3.0))
        self._tell(sequence.gateway, done)

    def _tell(self, gateway: bytes, event: StreamEvent) -> None:
        self._outbox.setdefault(gateway, []).append(event)

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, {}
        for gateway, events in outbox.items():
            self._send(gateway, Step(self._steps, events))

    def _send(self, gateway: bytes, message: FromEngine) -> None:
        try:
            self._router.send_multipart([gateway, encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError:
            self._drop(gateway)

    def _publish(self) -> None:
        self._seq += 1
        lanes = [sum(s.submit.lane == lane for s in self.waiting) for lane in range(3)]
        reserved = sum(sequence.footprint for sequence in [*self.running, *self.waiting])
        used = sum(-(-len(sequence.history) // PAGE) for sequence in self.running)
        stats = make_stats(
            self.epoch,
            engine=self.name,
            state=self.state,
            pages_total=self.limits.pages_total,
            pages_used=used,
            reserved_pages=reserved + self.reserved_elsewhere,
            running=len(self.running),
            waiting=(lanes[0], lanes[1], lanes[2]),
            seq=self._seq,
            counters=Counters(output_tokens=self._output_tokens, finished=self._finished),
        )
        self._pub.send_multipart([STATS_TOPIC, encode(stats)])


def main() -> None:
    """Serve on ``--bind`` until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bind", required=True)
    parser.add_argument("--name", default="fake-0")
    parser.add_argument("--step-seconds", type=float, default=0.002)
    options = parser.parse_args()
    FakeEngine(options.bind, name=options.name, step_seconds=options.step_seconds).serve()


if __name__ == "__main__":
    main()
