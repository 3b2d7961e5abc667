"""``/metrics``: what this gateway measures itself, beside what the engines report."""

import time
from asyncio import CancelledError
from contextlib import aclosing

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from turing_gateway.call import Call, Event, Failure, Finish, TextDelta, ThinkDelta, ToolDelta
from turing_gateway.engine_metrics import EngineCollector
from turing_gateway.fronts.base import Events, Views
from turing_protocol.errors import Code, TuringError

TTFT_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
ITL_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)
E2E_BUCKETS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40, 60, 120, 300, 600)
QUEUE_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60)

_LABELS = ("model_name", "lane")


class Metrics:
    """All metrics of one gateway; a scrape reads what is known and waits for nobody.

    ``alias`` (``vllm``) repeats the families that llm-d's picker reads under another prefix.
    """

    def __init__(self, views: Views, *, alias: str | None = None) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(views, alias))
        self._instruments = _Instruments(self._registry)

    def expose(self) -> bytes:
        """Return the text exposition, version 0.0.4."""
        return generate_latest(self._registry)

    async def watch(self, call: Call, events: Events) -> Events:
        """Yield ``events`` of ``call`` as they come, and measure them."""
        watch = _Watch(self._instruments, call)
        try:
            async with aclosing(events):
                async for event in events:
                    watch.see(event)
                    yield event
        except TuringError as error:
            watch.fail(error)
            raise
        except (GeneratorExit, CancelledError):
            watch.leave()
            raise


class _Instruments:
    """The families that one gateway feeds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.ttft = self._histogram(
            "time_to_first_token_seconds",
            "From a request to its first piece of output",
            TTFT_BUCKETS,
        )
        self.itl = self._histogram(
            "inter_token_latency_seconds",
            "Between pieces of output, divided by the tokens of the piece",
            ITL_BUCKETS,
        )
        self.e2e = self._histogram(
            "e2e_request_latency_seconds",
            "From a request to the end of its last choice",
            E2E_BUCKETS,
        )
        self.queue = self._histogram(
            "request_queue_time_seconds", "Time a sequence waited in its engine", QUEUE_BUCKETS
        )
        self.finished = self._counter("request_success", "Choices that ended", "finished_reason")
        self.failed = self._counter("request_failure", "Requests that failed", "code")
        self.aborted = self._counter("request_abort", "Requests whose client left")
        self.lane_shed = self._counter("lane_shed", "Requests refused for load, by lane")
        self.shed = Counter(
            "turing_admission_shed",
            "Requests refused for load by this gateway (429 and shed 503)",
            registry=registry,
        )

    def _histogram(self, name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"turing_{name}", words, _LABELS, buckets=buckets, registry=self._registry)

    def _counter(self, name: str, words: str, *more: str) -> Counter:
        return Counter(f"turing_{name}", words, (*_LABELS, *more), registry=self._registry)


class _Watch:
    """Measures one call."""

    def __init__(self, instruments: _Instruments, call: Call) -> None:
        self._labels = (call.model, call.lane.name.lower())
        self._all = instruments
        self._ttft = instruments.ttft.labels(*self._labels)
        self._itl = instruments.itl.labels(*self._labels)
        self._started = time.perf_counter()
        self._last: dict[int, float] = {}
        self._running = call.choices

    def see(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, TextDelta | ThinkDelta):
            self._piece(event.choice, max(1, len(event.ids)))
        elif isinstance(event, ToolDelta):
            self._piece(event.choice, 1)
        elif isinstance(event, Finish):
            self._finish(event)
        elif isinstance(event, Failure):
            self.fail(event.error)

    def fail(self, error: TuringError) -> None:
        """Count the call as failed."""
        self._running = 0
        self._all.failed.labels(*self._labels, error.code.name.lower()).inc()
        if error.code in (Code.OVERLOADED, Code.SHED):
            self._all.shed.inc()
            self._all.lane_shed.labels(*self._labels).inc()

    def leave(self) -> None:
        """Count the call as left by its client, unless it had ended."""
        if self._running:
            self._all.aborted.labels(*self._labels).inc()

    def _piece(self, choice: int, tokens: int) -> None:
        now = time.perf_counter()
        if not self._last:
            self._ttft.observe(now - self._started)
        if choice in self._last:
            self._itl.observe((now - self._last[choice]) / tokens)
        self._last[choice] = now

    def _finish(self, event: Finish) -> None:
        self._all.finished.labels(*self._labels, event.reason).inc()
        self._all.queue.labels(*self._labels).observe(event.timings.queue_ms / 1000)
        self._running -= 1
        if not self._running:
            self._all.e2e.labels(*self._labels).observe(time.perf_counter() - self._started)
