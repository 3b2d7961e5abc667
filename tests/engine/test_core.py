"""The step loop, driven turn by turn: what goes in, what every gateway is told, what adds up."""

import pytest
from msgspec.structs import replace

from engine.rig import EPOCH, GATEWAY, Rig, ends_of, failure_of, ids_of, make_submit
from turing_engine.core import FAILURES_BROKEN, Exit
from turing_engine.run.runner import DeviceError
from turing_engine.run.scripted import EOS
from turing_engine.sessions import LEASE_SECONDS
from turing_engine.wire import Down, Lost, Reopened
from turing_protocol.codec import pack, unpack
from turing_protocol.errors import Code
from turing_protocol.lanes import Lane
from turing_protocol.messages import (
    MAJOR,
    MINOR,
    Abort,
    Asset,
    Counters,
    Done,
    Drain,
    DropAdapter,
    Failed,
    Fetch,
    Finished,
    Hello,
    LoadAdapter,
    Ping,
    Reason,
    Refused,
    Started,
    State,
    Step,
    Tokens,
    Welcome,
)
from turing_protocol.sampling import Sampling

OTHER = b"other"


def solo(prompt: bytes, max_tokens: int, sampling: Sampling | None = None) -> list[int]:
    """Return what an engine generates for a prompt that has no company."""
    with Rig() as rig:
        rig.receive(make_submit(1, prompt, max_tokens=max_tokens, sampling=sampling))
        rig.finish()
        return ids_of(rig.events(), 1)


def snapshot(rig: Rig) -> Counters:
    """Return the counters as they are published next, and check that they add up."""
    rig.clock.now += 1.0
    rig.core.turn()
    rig.core.intake()
    counters = rig.wire.stats.counters
    ended = counters.finished + counters.failed + counters.aborted + counters.shed
    assert counters.requests == ended + len(rig.core.sessions)
    return counters


def test_hello_is_answered_by_the_welcome() -> None:
    with Rig() as rig:
        rig.receive(Hello(MAJOR, MINOR + 1, "newer"), OTHER)
        (welcome,) = rig.sent(Welcome, OTHER)
        assert welcome.epoch == EPOCH


def test_an_unknown_major_is_refused() -> None:
    with Rig() as rig:
        rig.receive(Hello(MAJOR + 1, 0, "future"), OTHER)
        (refused,) = rig.sent(Refused, OTHER)
        assert refused.code is Code.VERSION
        assert rig.sent(Welcome, OTHER) == []


def test_a_sequence_is_started_told_and_finished() -> None:
    with Rig() as rig:
        rig.receive(make_submit(3, b"once upon", max_tokens=5))
        rig.turns()
        first = rig.events()
        assert first[0] == Started(3, 9, 0)
        assert isinstance(first[1], Tokens)
        rig.finish()
        *tokens, finished = rig.events()
        assert len(ids_of([*first, *tokens], 3)) == 5
        assert isinstance(finished, Finished)
        assert (finished.reason, finished.prompt, finished.output) == (Reason.LENGTH, 9, 5)
        assert finished.timings.prefill_ms == pytest.approx(10)
        assert finished.timings.decode_ms == pytest.approx(40)


def test_all_events_of_a_step_for_a_gateway_are_one_message() -> None:
    with Rig() as rig:
        rig.receive(Hello(MAJOR, MINOR, "g"), OTHER)
        for rid in range(3):
            rig.receive(make_submit(rid, b"a%d" % rid), GATEWAY)
            rig.receive(make_submit(rid, b"b%d" % rid), OTHER)
        for _ in range(8):
            rig.turns()
            for gateway in (GATEWAY, OTHER):
                (step,) = rig.sent(Step, gateway)
                assert {event.rid for event in step.events} == {0, 1, 2}


def test_company_changes_no_token() -> None:
    prompts = [b"p%d " % i * (20 * i + 1) for i in range(6)]
    with Rig() as rig:
        for rid, prompt in enumerate(prompts):
            rig.receive(make_submit(rid, prompt, max_tokens=20))
            rig.turns(rid)
        rig.finish()
        events = rig.events()
    for rid, prompt in enumerate(prompts):
        assert ids_of(events, rid) == solo(prompt, 20)


