"""The scheduler, rule by rule: admission, order, ends, prefix cache, starvation."""

import pytest

from engine.plan.toy import STOP, Loop, config, decoding, expected, sequence, sizes, slots
from turing_engine.plan.plan import Result, Sampled
from turing_engine.plan.scheduler import Scheduler, SchedulerConfig
from turing_engine.plan.sequence import Status
from turing_protocol.admission import RETRY_MS
from turing_protocol.errors import Code, TuringError
from turing_protocol.lanes import CHUNK, Lane
from turing_protocol.messages import Reason, TokenLogprobs
from turing_protocol.prefix import page_hashes

# -- configuration and admission ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pages", "max_running", "max_waiting", "context"])
def test_sizes_must_be_positive(name: str) -> None:
    good = {"pages": 1, "max_running": 1, "max_waiting": 1, "context": 1}
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        SchedulerConfig(**(good | {name: 0}), max_step_tokens=1, chunk=CHUNK)


def test_a_step_must_hold_every_decode() -> None:
    with pytest.raises(ValueError, match="max_step_tokens"):
        config(max_running=8, max_step_tokens=7)


@pytest.mark.parametrize("chunk", [{Lane.INTERACTIVE: 64, Lane.BATCH: 64}, dict.fromkeys(Lane, 0)])
def test_every_lane_needs_a_chunk(chunk: dict[Lane, int]) -> None:
    with pytest.raises(ValueError, match="chunk"):
        config(chunk=chunk)


def test_footprint_beyond_the_pool_never_fits() -> None:
    scheduler = Scheduler(config(pages=4))
    scheduler.add(sequence(200, 56), 0)
    with pytest.raises(TuringError) as caught:
        scheduler.add(sequence(200, 57), 0)
    assert (caught.value.code, caught.value.param) == (Code.NEVER_FITS, "max_tokens")
    assert (scheduler.waiting, scheduler.reserved_pages) == ((1, 0, 0), 4)


def test_footprint_beyond_the_context_never_fits() -> None:
    with pytest.raises(TuringError) as caught:
        Scheduler(config(context=100)).add(sequence(90, 11), 0)
    assert caught.value.code is Code.NEVER_FITS


def test_full_queue_refuses_and_says_when_to_retry() -> None:
    scheduler = Scheduler(config(max_waiting=2))
    scheduler.add(sequence(10), 0)
    scheduler.add(sequence(10, lane=Lane.BATCH), 0)
    with pytest.raises(TuringError) as caught:
        scheduler.add(sequence(10), 0)
    assert (caught.value.code, caught.value.retry_ms) == (Code.OVERLOADED, RETRY_MS)
    assert scheduler.reserved_pages == 2
    scheduler.plan(0)
    scheduler.add(sequence(10), 0)


def test_what_never_fits_is_told_so_also_when_the_queue_is_full() -> None:
    scheduler = Scheduler(config(pages=4, max_waiting=1))
    scheduler.add(sequence(10), 0)
    with pytest.raises(TuringError) as caught:
        scheduler.add(sequence(300), 0)
    assert caught.value.code is Code.NEVER_FITS


@pytest.mark.parametrize("lane", [Lane.BATCH, Lane.BACKGROUND])
@pytest.mark.parametrize(
    ("pages", "code"), [(10, None), (11, Code.OVERLOADED), (15, Code.OVERLOADED), (16, Code.SHED)]
)
def test_the_engine_judges_by_the_watermarks(lane: Lane, pages: int, code: Code | None) -> None:
    scheduler = Scheduler(config(pages=100, context=10_000))
    scheduler.add(sequence(79 * 64, 64), 0)
    request = sequence(pages * 64 - 8, 8, lane=lane)
    if code is None:
        scheduler.add(request, 0)
        assert scheduler.reserved_pages == 90
        return
    with pytest.raises(TuringError) as caught:
        scheduler.add(request, 0, tokens_per_s=64.0)
    assert caught.value.code is code
    assert caught.value.retry_ms == (pages - 10) * 1000
    assert (scheduler.reserved_pages, scheduler.waiting) == (80, (1, 0, 0))


def test_interactive_work_waits_above_every_watermark() -> None:
    scheduler = Scheduler(config(pages=10))
    scheduler.add(sequence(600), 0)
    scheduler.add(sequence(600), 0)
    assert (scheduler.reserved_pages, scheduler.waiting) == (20, (2, 0, 0))


def test_an_answer_that_began_elsewhere_is_not_shed() -> None:
    scheduler = Scheduler(config(pages=10))
    scheduler.add(sequence(600), 0)
    scheduler.add(sequence(600, prior=(1,), lane=Lane.BACKGROUND), 0)
    assert scheduler.waiting == (1, 0, 1)


