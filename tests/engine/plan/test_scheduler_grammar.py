"""What a grammar's verdicts do to a sequence."""

import pytest

from engine.plan.toy import config, sequence
from turing_engine.plan.grammar import Verdict
from turing_engine.plan.plan import Plan, Result, Sampled
from turing_engine.plan.scheduler import Progress, Scheduler
from turing_engine.plan.sequence import Sequence, Status
from turing_protocol.messages import Reason, TokenLogprobs
from turing_protocol.sampling import Sampling

GO, DONE, END, RETRY, BROKEN = Verdict


class Judge:
    """Speaks the verdicts it was given, one per token, and keeps what it was asked."""

    def __init__(self, *verdicts: Verdict) -> None:
        self._verdicts = list(verdicts)
        self.asked: list[tuple[int, int]] = []
        self.error = ""
        self.warnings = ()

    def mask(self, words: memoryview, left: int) -> None:
        raise AssertionError("a scheduler masks nothing")

    def accept(self, token: int, left: int) -> Verdict:
        self.asked.append((token, left))
        verdict = self._verdicts.pop(0) if self._verdicts else GO
        if verdict is BROKEN:
            self.error = "too complex"
        return verdict


def constrained(*verdicts: Verdict, prompt: int = 10, output: int = 4) -> tuple[Sequence, Judge]:
    judge = Judge(*verdicts)
    made = sequence(prompt, output)
    made.grammar = judge
    return made, judge


def step(scheduler: Scheduler, token: int) -> tuple[Plan, list[Progress]]:
    plan = scheduler.plan(0)
    assert plan is not None
    logprobs = [TokenLogprobs(-1.0)]
    rows = [Sampled([token], logprobs) if chunk.sample else Sampled([]) for chunk in plan.chunks]
    return plan, scheduler.settle(plan, Result(plan.step, rows), 0)


def test_tokens_are_offered_with_what_is_left_behind_them() -> None:
    scheduler = Scheduler(config())
    made, judge = constrained()
    scheduler.add(made, 0)
    for token in (7, 8, 9, 11):
        step(scheduler, token)
    assert judge.asked == [(7, 3), (8, 2), (9, 1), (11, 0)]
    assert made.finish is Reason.LENGTH


def test_a_complete_answer_stops_with_its_last_token() -> None:
    scheduler = Scheduler(config())
    made, _ = constrained(GO, DONE)
    scheduler.add(made, 0)
    step(scheduler, 7)
    _, (progress,) = step(scheduler, 8)
    assert (progress.ids, len(progress.logprobs), made.finish) == ([8], 1, Reason.STOP)
    assert made.tokens[-2:] == [7, 8]


def test_an_answer_that_is_complete_at_the_limit_stops_too() -> None:
    scheduler = Scheduler(config())
    made, _ = constrained(DONE, output=1)
    scheduler.add(made, 0)
    step(scheduler, 7)
    assert made.finish is Reason.STOP


def test_an_end_is_not_part_of_the_answer() -> None:
    scheduler = Scheduler(config())
    made, _ = constrained(GO, END)
    scheduler.add(made, 0)
    step(scheduler, 7)
    _, (progress,) = step(scheduler, 8)
    assert (progress.ids, progress.logprobs, made.finish) == ([], [], Reason.STOP)
    assert made.tokens[-1] == 7
    assert scheduler.pages_used == 0


def test_stop_ids_are_the_grammars_business() -> None:
    scheduler = Scheduler(config())
    made, _ = constrained(GO)
    made.stop_ids = frozenset({7})
    scheduler.add(made, 0)
    step(scheduler, 7)
    assert made.finish is None


@pytest.mark.parametrize("prompt", [10, 63, 64, 65, 128])
def test_a_refused_draw_is_made_again_from_the_same_place(prompt: int) -> None:
    scheduler = Scheduler(config())
    made, judge = constrained(RETRY, GO, RETRY, RETRY, GO, prompt=prompt)
    scheduler.add(made, 0)
    _, (progress,) = step(scheduler, 7)
    assert (progress.ids, made.output_len, made.first_token_at) == ([], 0, 0.0)
    plan, (progress,) = step(scheduler, 8)
    (chunk,) = plan.chunks
    assert (chunk.start, chunk.ids, chunk.sample) == (
        prompt - 1,
        made.tokens[prompt - 1 : -1],
        True,
    )
    assert progress.ids == [8]
    (start,) = plan.starts
    assert (start.slot, start.output) == (chunk.slot, [])
    starts = [step(scheduler, token)[0].starts for token in (1, 2, 3)]
    assert [len(each) for each in starts] == [0, 1, 1]
    assert judge.asked == [(7, 3), (8, 3), (1, 2), (2, 2), (3, 2)]
    assert made.tokens[prompt:] == [8, 3]


def test_a_sequence_that_is_preempted_between_draws_starts_once() -> None:
    scheduler = Scheduler(config(pages=2, max_running=2))
    first, _ = constrained(RETRY, prompt=60, output=60)
    second, _ = constrained(*[RETRY] * 5, prompt=60, output=60)
    scheduler.add(first, 0)
    scheduler.add(second, 0)
    for token in range(8):
        plan, _ = step(scheduler, token)
        assert len({start.slot for start in plan.starts}) == len(plan.starts)
    assert second.preemptions


def test_a_broken_grammar_ends_its_own_sequence_only() -> None:
    scheduler = Scheduler(config())
    made, _ = constrained(BROKEN)
    other, _ = constrained(GO)
    scheduler.add(made, 0)
    scheduler.add(other, 0)
    _, (broken, fine) = step(scheduler, 7)
    assert (broken.failure, broken.ids, made.status) == ("too complex", [], Status.FINISHED)
    assert made.finish is None
    assert (fine.failure, fine.ids) == ("", [7])


def test_constrained_samples_are_told_with_their_place_in_the_plan() -> None:
    scheduler = Scheduler(config())
    free = sequence(10)
    made, judge = constrained(prompt=10, output=5)
    long, _ = constrained(prompt=2000, output=5)
    for each in (free, made, long):
        scheduler.add(each, 0)
    plan = scheduler.plan(0)
    assert plan is not None
    assert scheduler.constrained(plan) == [(1, judge, 5)]


def test_a_grammar_bans_by_itself() -> None:
    scheduler = Scheduler(config())
    made, _ = constrained()
    made.sampling = Sampling(max_tokens=4, min_tokens=2)
    scheduler.add(made, 0)
    plan = scheduler.plan(0)
    assert plan is not None
    assert plan.starts[0].banned == []
