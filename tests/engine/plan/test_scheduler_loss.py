"""The scheduler when sequences lose: preemption, abort, expiry, failing steps."""

import pytest

from engine.plan.toy import Loop, config, decoding, expected, sequence, sizes, slots
from turing_engine.plan.scheduler import Scheduler
from turing_engine.plan.sequence import Status
from turing_protocol.errors import TuringError
from turing_protocol.lanes import Lane
from turing_protocol.messages import Reason

# -- preemption -----------------------------------------------------------------------------------


def test_short_decode_preempts_the_lowest_lane_then_the_newest() -> None:
    loop = Loop(config(pages=3))
    old = sequence(60, 60, world=1)
    background = sequence(40, 60, world=2, lane=Lane.BACKGROUND)
    newest = sequence(40, 60, world=3)
    decoding(loop, background, old, newest)
    loop.until(lambda: loop.scheduler.preemptions == 1)
    assert [s.preemptions for s in (old, background, newest)] == [0, 1, 0]
    loop.until(lambda: loop.scheduler.preemptions == 2)
    assert [s.preemptions for s in (old, background, newest)] == [0, 1, 1]
    loop.finish()


def test_same_lane_preempts_the_newest() -> None:
    loop = Loop(config(pages=3))
    requests = [sequence(60 - 10 * world, 60, world=world) for world in range(3)]
    decoding(loop, *requests)
    loop.until(lambda: loop.scheduler.preemptions == 1)
    assert [request.preemptions for request in requests] == [0, 0, 1]


def test_preempted_sequence_keeps_its_tokens_and_goes_on_exactly() -> None:
    loop = Loop(config(pages=2))
    requests = [sequence(60 - 10 * world, 60, world=world) for world in range(2)]
    wanted = [expected(request) for request in requests]
    decoding(loop, *requests)
    loop.until(lambda: loop.scheduler.preemptions == 1)
    victim = requests[1]
    generated = victim.tokens[50:]
    assert generated
    assert (victim.status, victim.slot, victim.pages) == (Status.WAITING, -1, [])
    loop.until(lambda: requests[0].status is Status.FINISHED)
    assert loop.step().starts[0].output == generated
    loop.finish()
    assert [(request.tokens, request.finish) for request in requests] == wanted
    assert loop.scheduler.drain_started() == requests


def test_full_pages_of_a_preempted_sequence_stay_cached() -> None:
    loop = Loop(config(pages=5, max_running=1))
    background = sequence(130, 60, lane=Lane.BACKGROUND)
    decoding(loop, background)
    loop.add(sequence(10, 1, world=1))
    loop.step()
    assert background.status is Status.WAITING
    assert loop.scheduler.pages_cached == 2
    assert sizes(loop.step()) == [131 - 128]


def test_preempted_sequence_is_the_first_of_its_lane() -> None:
    loop = Loop(config(max_running=1))
    background = sequence(10, lane=Lane.BACKGROUND)
    decoding(loop, background)
    waiting = sequence(10, lane=Lane.BACKGROUND, world=2, deadline=1.0)
    loop.add(sequence(10, 1, world=1), waiting)
    loop.step()
    loop.step()
    assert (background.status, waiting.status) == (Status.RUNNING, Status.WAITING)


def test_higher_lane_takes_the_slot_of_a_lower_one() -> None:
    loop = Loop(config(max_running=2))
    background = sequence(10, lane=Lane.BACKGROUND)
    batch = sequence(10, lane=Lane.BATCH, world=1)
    decoding(loop, background, batch)
    urgent = sequence(10, 1, world=2)
    loop.add(urgent)
    plan = loop.plan()
    assert background.status is Status.WAITING
    assert slots(plan) == [batch.slot, urgent.slot]
    assert plan.stops == [urgent.slot]
    loop.settle(plan)
    loop.finish()


def test_preempted_decode_gives_its_tokens_of_the_step_to_others() -> None:
    loop = Loop(config(max_running=2, max_step_tokens=3))
    decoding(loop, *(sequence(2, lane=Lane.BACKGROUND, world=world) for world in range(2)))
    loop.add(sequence(1), sequence(1, world=1))
    plan = loop.plan()
    assert sizes(plan) == [1, 1]
    assert loop.scheduler.preemptions == 2


def test_equal_lane_waits_for_its_slot() -> None:
    loop = Loop(config(max_running=1))
    running = sequence(10)
    decoding(loop, running)
    loop.add(sequence(10, deadline=0.1))
    loop.step()
    assert running.status is Status.RUNNING


