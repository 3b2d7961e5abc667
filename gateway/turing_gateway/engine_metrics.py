"""What engines report, as Prometheus families: one aggregate series each, and one per engine.

llm-d's picker reads the first series of a family, so the families that it looks at have one.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from turing_gateway.fronts.base import Views
from turing_protocol.lanes import Lane
from turing_protocol.messages import Counters, Stats
from turing_protocol.prefix import PAGE

_AGGREGATES: tuple[tuple[str, str, Callable[[Sequence[Stats]], float]], ...] = (
    ("num_requests_running", "Sequences being decoded", lambda all: sum(s.running for s in all)),
    (
        "num_requests_waiting",
        "Sequences waiting in engines",
        lambda all: sum(sum(s.waiting) for s in all),
    ),
    (
        "kv_cache_usage_perc",
        "Share of KV pages held by sequences, 0 to 1",
        lambda all: _ratio(sum(s.pages_used for s in all), sum(s.pages_total for s in all)),
    ),
    (
        "vram_utilization_ratio",
        "Share of device memory in use, 0 to 1",
        lambda all: _ratio(sum(s.memory_used for s in all), sum(s.memory_total for s in all)),
    ),
    (
        "serving_throughput_tok_per_sec",
        "Output tokens per second of all engines",
        lambda all: sum(s.tokens_per_s for s in all),
    ),
    (
        "ttft_avg_ms",
        "Mean time to first token in engines, recent requests",
        lambda all: _mean(s.ttft_avg_ms for s in all),
    ),
    (
        "ttft_p99_ms",
        "99th percentile of the time to first token, worst engine",
        lambda all: max((s.ttft_p99_ms for s in all), default=0.0),
    ),
    (
        "itl_avg_ms",
        "Mean inter-token latency in engines, recent tokens",
        lambda all: _mean(s.itl_avg_ms for s in all),
    ),
)

_ALIASED = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")

_TOTALS = (
    ("prompt_tokens", "prompt_tokens", "Prompt tokens taken in"),
    ("generation_tokens", "output_tokens", "Tokens generated"),
    ("prefix_cache_queries", "prompt_tokens", "Prompt tokens looked up in prefix caches"),
    ("prefix_cache_hits", "cached_tokens", "Prompt tokens found in prefix caches"),
    ("num_preemptions", "preemptions", "Sequences put back to the queue for lack of pages"),
    ("requests_aborted", "aborted", "Sequences aborted in engines"),
    ("aborted_tokens", "aborted_tokens", "Tokens generated for sequences that did not finish"),
)

_PER_ENGINE: tuple[tuple[str, str, Callable[[Stats], float]], ...] = (
    ("state", "0 loading, 1 ready, 2 draining, 3 broken", lambda s: s.state),
    ("num_requests_running", "Sequences being decoded", lambda s: s.running),
    ("num_requests_waiting", "Sequences waiting", lambda s: sum(s.waiting)),
    ("waiting_tokens", "Prompt tokens of waiting sequences", lambda s: s.waiting_tokens),
    ("pages_total", "KV pages", lambda s: s.pages_total),
    ("pages_used", "KV pages held by sequences", lambda s: s.pages_used),
    ("pages_cached", "KV pages kept by the prefix cache alone", lambda s: s.pages_cached),
    ("pages_reserved", "KV pages that sequences may grow to", lambda s: s.reserved_pages),
    ("memory_used_bytes", "Device memory in use", lambda s: s.memory_used),
    ("tokens_per_second", "Output tokens per second", lambda s: s.tokens_per_s),
    ("step_ms", "Mean duration of recent steps", lambda s: s.step_ms),
    ("step_age_ms", "Age of the running step", lambda s: s.step_age_ms),
    ("ttft_avg_ms", "Mean time to first token", lambda s: s.ttft_avg_ms),
    ("ttft_p99_ms", "99th percentile of the time to first token", lambda s: s.ttft_p99_ms),
    ("itl_avg_ms", "Mean inter-token latency", lambda s: s.itl_avg_ms),
    ("itl_p99_ms", "99th percentile of the inter-token latency", lambda s: s.itl_p99_ms),
)


class Totals:
    """Sums the counters of engines so that the sum never goes down.

    An engine that restarts counts from zero under a new epoch, and one that is gone reports no
    more: what they had counted when they were last read stays in the sum.
    """

    def __init__(self) -> None:
        self._last: dict[str, Stats] = {}
        self._past = dict.fromkeys(Counters.__struct_fields__, 0)

    def update(self, snapshots: Iterable[Stats]) -> dict[str, int]:
        """Take the engines' newest snapshots and return the sums by field of ``Counters``."""
        for stats in snapshots:
            before = self._last.get(stats.engine)
            if before is not None and before.epoch != stats.epoch:
                self._past = self._sum([before.counters])
            self._last[stats.engine] = stats
        return self._sum([stats.counters for stats in self._last.values()])

    def _sum(self, counters: Sequence[Counters]) -> dict[str, int]:
        return {
            name: past + sum(getattr(c, name) for c in counters)
            for name, past in self._past.items()
        }


