"""Constrained sequences in a whole engine: beside others, resumed, preempted, broken, aborted."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import jsonschema
import pytest

from engine.grammar.grammars import compiler, schema_of
from engine.rig import Rig, ends_of, failure_of, ids_of, make_submit
from turing_engine.compiling import COMPILE_SECONDS
from turing_engine.grammar.compiler import Compiler
from turing_engine.grammar.matcher import HURRIED, Matcher
from turing_engine.grammar.vocabulary import Vocabulary
from turing_engine.plan.grammar import Verdict
from turing_engine.run.scripted import EOS, VOCAB_SIZE, scripted_files
from turing_protocol.errors import Code
from turing_protocol.messages import (
    Abort,
    Finished,
    Reason,
    Started,
    StreamEvent,
    Submit,
    Tokens,
)
from turing_protocol.sampling import Constraint, Sampling

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "tags": {"type": "array", "items": {"type": "integer"}},
        "note": {"type": "string"},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
SHORTEST = len('{"name":"","tags":[]}')
HOT = Sampling(max_tokens=50, temperature=1.5)


def asking(
    rid: int, *, sampling: Sampling = HOT, schema: Any = PERSON, prior: tuple[int, ...] = ()
) -> Submit:
    return make_submit(rid, sampling=sampling, constraint=schema_of(schema), prior=prior)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(compiler=compiler()) as rig:
        yield rig


def run(rig: Rig, *submits: Submit) -> list[StreamEvent]:
    """Let every request end and return all events."""
    events: list[StreamEvent] = []
    for submit in submits:
        rig.receive(submit)
    deadline = time.monotonic() + 30
    while len(rig.core.sessions):
        assert time.monotonic() < deadline
        rig.core.intake()
        rig.core.turn()
    events += rig.events()
    return events


def text_of(events: list[StreamEvent], rid: int) -> str:
    return bytes(ids_of(events, rid)).decode()


def finished(events: list[StreamEvent], rid: int) -> Finished:
    end = ends_of(events)[rid]
    assert isinstance(end, Finished), end
    return end


@pytest.mark.parametrize("tokens", range(1, 61, 3))
def test_answers_are_whole_or_say_that_they_are_cut(rig: Rig, tokens: int) -> None:
    seeds = range(4)
    samplings = [Sampling(max_tokens=tokens, temperature=1.5, seed=seed) for seed in seeds]
    events = run(rig, *[asking(at, sampling=each) for at, each in enumerate(samplings)])
    for rid in seeds:
        end = finished(events, rid)
        assert end.output == len(ids_of(events, rid)) <= tokens
        if tokens < SHORTEST:
            assert end.reason is Reason.LENGTH
            assert "too small" in end.warnings[0]
        else:
            assert end.reason is Reason.STOP
            jsonschema.validate(json.loads(text_of(events, rid)), PERSON)


def test_warnings_that_are_known_come_with_the_start(rig: Rig) -> None:
    events = run(rig, asking(1, sampling=Sampling(max_tokens=5)))
    (started,) = [event for event in events if isinstance(event, Started)]
    assert started.warnings == finished(events, 1).warnings
    events = run(rig, asking(2, sampling=Sampling(max_tokens=SHORTEST)))
    (started,) = [event for event in events if isinstance(event, Started)]
    assert (started.warnings, finished(events, 2).warnings) == ((), (HURRIED,))


def test_free_and_constrained_sequences_share_steps(rig: Rig) -> None:
    alone = run(rig, make_submit(1, max_tokens=60))
    events = run(rig, make_submit(2, max_tokens=60), asking(3), asking(4), asking(5))
    assert ids_of(events, 2) == ids_of(alone, 1)
    assert ids_of(events, 3) == ids_of(events, 4) == ids_of(events, 5)


@pytest.mark.parametrize("tokens", [30, 50, 400])
def test_a_resumed_answer_goes_on_token_by_token(rig: Rig, tokens: int) -> None:
    sampling = Sampling(max_tokens=tokens, temperature=1.5, seed=4)
    whole = ids_of(run(rig, asking(0, sampling=sampling)), 0)
    for cut in range(1, len(whole)):
        prior = tuple(whole[:cut])
        rest = ids_of(run(rig, asking(cut, sampling=sampling, prior=prior)), cut)
        assert [*prior, *rest] == whole


def test_a_resumed_answer_that_is_whole_already_only_ends(rig: Rig) -> None:
    whole = tuple(ids_of(run(rig, asking(1)), 1))
    events = run(rig, asking(2, prior=whole))
    end = finished(events, 2)
    assert (end.reason, end.output) == (Reason.STOP, len(whole))
    assert not any(isinstance(event, Tokens) for event in events)


def test_preemption_changes_nothing() -> None:
    calm, tight = Rig(compiler=compiler()), Rig(compiler=compiler(), pages=4)
    samplings = [Sampling(max_tokens=120, temperature=1.5, seed=seed) for seed in range(4)]
    with calm, tight:
        long = {"type": "string", "minLength": 90}
        submits = [asking(at, sampling=each, schema=long) for at, each in enumerate(samplings)]
        expected, events = run(calm, *submits), run(tight, *submits)
        assert tight.scheduler.preemptions
    for rid in range(4):
        assert ids_of(events, rid) == ids_of(expected, rid)


def test_a_scripted_stop_waits_until_the_grammar_accepts() -> None:
    with Rig(f"scripted:ids={EOS}+{EOS}", compiler=compiler()) as rig:
        events = run(rig, make_submit(1, constraint=Constraint("regex", "[ab]{3}")))
        assert text_of(events, 1)[2:]
        assert finished(events, 1).reason is Reason.STOP


def test_two_hundred_broken_schemas_leave_a_running_stream_alone(rig: Rig) -> None:
    alone = ids_of(run(rig, make_submit(1, max_tokens=250)), 1)
    rig.receive(make_submit(2, max_tokens=250))
    broken: list[dict[str, Any]] = [
        {"type": "strng"},
        {"pattern": "(("},
        {"$ref": "#/x"},
        {"enum": []},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
    ]
    submits = [asking(3 + at, schema={**broken[at % 5], "title": str(at)}) for at in range(200)]
    for submit in submits:
        rig.receive(submit)
        rig.core.turn()
    events = run(rig)
    assert ids_of(events, 2) == alone
    for submit in submits:
        assert failure_of(events, submit.rid).code is Code.CONSTRAINT_INVALID


def test_a_sequence_that_is_aborted_while_it_is_compiled_never_starts(rig: Rig) -> None:
    rig.receive(asking(1))
    rig.receive(Abort(1))
    assert run(rig) == []
    assert not rig.scheduler.has_work
    assert finished(run(rig, asking(2)), 2)


def test_what_takes_too_long_to_compile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Compiler(Vocabulary(scripted_files()["tokenizer.json"].decode(), VOCAB_SIZE, (EOS,)))
    with Rig(compiler=slow) as rig, monkeypatch.context() as patched:
        patched.setattr(slow, "start", lambda *_: _never())
        rig.receive(asking(1))
        rig.clock.now += COMPILE_SECONDS + 1
        rig.core.intake()
        failed = failure_of(rig.events(), 1)
    assert failed.code is Code.CONSTRAINT_INVALID
    assert "longer than 10 seconds" in failed.message


def test_a_defect_in_the_compiler_fails_its_own_request(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(self: Compiler, *_: object) -> Matcher:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(Compiler, "matcher", explode)
        events = run(rig, asking(1))
    assert failure_of(events, 1).code is Code.CONSTRAINT_INVALID
    assert finished(run(rig, asking(2)), 2)


def test_a_failing_matcher_fails_its_own_sequence(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = Matcher.accept

    def sabotage(self: Matcher, token: int, left: int) -> Verdict:
        if left == 30:
            self.error = "parser too complex"
            return Verdict.BROKEN
        return accept(self, token, left)

    monkeypatch.setattr(Matcher, "accept", sabotage)
    other = asking(2, sampling=Sampling(max_tokens=29, temperature=1.5))
    events = run(rig, make_submit(1, max_tokens=40), other, asking(3))
    assert finished(events, 1).output == 40
    assert finished(events, 2)
    failed = failure_of(events, 3)
    assert (failed.code, rig.core.state.name) == (Code.CONSTRAINT_INVALID, "READY")
    assert "parser too complex" in failed.message


def test_a_full_queue_is_told_after_compiling() -> None:
    with Rig(compiler=compiler(), max_running=1, max_waiting=1) as rig:
        rig.receive(make_submit(1, max_tokens=400))
        rig.turns(2)
        rig.receive(make_submit(2))
        events = run(rig, asking(3))
    assert failure_of(events, 3).code is Code.OVERLOADED
    assert finished(events, 2)


def test_leaving_fails_what_is_being_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Compiler(Vocabulary(scripted_files()["tokenizer.json"].decode(), VOCAB_SIZE, (EOS,)))
    monkeypatch.setattr(stuck, "start", lambda *_: _never())
    with Rig(compiler=stuck) as rig:
        rig.receive(asking(1))
        rig.core.drain(0.0)
        rig.core.run()
        assert failure_of(rig.events(), 1).code is Code.ENGINE_LOST


def _never() -> "Future[Matcher]":
    return Future()
