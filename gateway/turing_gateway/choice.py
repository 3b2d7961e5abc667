"""One choice of a call on its way through engines: submitted, resumed elsewhere, read as events."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec
from msgspec.structs import replace

from turing_gateway.call import Begin, Call, Event, Failure
from turing_gateway.checks import warnings_of
from turing_gateway.fleet.fleet import Fleet
from turing_gateway.fleet.picker import Want, pick
from turing_gateway.fleet.view import EngineView
from turing_gateway.text.stream import TextStream
from turing_protocol.admission import RETRY_MS
from turing_protocol.codec import pack, unpack
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import (
    Failed,
    Finished,
    Reason,
    Started,
    StreamEvent,
    Submit,
    Timings,
    Tokens,
)
from turing_protocol.sampling import Sampling

ASK_AGAIN = 0.25
"""Seconds between two looks for an engine that can go on with a lost stream."""

_LOST = (Code.ENGINE_LOST, Code.DRAINING)
_FULL = (Code.OVERLOADED, Code.SHED)

log = logging.getLogger(__name__)


class Resume(msgspec.Struct, frozen=True):
    """How far a stream is carried over lost engines."""

    limit: int = 2
    """Losses that one choice survives."""
    seconds: float = 5.0
    """How long a loss may last; an engine that restarts within it counts."""


RESUME = Resume()


class Job(msgspec.Struct, frozen=True):
    """A call made ready for engines; the same for all of its choices but for the seed."""

    call: Call
    sampling: Sampling
    prompt: bytes
    want: Want
    able: Callable[[EngineView], bool]
    """Whether an engine has the controls that the call asks for."""

    def choose(self, views: Sequence[EngineView], avoid: frozenset[int]) -> EngineView | None:
        """Return the engine to run on, if any can."""
        return pick([v for v in views if self.able(v)], replace(self.want, avoid=avoid))

    def submit(self, choice: int, prior: Sequence[int]) -> Submit:
        """Return the message for ``choice`` whose first tokens ``prior`` exist already."""
        call = self.call
        seed = _as_int64(self.sampling.seed + choice)
        return Submit(
            rid=0,
            epoch=0,
            prompt=self.prompt,
            sampling=replace(self.sampling, seed=seed),
            lane=call.lane,
            adapter=self.want.adapter,
            knobs=call.knobs,
            constraint=call.format,
            prior=pack(prior),
            trace=call.request_id,
            salt=call.salt,
        )


class Choice:
    """Runs one choice; ``events`` is to be iterated once."""

    def __init__(
        self, fleet: Fleet, job: Job, text: TextStream, index: int, resume: Resume
    ) -> None:
        self._fleet = fleet
        self._job = job
        self._text = text
        self._index = index
        self._resume = resume
        self._tokens: list[int] = []
        self._started: Started | None = None
        self._warnings: tuple[str, ...] = ()
        self._sent_at = time.monotonic()
        self._first_at = 0.0
        self._ended = False
        self._losses = 0
        self._forced = False
        self._refusals = 0
        self._avoid: set[int] = set()
        self._error: TuringError | None = None
        self._give_up_at = 0.0

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield ``Begin``, text, one ``Finish`` or ``Failure``. Closing it aborts the engine."""
        try:
            while not self._ended:
                engine = await self._place()
                submit = self._job.submit(self._index, self._tokens)
                async with self._fleet.submit(engine, submit, self._job.want.pages) as stream:
                    async for event in stream:
                        for shown in self._take(event, engine):
                            yield shown
                        if self._ended or self._text.spent:
                            break
                for shown in self._end_reasoning():
                    yield shown
        except TuringError as error:
            yield Failure(self._index, error)

    async def _place(self) -> EngineView:
        """Return an engine; after a loss wait for one."""
        while True:
            engine = self._job.choose(self._fleet.views, frozenset(self._avoid))
            if engine is not None:
                return engine
            left = self._give_up_at - time.monotonic()
            if left <= 0 or self._fleet.closed:
                raise self._final_error()
            self._avoid.clear()
            await self._fleet.changed(min(left, ASK_AGAIN))

    def _take(self, event: StreamEvent, engine: EngineView) -> list[Event]:
        if isinstance(event, Tokens):
            return self._feed(event)
        if isinstance(event, Started):
            return self._begin(event, engine)
        if isinstance(event, Finished):
            self._ended = True
            last = self._whole(event) if self._resumed else event
            return self._text.finish(replace(last, warnings=self._all_warnings(event)))
        self._fail(event, engine)
        return []

    def _feed(self, event: Tokens) -> list[Event]:
        if not self._tokens:
            self._first_at = time.monotonic()
        ids = unpack(event.ids)
        self._error = None
        shown = self._text.feed(ids, event.logprobs)
        self._tokens += ids[: self._text.received - len(self._tokens)]
        if self._text.stopped:
            self._ended = True
            shown += self._text.finish(self._own_finished(Reason.STOP))
        return shown

    def _end_reasoning(self) -> list[Event]:
        """Put the end tag behind reasoning that has used up its budget, for an engine to go on.

        Where ``max_tokens`` leaves no room behind the tag, the answer ends as it is.
        """
        if self._ended or not self._text.spent:
            return []
        ids = self._text.end_ids
        if len(self._tokens) + len(ids) >= self._job.sampling.max_tokens:
            self._ended = True
            return self._text.finish(self._own_finished(Reason.LENGTH))
        self._forced = True
        self._tokens += ids
        return self._text.force_end()

    @property
    def _resumed(self) -> bool:
        """Whether the engine that ends the stream did not generate all of it."""
        return self._forced or self._losses > 0

    def _begin(self, started: Started, engine: EngineView) -> list[Event]:
        if self._started is not None:
            return []
        self._started = started
        self._warnings = (*warnings_of(self._job.call), *started.warnings)
        if self._job.call.strict and self._warnings:
            words = "; ".join(self._warnings)
            raise TuringError(Code.UNSUPPORTED, words, param=self._job.call.format_field)
        stats = engine.stats
        return [
            Begin(
                choice=self._index,
                prompt_tokens=started.prompt,
                cached_tokens=started.cached,
                engine=engine.name,
                sparsity=started.sparsity,
                svd_kv=started.svd_kv,
                draft_tokens=started.draft_tokens,
                kv_utilization=stats.pages_used / max(1, stats.pages_total) if stats else 0.0,
                queue_depth=engine.waiting,
                warnings=self._warnings,
            )
        ]

    def _all_warnings(self, last: Finished) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._warnings, *last.warnings)))

    def _whole(self, last: Finished) -> Finished:
        """Return the end of a resumed stream: an engine knows only its own part."""
        own = self._own_finished(last.reason)
        return replace(last, cached=own.cached, timings=own.timings)

    def _own_finished(self, reason: Reason) -> Finished:
        """Return what the engine would say, as seen from here: prefill includes the queue."""
        now = time.monotonic()
        first = self._first_at or now
        started = self._started
        return Finished(
            rid=0,
            reason=reason,
            prompt=started.prompt if started else 0,
            cached=started.cached if started else 0,
            output=len(self._tokens),
            timings=Timings(0.0, (first - self._sent_at) * 1000, (now - first) * 1000),
            warnings=self._warnings,
        )

    def _fail(self, failed: Failed, engine: EngineView) -> None:
        """Note a failure that another engine may make good; raise any other."""
        constrained = failed.code is Code.CONSTRAINT_INVALID
        param = self._job.call.format_field if constrained else failed.param
        error = TuringError(failed.code, failed.message, param=param, retry_ms=failed.retry_ms)
        lost, full, begun = failed.code in _LOST, failed.code in _FULL, self._started is not None
        self._losses += lost
        self._refusals += full
        final = self._fleet.closed or self._losses > self._resume.limit
        if final or not (lost or full):
            raise error
        if full and not begun and self._refusals > 1:
            raise error
        if failed.code != Code.ENGINE_LOST:
            self._avoid.add(engine.epoch)
        if self._error is None:
            wait = self._resume.seconds if lost or begun else 0.0
            self._give_up_at = time.monotonic() + wait
        self._error = error
        log.info(
            "request %s choice %d after %d tokens: %s",
            self._job.call.request_id,
            self._index,
            len(self._tokens),
            failed.message,
        )

    def _final_error(self) -> TuringError:
        """Return why there is no engine: before the first event nothing is lost but time."""
        if self._started is None and (self._error is None or self._error.code in _LOST):
            name = self._job.call.model
            return TuringError(
                Code.NO_ENGINE, f"no engine is ready for {name or 'the model'}", retry_ms=RETRY_MS
            )
        return self._error or TuringError(Code.ENGINE_LOST, "the engine was lost")


async def merge(sources: Sequence[AsyncGenerator[Event, None]]) -> AsyncGenerator[Event, None]:
    """Yield the events of all sources as they come; closing it closes them."""
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for event in only:
                yield event
        return
    queue: asyncio.Queue[Event | asyncio.Task[None]] = asyncio.Queue()
    tasks = [asyncio.create_task(_drain(source, queue.put_nowait)) for source in sources]
    for task in tasks:
        task.add_done_callback(queue.put_nowait)
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, asyncio.Task):
                item.result()
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _drain(source: AsyncGenerator[Event, None], put: Callable[[Event], None]) -> None:
    async with aclosing(source) as events:
        async for event in events:
            put(event)


def _as_int64(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63