class EngineCollector(Collector):
    """Reads the views at every scrape; engines that are not heard of have no gauges."""

    def __init__(self, views: Views, alias: str | None = None) -> None:
        self._views = views
        self._alias = alias
        self._totals = Totals()
        self._started = time.time()

    def collect(self) -> Iterator[Metric]:
        """Yield every family, aggregates first."""
        seen = [view.stats for view in self._views() if view.stats is not None and view.alive]
        prefixes = ["turing_", *([f"{self._alias}:"] if self._alias else [])]
        for prefix in prefixes:
            yield _cache_config(prefix, seen)
            yield self._adapters(prefix)
        for name, words, value in _AGGREGATES:
            for prefix in prefixes if name in _ALIASED else prefixes[:1]:
                yield GaugeMetricFamily(f"{prefix}{name}", words, value=value(seen))
        yield from self._counters(seen)
        yield _waiting_by_lane(seen)
        yield from _engines(seen)

    def _counters(self, seen: Sequence[Stats]) -> Iterator[Metric]:
        sums = self._totals.update(seen)
        # The public name has no _total suffix, which counters must have in this format.
        yield GaugeMetricFamily(
            "turing_total_tokens_generated",
            "Tokens generated; goes up only",
            value=sums["output_tokens"],
        )
        for name, field, words in _TOTALS:
            yield CounterMetricFamily(f"turing_{name}", words, value=sums[field])

    def _adapters(self, prefix: str) -> Metric:
        labels = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
        family = GaugeMetricFamily(
            f"{prefix}lora_requests_info", "LoRA adapters; value: time of change", labels=labels
        )
        family.add_metric(("0", "", ""), self._started)
        return family


def _cache_config(prefix: str, seen: Sequence[Stats]) -> Metric:
    family = GaugeMetricFamily(
        f"{prefix}cache_config_info",
        "Tokens per KV page and pages of all engines",
        labels=("block_size", "num_gpu_blocks"),
    )
    family.add_metric((str(PAGE), str(sum(stats.pages_total for stats in seen))), 1)
    return family


def _waiting_by_lane(seen: Sequence[Stats]) -> Metric:
    family = GaugeMetricFamily(
        "turing_lane_requests_waiting", "Sequences waiting in engines, by lane", labels=("lane",)
    )
    for lane in Lane:
        family.add_metric((lane.name.lower(),), sum(stats.waiting[lane] for stats in seen))
    return family


def _engines(seen: Sequence[Stats]) -> Iterator[Metric]:
    for name, words, value in _PER_ENGINE:
        gauge = GaugeMetricFamily(f"turing_engine_{name}", words, labels=("engine",))
        for stats in seen:
            gauge.add_metric((stats.engine,), value(stats))
        yield gauge
    for name in Counters.__struct_fields__:
        counter = CounterMetricFamily(
            f"turing_engine_{name}", f"Counter {name} of one engine", labels=("engine",)
        )
        for stats in seen:
            counter.add_metric((stats.engine,), getattr(stats.counters, name))
        yield counter


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _mean(values: Iterable[float]) -> float:
    counted = [value for value in values if value > 0]
    return sum(counted) / len(counted) if counted else 0.0