def test_no_tokens_are_refused() -> None:
    with pytest.raises(TuringError) as caught:
        Scheduler(config()).add(sequence([]), 0)
    assert (caught.value.code, caught.value.param) == (Code.INVALID, "prompt")


@pytest.mark.parametrize("prior", [(), (1, 2, 4)])
def test_nothing_to_generate_finishes_at_once(prior: tuple[int, ...]) -> None:
    scheduler = Scheduler(config())
    request = sequence(100, len(prior), prior=prior)
    scheduler.add(request, 7.0)
    assert (request.status, request.finish) == (Status.FINISHED, Reason.LENGTH)
    assert (request.started_at, request.finished_at) == (7.0, 7.0)
    assert not scheduler.has_work
    assert scheduler.plan(0) is None
    assert scheduler.reserved_pages == 0


def test_nothing_to_do_is_no_plan() -> None:
    assert Scheduler(config()).plan(0) is None


# -- order and size of a step ---------------------------------------------------------------------


def test_decodes_then_begun_prefills_then_new_ones() -> None:
    loop = Loop(config(max_step_tokens=128))
    decode, begun, fresh = sequence(10), sequence(500, lane=Lane.BACKGROUND), sequence(10)
    decoding(loop, decode)
    loop.add(begun)
    loop.step()
    loop.add(fresh)
    plan = loop.plan()
    assert slots(plan) == [decode.slot, begun.slot, fresh.slot]
    assert sizes(plan) == [1, 64, 10]


def test_begun_prefills_go_in_lane_order() -> None:
    loop = Loop(config(max_step_tokens=128, chunk=64))
    background, interactive = sequence(500, lane=Lane.BACKGROUND), sequence(500, world=1)
    loop.add(background)
    loop.step()
    loop.add(interactive)
    loop.step()
    assert slots(loop.plan()) == [interactive.slot, background.slot]


def test_new_ones_start_in_lane_order() -> None:
    loop = Loop(config())
    background = sequence(10, lane=Lane.BACKGROUND)
    batch = sequence(10, lane=Lane.BATCH)
    interactive = sequence(10)
    loop.add(background, batch, interactive)
    assert slots(loop.plan()) == [interactive.slot, batch.slot, background.slot]


def test_earlier_deadline_starts_first() -> None:
    loop = Loop(config(max_running=1))
    relaxed, urgent = sequence(10, deadline=20.0), sequence(10, deadline=10.0)
    loop.add(relaxed, urgent)
    loop.plan()
    assert (urgent.status, relaxed.status) == (Status.RUNNING, Status.WAITING)


def test_each_lane_has_its_own_chunk() -> None:
    loop = Loop(config(chunk=CHUNK, pages=64))
    loop.add(*(sequence(1000, lane=lane) for lane in Lane))
    assert sizes(loop.plan()) == [512, 256, 128]


def test_step_never_exceeds_its_tokens() -> None:
    loop = Loop(config(max_step_tokens=200))
    loop.add(sequence(130), sequence(130, world=1), sequence(130, world=2))
    assert sizes(loop.step()) == [130, 64]
    assert sizes(loop.step()) == [1, 66, 130]


def test_chunks_end_at_page_boundaries_except_the_last() -> None:
    loop = Loop(config(max_step_tokens=100))
    request = sequence(150)
    loop.add(request)
    assert sizes(loop.step()) == [64]
    assert sizes(loop.step()) == [86]


def test_first_prefill_moves_even_by_less_than_a_page() -> None:
    loop = Loop(config(max_step_tokens=40))
    loop.add(sequence(150), sequence(150, world=1))
    assert [sizes(loop.step()) for _ in range(4)] == [[40], [24], [40], [24]]


def test_only_the_last_chunk_samples() -> None:
    loop = Loop(config(chunk=64))
    loop.add(sequence(100))
    first, last = loop.plan(), None
    assert loop.settle(first) == []
    last = loop.plan()
    assert [chunk.sample for chunk in (*first.chunks, *last.chunks)] == [False, True]
    assert [len(progress.ids) for progress in loop.settle(last)] == [1]


def test_slots_limit_what_runs() -> None:
    loop = Loop(config(max_running=2))
    loop.add(*(sequence(10, world=world) for world in range(3)))
    assert len(loop.plan().chunks) == 2
    assert (loop.scheduler.running, loop.scheduler.waiting) == (2, (1, 0, 0))