@pytest.mark.parametrize("sampling", [None, Sampling(max_tokens=12, seed=99)])
@pytest.mark.parametrize("done", [1, 5, 11])
def test_a_resumed_sequence_continues_exactly(done: int, sampling: Sampling | None) -> None:
    whole = solo(b"resume me", 12, sampling)
    with Rig() as rig:
        prior = tuple(whole[:done])
        rig.receive(make_submit(1, b"resume me", max_tokens=12, prior=prior, sampling=sampling))
        rig.finish()
        events = rig.events()
        assert ids_of(events, 1) == whole[done:]
        finished = ends_of(events)[1]
        assert isinstance(finished, Finished)
        assert finished.output == 12
        counters = snapshot(rig)
        assert counters.output_tokens == 12 - done


def test_a_seed_changes_what_is_sampled_and_repeats() -> None:
    one, two = Sampling(max_tokens=12, seed=1), Sampling(max_tokens=12, seed=2)
    assert solo(b"seeded", 12, one) == solo(b"seeded", 12, one) != solo(b"seeded", 12, two)


def test_nothing_to_generate_is_finished_at_once() -> None:
    with Rig("scripted:ids=104+105") as rig:
        rig.receive(make_submit(1, max_tokens=0))
        rig.receive(make_submit(2, max_tokens=8, prior=(104, 105, EOS)))
        ends = ends_of(rig.events())
        assert [end.reason for end in ends.values() if isinstance(end, Finished)] == [
            Reason.LENGTH,
            Reason.STOP,
        ]
        assert not rig.scheduler.has_work
        assert snapshot(rig).finished == 2


def test_a_script_is_replayed_and_stops() -> None:
    with Rig("scripted:ids=104+105") as rig:
        rig.receive(make_submit(1, max_tokens=8))
        rig.finish()
        events = rig.events()
        assert ids_of(events, 1) == [104, 105, EOS]
        finished = ends_of(events)[1]
        assert isinstance(finished, Finished)
        assert finished.reason is Reason.STOP


def test_logprobs_are_told_with_their_tokens() -> None:
    with Rig() as rig:
        sampling = Sampling(max_tokens=3, temperature=0.0, logprobs=2)
        rig.receive(make_submit(1, sampling=sampling))
        rig.finish()
        tokens = [event for event in rig.events() if isinstance(event, Tokens)]
        assert [len(unpack(event.logprobs[0].top_ids)) for event in tokens] == [2, 2, 2]


def test_a_bad_request_fails_only_itself() -> None:
    with Rig() as rig:
        rig.receive(make_submit(1, max_tokens=4))
        rig.receive(make_submit(2, b""))
        rig.receive(make_submit(3, sampling=Sampling(temperature=9.0)))
        rig.receive(make_submit(4, b"x" * 2040, max_tokens=9))
        rig.finish()
        events = rig.events()
        assert isinstance(ends_of(events)[1], Finished)
        failed = [failure_of(events, rid) for rid in (2, 3, 4)]
        assert [(f.code, f.param) for f in failed] == [
            (Code.INVALID, "prompt"),
            (Code.INVALID, "temperature"),
            (Code.CONTEXT_TOO_LONG, "prompt"),
        ]
        assert snapshot(rig).failed == 3


def test_a_request_for_an_earlier_process_is_lost() -> None:
    with Rig() as rig:
        rig.receive(make_submit(1, epoch=EPOCH - 1))
        rig.receive(make_submit(1), OTHER)
        for gateway in (GATEWAY, OTHER):
            failed = failure_of(rig.events(gateway), 1)
            assert failed.code is Code.ENGINE_LOST


def test_a_reused_rid_is_ignored_and_counted() -> None:
    with Rig() as rig:
        rig.receive(make_submit(1, max_tokens=4))
        rig.receive(make_submit(1, b"again", max_tokens=4))
        rig.finish()
        assert ids_of(rig.events(), 1) == solo(b"hello", 4)
        counters = snapshot(rig)
        assert (counters.bad_frames, counters.requests) == (1, 1)


