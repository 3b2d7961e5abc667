"""The cost of a step is learnt from measurements, and prefill is cut for the sake of streams."""

import random

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from engine.plan.toy import Loop, config, decoding, expected, sequence, sizes
from turing_engine.plan.pace import HEADROOM, Load, Pace, attended
from turing_engine.plan.plan import Plan
from turing_engine.plan.sequence import Status
from turing_protocol.lanes import Lane

LIMIT = 0.050


class Machine(msgspec.Struct, frozen=True):
    """What steps really cost, in seconds."""

    base: float = 0.008
    prefill: float = 0.0004
    decode: float = 0.0005
    position: float = 2e-7

    def seconds(self, load: Load) -> float:
        rows = load.prefill * self.prefill + load.decodes * self.decode
        return self.base + rows + load.attended * self.position


def load_of(plan: Plan) -> Load:
    load = Load()
    for chunk in plan.chunks:
        load.add(chunk.start, len(chunk.ids))
    return load


def learnt(machine: Machine, noise: float = 0.0) -> Pace:
    pace, rng = Pace(LIMIT), random.Random(0)
    for _ in range(400):
        load = Load()
        for _ in range(rng.randrange(1, 9)):
            load.add(rng.randrange(2000), 1)
        if rng.random() < 0.5:
            load.add(rng.randrange(1000), rng.choice([64, 128, 256, 512]))
        pace.measured(load, machine.seconds(load) * (1 + rng.uniform(-noise, noise)))
    return pace


def timed(loop: Loop, machine: Machine, now: float) -> tuple[Plan, float]:
    """Run one step on the simulated clock; return it and when it ended."""
    plan = loop.plan(now)
    ended = now + machine.seconds(load_of(plan))
    loop.settle(plan, ended)
    return plan, ended


@given(st.integers(0, 5000), st.integers(1, 600))
def test_every_row_attends_to_what_is_before_it_and_itself(start: int, size: int) -> None:
    assert attended(start, size) == sum(start + i + 1 for i in range(size))


def test_what_is_taken_out_of_a_load_leaves_nothing() -> None:
    load = Load()
    for start, size, sign in [(9, 1, 1), (64, 70, 1), (9, 1, -1), (64, 70, -1)]:
        load.add(start, size, sign)
    assert load == Load()


@pytest.mark.parametrize(("noise", "error"), [(0.0, 0.05), (0.1, 0.15)])
def test_predictions_follow_the_machine(noise: float, error: float) -> None:
    machine = Machine()
    pace = learnt(machine, noise)
    for decodes, prefill in [(1, 0), (8, 0), (4, 64), (4, 512)]:
        load = Load(prefill, decodes, decodes * 500 + attended(0, prefill))
        assert pace.seconds(load) == pytest.approx(machine.seconds(load), rel=error)


def test_a_machine_that_slows_down_is_noticed() -> None:
    pace, slow = learnt(Machine()), Machine(0.016, 0.0008, 0.001, 4e-7)
    load = Load(64, 4, 4000)
    for _ in range(100):
        pace.measured(load, slow.seconds(load))
    assert pace.seconds(load) == pytest.approx(slow.seconds(load), rel=0.15)


def test_steps_without_a_duration_teach_nothing() -> None:
    pace = Pace(LIMIT)
    pace.measured(Load(100, 1, 1000), 0.0)
    assert pace.seconds(Load(100, 1, 1000)) == 0.0


def test_the_price_of_prompt_rows_is_found_out_a_page_at_a_time() -> None:
    pace = Pace(LIMIT)
    assert pace.fit(Load(), 0, 512) == 64
    assert pace.fit(Load(), 0, 30) == 30
    pace.measured(Load(64, 1, 2000), 0.01)
    assert pace.fit(Load(), 0, 512) > 64


def test_prices_outlive_a_long_time_without_prefill() -> None:
    pace = learnt(Machine())
    before = pace.seconds(Load(512, 4, 100_000))
    for _ in range(50_000):
        pace.measured(Load(0, 4, 2000), Machine().seconds(Load(0, 4, 2000)))
    assert pace.seconds(Load(512, 4, 100_000)) == pytest.approx(before, rel=0.2)


@given(st.integers(0, 16), st.integers(0, 4000), st.integers(1, 2048))
def test_what_fits_is_the_most_that_stays_in_time(decodes: int, start: int, most: int) -> None:
    pace = PACE
    load = Load(0, decodes, decodes * 300)
    rows = pace.fit(load, start, most)
    assert rows == most or rows % 64 == 0

    def total(rows: int) -> float:
        return pace.seconds(Load(rows, decodes, load.attended + attended(start, rows)))

    if rows:
        assert total(rows) <= LIMIT * HEADROOM + 1e-9
    if rows < most:
        assert total(min(most, rows + 64)) > LIMIT * HEADROOM - 1e-9


PACE = learnt(Machine())


@pytest.mark.parametrize("lane", Lane)
def test_prefill_of_any_lane_is_cut_beside_an_interactive_stream(lane: Lane) -> None:
    machine = Machine()
    loop = Loop(config(pages=400, slo_itl=LIMIT))
    stream = sequence(100, 200)
    decoding(loop, stream)
    now = 0.0
    for _ in range(40):
        _, now = timed(loop, machine, now)
    loop.add(*(sequence(1000 + world, 4, lane=lane, world=world) for world in range(1, 4)))
    mixed = 0
    while stream.status is Status.RUNNING:
        began = now
        plan, now = timed(loop, machine, now)
        mixed += load_of(plan).prefill > 0
        assert now - began <= LIMIT
    assert mixed > 20


def test_nothing_is_cut_beside_lanes_that_can_wait_or_nothing_at_all() -> None:
    slow = Machine(prefill=0.01)
    loop = Loop(config(pages=400, slo_itl=LIMIT, chunk=512))
    loop.add(sequence(600, 8, lane=Lane.BATCH))
    first, now = timed(loop, slow, 0.0)
    assert sizes(first) == [512]
    _, now = timed(loop, slow, now)
    loop.add(sequence(600, 8, world=1))
    plan, now = timed(loop, slow, now)
    assert sizes(plan) == [1, 512]


def test_a_machine_too_slow_for_the_limit_still_moves_on_by_a_page() -> None:
    slow = Machine(base=0.2)
    loop = Loop(config(pages=400, slo_itl=LIMIT))
    decoding(loop, sequence(10, 60))
    now = 0.0
    for _ in range(3):
        _, now = timed(loop, slow, now)
    loop.add(sequence(640, 2, world=1), sequence(640, 2, world=2))
    for _ in range(10):
        plan, now = timed(loop, slow, now)
        assert load_of(plan).prefill == 64


@given(st.lists(st.tuples(st.integers(1, 700), st.integers(1, 40)), min_size=1, max_size=8))
def test_every_sequence_ends_with_its_own_tokens(shapes: list[tuple[int, int]]) -> None:
    machine = Machine()
    loop = Loop(config(pages=200, slo_itl=LIMIT))
    requests = [
        sequence(prompt, output, world=world, lane=Lane(world % 3))
        for world, (prompt, output) in enumerate(shapes)
    ]
    alone = [expected(request) for request in requests]
    loop.add(*requests)
    now, steps = 0.0, 0
    while loop.scheduler.has_work:
        _, now = timed(loop, machine, now)
        steps += 1
        assert steps <= sum(prompt // 64 + 2 + output for prompt, output in shapes)
    assert [(request.tokens, request.finish) for request in requests] == alone