def test_sequences_of_an_open_plan_are_skipped() -> None:
    loop = Loop(config())
    first, second = sequence(10), sequence(10, world=1)
    loop.add(first)
    open_plan = loop.plan()
    assert loop.scheduler.plan(0) is None
    loop.add(second)
    assert slots(loop.plan()) == [second.slot]
    loop.settle(open_plan)
    assert slots(loop.plan()) == [first.slot]


# -- tokens and ends ------------------------------------------------------------------------------


def test_length_ends_a_sequence() -> None:
    loop = Loop(config())
    request = sequence(100, 5)
    tokens, reason = expected(request)
    loop.add(request)
    assert loop.finish() == 5
    assert (request.tokens, request.finish) == (tokens, reason)
    assert reason is Reason.LENGTH


def test_stop_id_ends_a_sequence_and_is_its_last_token() -> None:
    loop = Loop(config())
    request = sequence(100, 500, stop=True)
    tokens, _ = expected(request)
    loop.add(request)
    loop.finish()
    assert (request.tokens, request.finish) == (tokens, Reason.STOP)
    assert request.tokens[-1] == STOP


def test_nothing_behind_the_end_is_kept() -> None:
    scheduler = Scheduler(config())
    request = sequence(10, 2)
    scheduler.add(request, 0)
    plan = scheduler.plan(0)
    assert plan is not None
    logprobs = [TokenLogprobs(-1.0), TokenLogprobs(-2.0), TokenLogprobs(-3.0)]
    [progress] = scheduler.settle(plan, Result(plan.step, [Sampled([5, 6, 7], logprobs)]), 0)
    assert (progress.ids, progress.logprobs) == ([5, 6], logprobs[:2])
    assert request.tokens[10:] == [5, 6]


def test_stop_ids_are_banned_only_with_min_tokens() -> None:
    loop = Loop(config())
    loop.add(sequence(10, stop=True), sequence(10, stop=True, min_tokens=3))
    assert [start.banned for start in loop.plan().starts] == [[], [STOP]]


def test_resumed_sequence_starts_with_its_prior_output() -> None:
    loop = Loop(config())
    whole = sequence(100, 20)
    tokens, _ = expected(whole)
    request = sequence(whole.tokens, 20, prior=tuple(tokens[100:107]))
    loop.add(request)
    plan = loop.plan()
    assert (plan.starts[0].prompt, plan.starts[0].output) == (tokens[:100], tokens[100:107])
    loop.settle(plan)
    loop.finish()
    assert request.tokens == tokens


def test_times_are_recorded() -> None:
    loop = Loop(config())
    request = sequence(10, 2)
    loop.add(request, now=1.0)
    loop.settle(loop.plan(2.0), 3.0)
    loop.settle(loop.plan(4.0), 5.0)
    assert (request.started_at, request.first_token_at, request.finished_at) == (2.0, 3.0, 5.0)


def test_everything_is_given_back_at_the_end() -> None:
    loop = Loop(config(pages=8))
    loop.add(sequence(100, 5), sequence(30, 5, world=1))
    assert loop.scheduler.reserved_pages == 3
    loop.finish()
    scheduler = loop.scheduler
    assert (scheduler.pages_used, scheduler.reserved_pages, scheduler.running) == (0, 0, 0)
    assert scheduler.pages_cached == 1
    loop.add(sequence(10))
    assert loop.plan().stops == [0, 1] or loop.plan().stops == [1, 0]


def test_started_are_told_once() -> None:
    loop = Loop(config(max_running=1))
    first, second = sequence(10, 1), sequence(10, 1, world=1)
    loop.add(first, second)
    loop.step()
    assert loop.scheduler.drain_started() == [first]
    assert loop.scheduler.drain_started() == []
    loop.step()
    assert loop.scheduler.drain_started() == [second]


@pytest.mark.parametrize(
    "result",
    [Result(9, [Sampled([1])]), Result(1, []), Result(1, [Sampled([])])],
    ids=["step", "rows", "token"],
)
def test_result_that_does_not_answer_the_plan_changes_nothing(result: Result) -> None:
    scheduler = Scheduler(config())
    request = sequence(10)
    scheduler.add(request, 0)
    plan = scheduler.plan(0)
    assert plan is not None
    with pytest.raises(ValueError, match="step"):
        scheduler.settle(plan, result, 0)
    assert (len(request.tokens), request.computed) == (10, 0)
    assert scheduler.fail(plan, 0) == [request]


# -- prefix cache ---------------------------------------------------------------------------------


def test_known_pages_are_not_computed_again() -> None:
    loop = Loop(config())
    loop.add(sequence(200, 3))
    loop.finish()
    again = sequence(200, 3)
    loop.add(again)
    assert sizes(loop.step()) == [200 - 192]
    assert again.cached == 192
    loop.finish()
    assert again.tokens == expected(sequence(200, 3))[0]