def test_a_full_queue_sheds() -> None:
    with Rig(max_running=1, max_waiting=2) as rig:
        for rid in range(4):
            rig.receive(make_submit(rid))
            rig.turns(rid == 0)
        failed = failure_of(rig.events(), 3)
        assert failed.code is Code.OVERLOADED
        assert failed.retry_ms > 0
        rig.finish()
        assert (snapshot(rig).shed, snapshot(rig).failed, snapshot(rig).finished) == (1, 0, 3)


def test_the_watermarks_shed_what_can_wait() -> None:
    with Rig(pages=10) as rig:
        rig.receive(make_submit(1, max_tokens=500))
        later = make_submit(2, max_tokens=500)
        rig.receive(replace(later, lane=Lane.BATCH))
        rig.receive(replace(later, rid=3, lane=Lane.BACKGROUND, sampling=Sampling(max_tokens=10)))
        failed = failure_of(rig.events(), 2)
        assert failed.code is Code.SHED
        assert failed.retry_ms >= 1000
        rig.finish()
        counters = snapshot(rig)
        assert (counters.shed, counters.failed, counters.finished) == (1, 0, 2)


def test_a_flood_is_shed_or_served_and_every_request_is_told() -> None:
    with Rig(pages=32, max_running=4, max_waiting=8) as rig:
        for rid in range(2000):
            rig.receive(replace(make_submit(rid, max_tokens=70), lane=Lane(rid % 3)))
            assert sum(rig.scheduler.waiting) <= 8
        rig.finish()
        ends = ends_of(rig.events())
        assert set(ends) == set(range(2000))
        shed = [end for end in ends.values() if isinstance(end, Failed)]
        assert {end.code for end in shed} <= {Code.OVERLOADED, Code.SHED}
        assert all(end.retry_ms >= 1000 for end in shed)
        counters = snapshot(rig)
        assert (counters.shed, counters.finished) == (len(shed), 2000 - len(shed))
        assert counters.finished >= 8
        assert rig.scheduler.reserved_pages == rig.scheduler.pages_used == 0


def test_a_deadline_ends_what_has_not_started() -> None:
    with Rig(max_running=1) as rig:
        rig.receive(make_submit(1, max_tokens=100))
        rig.turns()
        late = make_submit(2)
        rig.receive(type(late)(2, EPOCH, late.prompt, late.sampling, deadline_ms=50))
        rig.turns(10)
        rig.core.intake()
        failed = failure_of(rig.events(), 2)
        assert failed.code is Code.DEADLINE


def test_an_abort_frees_everything_and_is_not_answered() -> None:
    with Rig() as rig:
        rig.receive(make_submit(1, max_tokens=100))
        rig.turns(3)
        assert len(ids_of(rig.events(), 1)) == 3
        rig.receive(Abort(1))
        rig.receive(Abort(1))
        assert rig.events() == []
        counters = snapshot(rig)
        assert rig.scheduler.pages_used == rig.scheduler.reserved_pages == 0
        assert (counters.aborted, counters.aborted_tokens, counters.output_tokens) == (1, 3, 3)
        assert rig.wire.stats.running == 0


def test_a_second_hello_drops_what_was_held() -> None:
    with Rig() as rig:
        rig.receive(make_submit(1, max_tokens=100))
        rig.turns()
        rig.receive(Hello(MAJOR, MINOR, "g"))
        assert not rig.scheduler.has_work
        assert snapshot(rig).aborted == 1


def test_a_silent_gateway_loses_its_lease_and_is_told() -> None:
    with Rig() as rig:
        rig.receive(Hello(MAJOR, MINOR, "o"), OTHER)
        rig.receive(make_submit(1, max_tokens=100), OTHER)
        rig.receive(make_submit(1, max_tokens=1000))
        rig.turns()
        rig.clock.now += LEASE_SECONDS - 1
        rig.receive(Ping(0.0))
        rig.clock.now += 2
        rig.core.intake()
        failed = failure_of(rig.events(OTHER), 1)
        assert failed.code is Code.ENGINE_LOST
        assert [s.sequence.owner[0] for s in rig.core.sessions.streams()] == [GATEWAY]
        assert snapshot(rig).aborted == 1


