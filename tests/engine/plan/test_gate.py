"""Other lanes start beside interactive streams only while those are fluid."""

import pytest

from engine.plan.toy import Loop, config, decoding, sequence
from turing_engine.plan.gate import GAPS, SECONDS, Gate
from turing_engine.plan.lanes import AGE
from turing_engine.plan.sequence import Status
from turing_protocol.lanes import Lane


@pytest.mark.parametrize(("late", "is_open"), [(0, True), (1, True), (2, False), (100, False)])
def test_the_gate_closes_beyond_one_late_gap_in_a_hundred(late: int, is_open: bool) -> None:
    gate = Gate(0.05)
    for number in range(100):
        gate.add(1.0, 0.06 if number < late else 0.05)
    assert gate.open(1.0) is is_open


def test_old_and_many_gaps_are_forgotten() -> None:
    gate = Gate(0.05)
    assert gate.open(0.0)
    gate.add(0.0, 1.0)
    assert not gate.open(SECONDS)
    assert gate.open(SECONDS + 0.1)
    gate.add(20.0, 1.0)
    for _ in range(GAPS):
        gate.add(20.0, 0.01)
    assert gate.open(20.0)


@pytest.mark.parametrize("lane", [Lane.BATCH, Lane.BACKGROUND])
def test_other_lanes_wait_while_streams_are_late_and_go_on_when_they_are_not(lane: Lane) -> None:
    loop = Loop(config(slo_itl=0.05))
    stream = sequence(10, 1000)
    decoding(loop, stream)
    for step in range(10):
        loop.settle(loop.plan(step), step + 1.0)
    later = sequence(10, world=1, lane=lane)
    loop.add(later, now=10.0)
    loop.settle(loop.plan(10.0), 10.01)
    assert loop.scheduler.waiting[lane] == 1
    loop.plan(10.01 + SECONDS)
    assert loop.scheduler.waiting[lane] == 0


def test_what_has_waited_long_enough_starts_all_the_same() -> None:
    loop = Loop(config(slo_itl=0.05))
    decoding(loop, sequence(10, 1000))
    later = sequence(10, world=1, lane=Lane.BATCH)
    now = 0.0
    for _ in range(3):
        loop.settle(loop.plan(now), now + 1)
        now += 1
    loop.add(later, now=now)
    queued = now
    while later.status is Status.WAITING:
        loop.settle(loop.plan(now), now + 1)
        now += 1
        assert now < 100
    assert now - queued >= AGE[Lane.BATCH]


def test_other_lanes_start_when_no_interactive_stream_is_left() -> None:
    loop = Loop(config(slo_itl=0.05))
    stream = sequence(10, 3)
    decoding(loop, stream)
    loop.settle(loop.plan(0.0), 1.0)
    loop.settle(loop.plan(1.0), 2.0)
    assert stream.status is Status.FINISHED
    later = sequence(10, world=1, lane=Lane.BATCH)
    loop.add(later, now=2.0)
    loop.plan(2.0)
    assert later.status is Status.RUNNING