def test_whole_prompt_is_never_taken_from_the_cache() -> None:
    loop = Loop(config())
    loop.add(sequence(128, 3))
    loop.finish()
    again = sequence(128, 3)
    loop.add(again)
    assert sizes(loop.step()) == [64]
    assert again.cached == 64


def test_cached_counts_prompt_tokens_only() -> None:
    loop = Loop(config())
    whole = sequence(100, 200)
    tokens, _ = expected(whole)
    loop.add(whole)
    loop.finish()
    resumed = sequence(tokens[:100], 200, prior=tuple(tokens[100:250]))
    loop.add(resumed)
    assert sizes(loop.plan()) == [250 - 192]
    assert resumed.cached == 100


def test_another_salt_shares_nothing() -> None:
    loop = Loop(config())
    loop.add(sequence(200, 3))
    loop.finish()
    other = sequence(200, 3, world=1)
    loop.add(other)
    assert sizes(loop.step()) == [200]
    assert other.cached == 0


def test_pages_are_known_only_once_computed() -> None:
    loop = Loop(config(max_step_tokens=128, max_running=1))
    request = sequence(300)
    keys = page_hashes(request.root, request.tokens)
    loop.add(request)
    plan = loop.plan()
    assert loop.scheduler.drain_page_events() == ([], [])
    loop.settle(plan)
    assert loop.scheduler.drain_page_events() == (
        [(keys[0], request.root), (keys[1], keys[0])],
        [],
    )


def test_twins_end_up_on_the_same_pages() -> None:
    loop = Loop(config(max_step_tokens=512))
    first, second = sequence(200, 8), sequence(200, 8)
    loop.add(first, second)
    loop.step()
    assert first.pages[:3] == second.pages[:3]
    assert first.pages[3] != second.pages[3]
    assert loop.scheduler.pages_used == 5
    loop.finish()
    assert first.tokens == second.tokens == expected(sequence(200, 8))[0]


def test_cached_pages_are_evicted_before_anyone_is_preempted() -> None:
    loop = Loop(config(pages=4))
    loop.add(sequence(200, 3))
    loop.finish()
    loop.scheduler.drain_page_events()
    loop.add(sequence(200, 3, world=1))
    loop.step()
    assert loop.scheduler.preemptions == 0
    _, removed = loop.scheduler.drain_page_events()
    assert len(removed) == 3


# -- facts ----------------------------------------------------------------------------------------


def test_facts_of_a_mixed_load() -> None:
    loop = Loop(config(max_running=1, pages=20))
    loop.add(
        sequence(100, 28),
        sequence(10, 10, world=1),
        sequence(10, 10, lane=Lane.BATCH),
        sequence(70, 10, lane=Lane.BACKGROUND),
    )
    loop.step()
    scheduler = loop.scheduler
    assert scheduler.has_work
    assert (scheduler.running, scheduler.waiting) == (1, (1, 1, 1))
    assert (scheduler.waiting_tokens, scheduler.pages_used) == (90, 2)
    assert scheduler.reserved_pages == 2 + 1 + 1 + 2


# -- starvation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("patience", [5.0, float("inf")], ids=["deadlines", "no deadlines"])
def test_background_starts_under_endless_interactive_load(patience: float) -> None:
    loop = Loop(config(max_running=2, pages=16, max_waiting=100))
    background = sequence(100, 20, lane=Lane.BACKGROUND)
    loop.add(background)
    now, world = 0.0, 0
    while background.status is not Status.FINISHED:
        while loop.scheduler.waiting[0] < 8:
            world += 1
            loop.add(sequence(30, 6, world=world % 50, deadline=now + patience), now=now)
        loop.scheduler.expire(now)
        if now < 140.0:
            assert background.status is Status.WAITING, "the load must be able to starve it"
        loop.step(now)
        now += 0.5
        assert now < 1000.0
    assert background.finish is Reason.LENGTH
    assert background.finished_at < 180.0
    assert background.tokens == expected(sequence(100, 20))[0]


def test_batch_rises_after_30_seconds_and_is_then_safe_from_newer_ones() -> None:
    loop = Loop(config(max_running=1))
    batch = sequence(10, 40, lane=Lane.BATCH)
    loop.add(sequence(10, 40, world=1), batch)
    now = 0.0
    while batch.status is Status.WAITING:
        loop.add(sequence(10, 40, world=2), now=now)
        loop.step(now)
        now += 1.0
        assert now < 1000.0
    assert 30.0 <= now < 60.0
    loop.add(sequence(10, 40, world=3), now=now)
    loop.step(now)
    assert batch.status is Status.RUNNING