def test_pings_that_came_during_a_long_step_keep_the_lease() -> None:
    with Rig() as rig:
        rig.receive(make_submit(1, max_tokens=100))
        rig.clock.now += LEASE_SECONDS + 5
        rig.post(Ping(0.0))
        rig.core.intake()
        assert len(rig.core.sessions) == 1


def test_a_gateway_that_stopped_reading_is_dropped_and_told_later() -> None:
    with Rig() as rig:
        rig.receive(make_submit(1, max_tokens=100))
        rig.turns()
        rig.wire.inbox.put(Lost(GATEWAY, gone=False))
        rig.core.intake()
        assert rig.wire.reopened == [GATEWAY]
        assert not rig.scheduler.has_work
        rig.events()
        rig.wire.inbox.put(Reopened(GATEWAY, frozenset({1})))
        rig.core.intake()
        rig.receive(Ping(0.0))
        failed = failure_of(rig.events(), 1)
        assert failed.code is Code.ENGINE_LOST


def test_a_vanished_gateway_has_to_say_hello_again() -> None:
    with Rig() as rig:
        rig.receive(make_submit(1, max_tokens=100))
        rig.wire.inbox.put(Lost(GATEWAY, gone=True))
        rig.core.intake()
        assert not rig.scheduler.has_work
        rig.receive(make_submit(2))
        failed = failure_of(rig.events(), 2)
        assert failed.code is Code.ENGINE_LOST


def test_assets_are_sent_whole_and_unknown_ones_named() -> None:
    with Rig() as rig:
        rig.receive(Fetch(4, ("tokenizer.json", "chat_template", "no-such")))
        assert [(a.op, a.name) for a in rig.sent(Asset)] == [
            (4, "tokenizer.json"),
            (4, "chat_template"),
        ]
        (done,) = rig.sent(Done)
        assert (done.op, done.ok) == (4, False)
        assert "no-such" in done.message


def test_adapters_are_refused() -> None:
    with Rig() as rig:
        rig.receive(LoadAdapter(1, "a", "/a"))
        rig.receive(DropAdapter(2, "a"))
        assert [(done.op, done.ok) for done in rig.sent(Done)] == [(1, False), (2, False)]


def test_a_failing_step_fails_its_own_sequences_only() -> None:
    with Rig(max_running=2) as rig:
        for rid in range(3):
            rig.receive(make_submit(rid, b"r%d" % rid, max_tokens=6))
        rig.turns()
        rig.runner.errors = [MemoryError("out of memory")]
        rig.turns()
        rig.finish()
        events = rig.events()
        assert [failure_of(events, rid).code for rid in (0, 1)] == [Code.STEP_FAILED] * 2
        assert isinstance(ends_of(events)[2], Finished)
        counters = snapshot(rig)
        assert (counters.failed, counters.finished, counters.aborted_tokens) == (2, 1, 2)
        assert rig.core.state is State.READY
        assert rig.scheduler.pages_used == 0


def test_failures_with_success_between_them_do_not_break() -> None:
    with Rig() as rig:
        for rid in range(2 * FAILURES_BROKEN):
            rig.runner.errors = [RuntimeError("odd")] if rid % 2 else []
            rig.receive(make_submit(rid, max_tokens=1))
            rig.finish()
        assert rig.core.state is State.READY


@pytest.mark.parametrize(
    "errors", [[RuntimeError("bad")] * FAILURES_BROKEN, [DeviceError("fell off the bus")]]
)
def test_a_broken_engine_tells_everyone_and_ends(errors: list[Exception]) -> None:
    with Rig(max_running=1) as rig:
        rig.runner.errors = list(errors)
        for rid in range(FAILURES_BROKEN + 1):
            rig.post(make_submit(rid))
        assert rig.core.run() is Exit.BROKEN
        events = rig.events()
        codes = [failure_of(events, rid).code for rid in range(FAILURES_BROKEN + 1)]
        assert codes == [Code.STEP_FAILED] * len(errors) + [Code.ENGINE_LOST] * (
            FAILURES_BROKEN + 1 - len(errors)
        )
        assert rig.wire.stopped
        assert rig.wire.stats.state is State.BROKEN
        assert rig.wire.stats.counters.failed == FAILURES_BROKEN + 1


