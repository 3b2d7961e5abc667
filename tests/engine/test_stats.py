"""The recorder's arithmetic on a clock that is only a number."""

import pytest

from turing_engine.plan.sequence import Sequence
from turing_engine.sessions import Stream
from turing_engine.stats import (
    RATE_SECONDS,
    STEP_WEIGHT,
    WINDOW_SAMPLES,
    WINDOW_SECONDS,
    Facts,
    Latency,
    Rate,
    Recorder,
    loading,
    timings,
)
from turing_protocol.messages import Counters, State, Timings
from turing_protocol.sampling import Sampling


def make_sequence(arrival: float = 0.0) -> Sequence:
    return Sequence(
        owner=(b"g", 1),
        tokens=[1, 2, 3],
        prompt_len=2,
        sampling=Sampling(),
        stop_ids=frozenset(),
        limit=18,
        root=b"",
        arrival=arrival,
    )


def test_latency_without_samples_is_zero() -> None:
    assert Latency().summary(5.0) == (0.0, 0.0)


def test_latency_gives_mean_and_nearest_rank_percentile() -> None:
    latency = Latency()
    for value in range(1, 201):
        latency.add(0.0, float(value))
    assert latency.summary(1.0) == (100.5, 198.0)


def test_latency_forgets_old_samples_and_keeps_a_bounded_number() -> None:
    latency = Latency()
    latency.add(0.0, 1000.0)
    latency.add(10.0, 1.0)
    assert latency.summary(WINDOW_SECONDS)[1] == 1000.0
    assert latency.summary(WINDOW_SECONDS + 1) == (1.0, 1.0)
    for _ in range(WINDOW_SAMPLES):
        latency.add(11.0, 2.0)
    assert latency.summary(11.0) == (2.0, 2.0)


def test_rate_is_the_mean_of_its_window_and_falls_to_zero() -> None:
    rate = Rate()
    for tenth in range(100):
        rate.add(tenth / 10, 3)
    assert rate.per_second(9.9) == pytest.approx(30.0)
    assert rate.per_second(9.9 + RATE_SECONDS) == 0.0


def test_the_first_token_is_ttft_and_the_next_ones_are_itl() -> None:
    recorder, stream = Recorder("e", 1), Stream(make_sequence(arrival=1.0))
    recorder.tokens(stream, 1, 1.5)
    recorder.tokens(stream, 1, 1.6)
    recorder.tokens(stream, 4, 1.8)
    stats = recorder.stats(2.0, Facts(State.READY))
    assert stats.ttft_avg_ms == stats.ttft_p99_ms == pytest.approx(500)
    assert stats.itl_avg_ms == pytest.approx((100 + 50) / 2)
    assert stats.itl_p99_ms == pytest.approx(100)
    assert stats.counters.output_tokens == 6


def test_step_time_is_smoothed_and_steps_carry_the_token_rate() -> None:
    recorder, stream = Recorder("e", 1), Stream(make_sequence())
    recorder.tokens(stream, 10, 1.0)
    recorder.step(0.010, 1.0)
    assert recorder.stats(1.0, Facts(State.READY)).step_ms == pytest.approx(10)
    recorder.step(0.020, 1.1)
    stats = recorder.stats(1.1, Facts(State.READY))
    assert stats.step_ms == pytest.approx(10 + STEP_WEIGHT * 10)
    assert stats.tokens_per_s == pytest.approx(10 / RATE_SECONDS)
    assert stats.counters.steps == 2


def test_aborted_tokens_are_those_that_were_generated_here() -> None:
    recorder = Recorder("e", 1)
    recorder.cut_short([Stream(make_sequence()), Stream(make_sequence(), prior=1)])
    assert recorder.aborted_tokens == 1


def test_the_snapshot_carries_all_facts() -> None:
    facts = Facts(
        state=State.DRAINING,
        pages_total=1,
        pages_used=2,
        pages_cached=3,
        reserved_pages=4,
        running=5,
        waiting=(6, 7, 8),
        waiting_tokens=9,
        preemptions=10,
        bad_frames=11,
        memory=(12, 13),
    )
    stats = Recorder("e", 99).stats(0.0, facts)
    assert (stats.engine, stats.epoch, stats.state) == ("e", 99, State.DRAINING)
    assert (stats.pages_total, stats.pages_used, stats.pages_cached) == (1, 2, 3)
    assert (stats.reserved_pages, stats.running, stats.waiting) == (4, 5, (6, 7, 8))
    assert stats.waiting_tokens == 9
    assert stats.counters == Counters(preemptions=10, bad_frames=11)
    assert (stats.memory_used, stats.memory_total) == (12, 13)


def test_a_loading_engine_says_so() -> None:
    stats = loading("e", 5)
    assert (stats.state, stats.engine, stats.epoch, stats.pages_total) == (State.LOADING, "e", 5, 0)


def test_timings_are_the_three_parts_of_a_life() -> None:
    sequence = make_sequence(arrival=1.0)
    sequence.started_at, sequence.first_token_at, sequence.finished_at = 1.5, 2.5, 4.5
    assert timings(sequence) == Timings(queue_ms=500, prefill_ms=1000, decode_ms=2000)


def test_timings_of_a_sequence_that_generated_nothing_are_all_queueing() -> None:
    sequence = make_sequence(arrival=1.0)
    sequence.finished_at = 1.5
    assert timings(sequence) == Timings(queue_ms=500, prefill_ms=0, decode_ms=0)
