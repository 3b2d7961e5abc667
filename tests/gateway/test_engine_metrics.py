"""What engines report, as families."""

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import Metric

from fakes.generator import make_view
from fakes.wire import make_stats
from turing_gateway.engine_metrics import EngineCollector, Totals
from turing_gateway.fleet.view import EngineView, LinkState
from turing_protocol.messages import Counters, Stats


def families(views: Sequence[EngineView], alias: str | None = None) -> dict[str, Metric]:
    return {metric.name: metric for metric in EngineCollector(lambda: views, alias).collect()}


def value(family: Metric) -> float:
    """Return the value of a family's only series."""
    (sample,) = family.samples
    return float(sample.value)


def stats(**fields: Any) -> Stats:
    return msgspec.structs.replace(make_stats(), **fields)


BUSY = stats(
    engine="e0",
    running=3,
    waiting=(1, 2, 3),
    pages_total=100,
    pages_used=50,
    memory_used=30,
    memory_total=100,
    tokens_per_s=10.5,
    ttft_avg_ms=100.0,
    ttft_p99_ms=200.0,
    itl_avg_ms=20.0,
    counters=Counters(prompt_tokens=8, cached_tokens=2, output_tokens=5, preemptions=1),
)
IDLE = stats(engine="e1", pages_total=300, counters=Counters(output_tokens=2))


def test_several_engines_are_one_series() -> None:
    found = families([make_view(stats=BUSY), make_view(stats=IDLE)])
    expected = {
        "num_requests_running": 3,
        "num_requests_waiting": 6,
        "kv_cache_usage_perc": 50 / 400,
        "vram_utilization_ratio": 0.3,
        "serving_throughput_tok_per_sec": 10.5,
        "ttft_avg_ms": 100,
        "ttft_p99_ms": 200,
        "itl_avg_ms": 20,
        "total_tokens_generated": 7,
        "generation_tokens": 7,
        "prompt_tokens": 8,
        "prefix_cache_hits": 2,
        "num_preemptions": 1,
    }
    assert {name: value(found[f"turing_{name}"]) for name in expected} == expected


def test_what_the_picker_reads_is_a_gauge_with_its_labels() -> None:
    found = families([make_view(stats=BUSY), make_view(stats=IDLE)])
    (sample,) = found["turing_cache_config_info"].samples
    assert (sample.labels, sample.value) == ({"block_size": "64", "num_gpu_blocks": "400"}, 1)
    assert found["turing_cache_config_info"].type == "gauge"
    (sample,) = found["turing_lora_requests_info"].samples
    assert set(sample.labels) == {
        "max_lora",
        "running_lora_adapters",
        "waiting_lora_adapters",
    }
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert found[f"turing_{name}"].type == "gauge"


def test_an_alias_repeats_those_families_only() -> None:
    found = families([make_view(stats=BUSY)], alias="vllm")
    aliased = {name.removeprefix("vllm:") for name in found if name.startswith("vllm:")}
    assert aliased == {
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "cache_config_info",
        "lora_requests_info",
    }
    for name in aliased:
        assert found[f"vllm:{name}"].samples[0].value == found[f"turing_{name}"].samples[0].value
    assert not [name for name in families([]) if name.startswith("vllm:")]


def test_gauges_of_a_lost_engine_fall_and_counters_stay() -> None:
    view = make_view(stats=BUSY)
    collector = EngineCollector(lambda: [view])
    list(collector.collect())
    view.state = LinkState.LOST
    found = {metric.name: metric for metric in collector.collect()}
    assert value(found["turing_num_requests_running"]) == 0
    assert value(found["turing_kv_cache_usage_perc"]) == 0
    assert value(found["turing_generation_tokens"]) == 5
    assert found["turing_engine_state"].samples == []


def test_engines_have_series_of_their_own_and_lanes_too() -> None:
    found = families([make_view(stats=BUSY), make_view(stats=IDLE)])
    used = found["turing_engine_pages_used"].samples
    assert {s.labels["engine"]: s.value for s in used} == {"e0": 50, "e1": 0}
    tokens = found["turing_engine_output_tokens"].samples
    assert {s.labels["engine"]: s.value for s in tokens} == {"e0": 5, "e1": 2}
    lanes = found["turing_lane_requests_waiting"].samples
    assert {s.labels["lane"]: s.value for s in lanes} == {
        "interactive": 1,
        "batch": 2,
        "background": 3,
    }


def test_nothing_is_reported_of_no_engine() -> None:
    found = families([make_view(stats=None, info=None, limits=None)])
    assert value(found["turing_num_requests_running"]) == 0
    (sample,) = found["turing_cache_config_info"].samples
    assert sample.labels["num_gpu_blocks"] == "0"


Lives = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=5), min_size=1, max_size=5)


@given(st.dictionaries(st.sampled_from(["e0", "e1", "e2"]), Lives, min_size=1))
def test_totals_never_fall_and_count_every_life_of_an_engine(
    engines: dict[str, list[list[int]]],
) -> None:
    totals = Totals()
    before = 0
    for name, lives in engines.items():
        for epoch, steps in enumerate(lives):
            count = 0
            for step in steps:
                count += step
                seen = stats(engine=name, epoch=epoch, counters=Counters(output_tokens=count))
                now = totals.update([seen])["output_tokens"]
                assert now == before + step
                before = now
    assert before == sum(sum(map(sum, lives)) for lives in engines.values())
