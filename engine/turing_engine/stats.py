"""Counts what the engine does and turns it into ``Stats``. The clock is passed in, in seconds."""

from collections import deque
from collections.abc import Iterable

import msgspec

from turing_engine.plan.sequence import Sequence
from turing_engine.sessions import Stream
from turing_protocol.messages import Counters, State, Stats, Timings

WINDOW_SECONDS = 60.0
"""Age at which a latency sample stops to count."""
WINDOW_SAMPLES = 1024
RATE_SECONDS = 5.0
STEP_WEIGHT = 0.1
"""Weight of the newest step in the mean step time."""


class Facts(msgspec.Struct, frozen=True):
    """What the recorder cannot know by itself, read at the time of a snapshot."""

    state: State
    pages_total: int = 0
    pages_used: int = 0
    pages_cached: int = 0
    reserved_pages: int = 0
    running: int = 0
    waiting: tuple[int, int, int] = (0, 0, 0)
    waiting_tokens: int = 0
    preemptions: int = 0
    bad_frames: int = 0
    memory: tuple[int, int] = (0, 0)
    """Bytes used and in all."""


class Latency:
    """Recent samples of one duration, in milliseconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=WINDOW_SAMPLES)

    def add(self, now: float, milliseconds: float) -> None:
        """Count one sample."""
        self._samples.append((now, milliseconds))

    def summary(self, now: float) -> tuple[float, float]:
        """Return mean and 99th percentile (nearest rank) of the window; zeros when it is empty."""
        while self._samples and now - self._samples[0][0] > WINDOW_SECONDS:
            self._samples.popleft()
        values = sorted(value for _, value in self._samples)
        if not values:
            return 0.0, 0.0
        return sum(values) / len(values), values[-(-99 * len(values) // 100) - 1]


class Rate:
    """Events per second over the last seconds."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, now: float, count: int) -> None:
        """Count ``count`` events."""
        self._counts.append((now, count))
        self._sum += count
        self._forget(now)

    def per_second(self, now: float) -> float:
        """Return the mean rate of the window."""
        self._forget(now)
        return self._sum / RATE_SECONDS

    def _forget(self, now: float) -> None:
        while self._counts and now - self._counts[0][0] >= RATE_SECONDS:
            self._sum -= self._counts.popleft()[1]


class Recorder:
    """Everything countable of one engine life; owned by the core.

    ``requests`` = ``finished`` + ``failed`` + ``shed`` + ``aborted`` + streams that are open.
    ``failed`` counts every Failed but those for want of room, which are ``shed``; streams of a lost
    gateway are ``aborted``.
    """

    def __init__(self, engine: str, epoch: int) -> None:
        self._engine = engine
        self._epoch = epoch
        self._ttft = Latency()
        self._itl = Latency()
        self._rate = Rate()
        self._rated = 0
        self._step_ms = 0.0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.aborted_tokens = 0
        self.requests = 0
        self.finished = 0
        self.aborted = 0
        self.failed = 0
        self.shed = 0
        self.steps = 0

    def step(self, seconds: float, now: float) -> None:
        """Count a step, how long it took, and the tokens that were counted since the last one."""
        self._rate.add(now, self.output_tokens - self._rated)
        self._rated = self.output_tokens
        weight = STEP_WEIGHT if self.steps else 1.0
        self._step_ms += weight * (seconds * 1000 - self._step_ms)
        self.steps += 1

    def started(self, sequence: Sequence) -> None:
        """Count the prompt of a sequence that entered its first step."""
        self.prompt_tokens += sequence.prompt_len
        self.cached_tokens += sequence.cached

    def tokens(self, stream: Stream, count: int, now: float) -> None:
        """Count ``count`` new tokens of ``stream``."""
        if stream.last_at:
            self._itl.add(now, (now - stream.last_at) * 1000 / count)
        else:
            self._ttft.add(now, (now - stream.sequence.arrival) * 1000)
        stream.last_at = now
        self.output_tokens += count

    def cut_short(self, streams: Iterable[Stream]) -> None:
        """Count the tokens of streams that were aborted or failed."""
        self.aborted_tokens += sum(stream.generated for stream in streams)

    def tokens_per_s(self, now: float) -> float:
        """Return the output tokens per second of the last seconds."""
        return self._rate.per_second(now)

    def stats(self, now: float, facts: Facts) -> Stats:
        """Return a snapshot; ``seq`` and ``step_age_ms`` are set when it is published."""
        ttft_avg, ttft_p99 = self._ttft.summary(now)
        itl_avg, itl_p99 = self._itl.summary(now)
        return Stats(
            epoch=self._epoch,
            seq=0,
            engine=self._engine,
            state=facts.state,
            pages_total=facts.pages_total,
            pages_used=facts.pages_used,
            pages_cached=facts.pages_cached,
            running=facts.running,
            waiting=facts.waiting,
            waiting_tokens=facts.waiting_tokens,
            step_ms=self._step_ms,
            step_age_ms=0.0,
            tokens_per_s=self.tokens_per_s(now),
            ttft_avg_ms=ttft_avg,
            ttft_p99_ms=ttft_p99,
            itl_avg_ms=itl_avg,
            itl_p99_ms=itl_p99,
            counters=self._counters(facts),
            reserved_pages=facts.reserved_pages,
            memory_used=facts.memory[0],
            memory_total=facts.memory[1],
        )

    def _counters(self, facts: Facts) -> Counters:
        return Counters(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            aborted_tokens=self.aborted_tokens,
            requests=self.requests,
            finished=self.finished,
            aborted=self.aborted,
            failed=self.failed,
            shed=self.shed,
            preemptions=facts.preemptions,
            steps=self.steps,
            bad_frames=facts.bad_frames,
        )


def timings(sequence: Sequence) -> Timings:
    """Return how long an ended sequence queued, computed its prompt, and generated, in ms."""
    started = sequence.started_at or sequence.finished_at
    first = sequence.first_token_at or sequence.finished_at
    return Timings(
        queue_ms=(started - sequence.arrival) * 1000,
        prefill_ms=(first - started) * 1000,
        decode_ms=(sequence.finished_at - first) * 1000,
    )


def loading(engine: str, epoch: int) -> Stats:
    """Return the snapshot of an engine whose model is not loaded yet."""
    return Recorder(engine, epoch).stats(0.0, Facts(State.LOADING))