def test_nobody_is_preempted_in_vain() -> None:
    loop = Loop(config(pages=6))
    large, small = sequence(200, 50), sequence(10, 50, lane=Lane.BACKGROUND)
    decoding(loop, large, small)
    loop.add(sequence(200, 50, world=1))
    loop.step()
    assert (small.status, loop.scheduler.preemptions) == (Status.RUNNING, 0)
    loop.finish()


def test_members_of_an_open_plan_are_not_preempted() -> None:
    loop = Loop(config(max_running=1))
    background = sequence(10, lane=Lane.BACKGROUND)
    loop.add(background)
    open_plan = loop.plan()
    loop.add(sequence(10, world=1))
    assert loop.scheduler.plan(0) is None
    loop.settle(open_plan)
    loop.plan()
    assert background.status is Status.WAITING


# -- abort, expiry, failure -----------------------------------------------------------------------


def test_abort_of_a_waiting_sequence() -> None:
    scheduler = Scheduler(config())
    request = sequence(10)
    scheduler.add(request, 0)
    scheduler.abort(request, 3.0)
    scheduler.abort(request, 4.0)
    assert (request.status, request.finish, request.finished_at) == (Status.FINISHED, None, 3.0)
    assert not scheduler.has_work
    assert scheduler.reserved_pages == 0


def test_abort_of_a_running_sequence_frees_it_at_once() -> None:
    loop = Loop(config())
    request = sequence(100)
    decoding(loop, request)
    loop.scheduler.abort(request, 0)
    assert (loop.scheduler.pages_used, loop.scheduler.running) == (0, 0)


def test_abort_in_an_open_plan_waits_for_its_end() -> None:
    loop = Loop(config())
    request = sequence(100)
    loop.add(request)
    plan = loop.plan()
    loop.scheduler.abort(request, 0)
    loop.scheduler.abort(request, 0)
    assert loop.scheduler.pages_used == 2
    assert loop.settle(plan) == []
    assert (loop.scheduler.pages_used, loop.scheduler.pages_cached) == (0, 1)
    assert not loop.scheduler.has_work
    assert len(request.tokens) == 100


def test_abort_of_a_refused_or_finished_sequence_does_nothing() -> None:
    loop = Loop(config(context=20))
    refused, done = sequence(100), sequence(10, 1)
    with pytest.raises(TuringError):
        loop.add(refused)
    loop.add(done)
    loop.finish()
    for request in (refused, done):
        loop.scheduler.abort(request, 0)
    assert done.finish is Reason.LENGTH
    assert loop.scheduler.reserved_pages == 0


def test_expired_sequences_are_returned_and_gone() -> None:
    scheduler = Scheduler(config())
    late, patient = sequence(10, deadline=5.0), sequence(10, deadline=50.0)
    scheduler.add(late, 0)
    scheduler.add(patient, 0)
    assert scheduler.expire(6.0) == [late]
    assert (late.status, late.finish) == (Status.FINISHED, None)
    assert (scheduler.waiting, scheduler.reserved_pages) == ((1, 0, 0), 1)


def test_running_sequences_do_not_expire() -> None:
    loop = Loop(config())
    request = sequence(10, deadline=5.0)
    decoding(loop, request)
    assert loop.scheduler.expire(6.0) == []
    assert request.status is Status.RUNNING


def test_failed_step_ends_its_sequences_only() -> None:
    loop = Loop(config(max_running=3))
    bystander, failing, aborted = (sequence(100, world=world) for world in range(3))
    loop.add(bystander)
    open_plan = loop.plan()
    loop.add(failing, aborted)
    plan = loop.plan()
    loop.scheduler.abort(aborted, 0)
    assert loop.scheduler.fail(plan, 9.0) == [failing]
    assert (failing.status, failing.finish, failing.finished_at) == (Status.FINISHED, None, 9.0)
    assert (loop.scheduler.running, loop.scheduler.pages_used) == (1, 2)
    assert loop.scheduler.reserved_pages == 2
    loop.settle(open_plan)
    assert sorted(loop.plan().stops) == sorted(slots(plan))


def test_nothing_of_a_failed_step_becomes_known() -> None:
    loop = Loop(config())
    loop.add(sequence(200))
    loop.scheduler.fail(loop.plan(), 0)
    assert loop.scheduler.drain_page_events() == ([], [])
    assert loop.scheduler.pages_cached == 0