def test_a_dead_wire_ends_the_engine() -> None:
    with Rig() as rig:
        rig.wire.inbox.put(Down("the sockets are gone"))
        assert rig.core.run() is Exit.BROKEN


def test_draining_finishes_what_runs_and_takes_nothing_new() -> None:
    with Rig() as rig:
        rig.post(make_submit(1, max_tokens=6))
        rig.post(Drain(9, 60.0))
        rig.post(make_submit(2))
        assert rig.core.run() is Exit.OK
        assert rig.sent(Done) == [Done(9, True)]
        events = rig.events()
        assert isinstance(ends_of(events)[1], Finished)
        assert failure_of(events, 2).code is Code.DRAINING
        assert rig.wire.stats.state is State.DRAINING


def test_the_end_of_a_drain_hands_the_rest_to_other_engines() -> None:
    with Rig() as rig:
        rig.post(make_submit(1, max_tokens=1000))
        rig.core.drain(0.1)
        assert rig.core.run() is Exit.OK
        events = rig.events()
        failed = failure_of(events, 1)
        assert failed.code is Code.ENGINE_LOST
        assert 0 < len(ids_of(events, 1)) < 20
        assert rig.sent(Done, b"") == []


def test_page_events_are_published_in_order() -> None:
    with Rig() as rig:
        rig.receive(make_submit(1, b"x" * 150, max_tokens=1))
        rig.finish()
        (first,) = rig.wire.pages
        (one, root), (two, parent) = first.stored
        assert (first.epoch, first.seq, parent) == (EPOCH, 1, one)
        assert root not in (one, two)
        rig.receive(make_submit(2, b"y" * 150, max_tokens=1))
        rig.finish()
        assert [events.seq for events in rig.wire.pages] == [1, 2]


def test_a_cached_prefix_is_told_and_counted() -> None:
    with Rig() as rig:
        for rid in (1, 2):
            rig.receive(make_submit(rid, b"x" * 150, max_tokens=4))
            rig.finish()
        events = rig.events()
        assert ids_of(events, 1) == ids_of(events, 2)
        started = [event for event in events if isinstance(event, Started)]
        assert [(s.prompt, s.cached) for s in started] == [(150, 0), (150, 128)]
        counters = snapshot(rig)
        assert (counters.prompt_tokens, counters.cached_tokens) == (300, 128)


def test_preempted_sequences_end_as_if_alone() -> None:
    with Rig(pages=6) as rig:
        prompts = [b"%d" % rid * 60 for rid in range(3)]
        for rid, prompt in enumerate(prompts):
            rig.receive(make_submit(rid, prompt, max_tokens=120))
        rig.finish()
        assert snapshot(rig).preemptions > 0
        events = rig.events()
    for rid, prompt in enumerate(prompts):
        assert ids_of(events, rid) == solo(prompt, 120)


def test_the_snapshot_tells_what_is_held() -> None:
    with Rig(max_running=1) as rig:
        rig.receive(make_submit(1, b"x" * 100, max_tokens=10))
        rig.receive(make_submit(2, b"y" * 30, max_tokens=10))
        rig.clock.now += 1.0
        rig.turns()
        stats = rig.wire.stats
        assert (stats.running, stats.waiting, stats.waiting_tokens) == (1, (1, 0, 0), 30)
        assert (stats.pages_used, stats.reserved_pages, stats.pages_total) == (2, 3, 64)
        assert (stats.memory_used, stats.memory_total) == (1, 2)


def test_ids_outside_the_packing_are_refused() -> None:
    with Rig() as rig:
        whole = make_submit(1)
        rig.receive(type(whole)(1, EPOCH, b"abc", whole.sampling))
        rig.receive(type(whole)(2, EPOCH, pack([5, -1]), whole.sampling))
        events = rig.events()
        assert [failure_of(events, rid).code for rid in (1, 2)] == [Code.INVALID] * 2
