"""Constraints compiled once, failures remembered, sequences that come with output."""

from concurrent.futures import Future
from threading import Barrier, Thread

import pytest

from engine.grammar.grammars import schema_of, sequence
from turing_engine.grammar import compiler as module
from turing_engine.grammar.compiler import KEPT, NO_WAY, Compiled, Compiler
from turing_engine.grammar.matcher import Matcher
from turing_engine.grammar.vocabulary import Vocabulary
from turing_engine.run.scripted import EOS, VOCAB_SIZE, scripted_files
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import Reason
from turing_protocol.sampling import Constraint, Sampling


@pytest.fixture
def compiler() -> Compiler:
    files = scripted_files()
    return Compiler(Vocabulary(files["tokenizer.json"].decode(), VOCAB_SIZE, (EOS,)))


def test_equal_constraints_are_compiled_once(compiler: Compiler) -> None:
    first = compiler.compile(Constraint("regex", "a+"))
    assert compiler.compile(Constraint("regex", "a+")) is first
    assert compiler.compile(Constraint("regex", "a+", strict=True)) is not first


def test_failures_are_remembered(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Constraint] = []

    def fail(constraint: Constraint) -> str:
        calls.append(constraint)
        raise TuringError(Code.CONSTRAINT_INVALID, "no")

    monkeypatch.setattr(module, "grammar_of", fail)
    for _ in range(2):
        with pytest.raises(TuringError, match="no"):
            compiler.compile(Constraint("regex", "a"))
    assert len(calls) == 1


def test_the_longest_unused_is_forgotten(compiler: Compiler) -> None:
    first = compiler.compile(Constraint("regex", "first"))
    kept = compiler.compile(Constraint("regex", "kept"))
    for number in range(KEPT - 1):
        compiler.compile(Constraint("regex", f"x{number}"))
        compiler.compile(Constraint("regex", "kept"))
    assert compiler.compile(Constraint("regex", "kept")) is kept
    assert compiler.compile(Constraint("regex", "first")) is not first


def test_threads_that_want_the_same_share_the_work(compiler: Compiler) -> None:
    barrier, found = Barrier(4), list[Compiled]()

    def compile_it() -> None:
        barrier.wait()
        found.append(compiler.compile(Constraint("regex", "(a|b){1,400}")))

    threads = [Thread(target=compile_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(compiled) for compiled in found}) == 1


def test_a_matcher_is_made_on_another_thread(compiler: Compiler) -> None:
    future: Future[Matcher] = compiler.start(
        Constraint("regex", "a+"), sequence(Sampling(max_tokens=4))
    )
    assert future.result(20).forced() == [97]
    compiler.close()
    with pytest.raises(RuntimeError):
        compiler.start(Constraint("regex", "a+"), sequence(Sampling(max_tokens=4)))


def test_output_that_is_a_whole_answer_finishes_the_sequence(compiler: Compiler) -> None:
    whole = sequence(Sampling(max_tokens=9), b"true")
    compiler.matcher(schema_of({"type": "boolean"}), whole)
    assert whole.finish is Reason.STOP
    cut = sequence(Sampling(max_tokens=9), b"tru")
    compiler.matcher(schema_of({"type": "boolean"}), cut)
    assert cut.finish is None


def test_output_that_leaves_too_little_room_is_taken_as_it_is(compiler: Compiler) -> None:
    """A reasoning budget puts ids into an answer that no draw has put there."""
    schema = schema_of({"type": "array", "items": {"type": "integer"}})
    late = sequence(Sampling(max_tokens=3), b"[1,")
    follower = compiler.matcher(schema, late)
    assert follower.accept(ord("1"), 0).name == "GO"


def test_a_form_without_short_answer_is_warned_of(compiler: Compiler) -> None:
    schema = schema_of({"type": "string", "pattern": "[aeiou]{3}x"})
    assert compiler.compile(schema).warnings == (NO_WAY,)


def test_too_few_tokens_are_warned_of(compiler: Compiler) -> None:
    follower = compiler.matcher(schema_of({"const": "abc"}), sequence(Sampling(max_tokens=4)))
    assert follower.warnings == (
        "max_tokens 4 is too small for an answer: the shortest found has 5 tokens",
    )
