"""Compiles constraints off the step loop, keeps what it compiled, and hands out matchers."""

import hashlib
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Final

import msgspec
from llguidance import LLMatcher, LLParserLimits

from turing_engine.grammar.closing import Closing
from turing_engine.grammar.matcher import Ends, Matcher
from turing_engine.grammar.search import shortest_way
from turing_engine.grammar.source import complaint, grammar_of, ignored
from turing_engine.grammar.vocabulary import Vocabulary
from turing_engine.plan.grammar import Verdict
from turing_engine.plan.sequence import Sequence
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import Reason
from turing_protocol.sampling import Constraint

THREADS: Final = 2
KEPT: Final = 256
"""Compiled constraints, failed ones included, that are remembered."""
SEARCHED: Final = 4096
"""States that the search for a short answer may look at."""
_CLOSED: Final = ("json_schema", "grammar")
"""Kinds whose answers, if they are strict, are closed before their tokens run out."""

NO_WAY: Final = "max_tokens may cut the answer off: no short answer of the form asked for was found"


def parser_limits() -> LLParserLimits:
    """Return what one grammar may cost: about 20 ms of regex work to compile, 15 ms a mask."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_items_in_row=2_000,
        max_lexer_states=50_000,
        max_grammar_size=500_000,
        verbose_errors=False,
    )


class Compiled(msgspec.Struct, frozen=True):
    """A constraint that can be used: a parser at its start, to be copied."""

    parser: LLMatcher
    warnings: tuple[str, ...]
    shortest: list[int] | None
    """A short answer; only where answers are to be closed in time, and if one was found."""


class Compiler:
    """Compiles for one vocabulary. ``start`` may be called from any thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._pool = ThreadPoolExecutor(THREADS, "grammar")
        self._lock = Lock()
        self._kept: OrderedDict[bytes, Future[Compiled]] = OrderedDict()

    def start(self, constraint: Constraint, sequence: Sequence) -> "Future[Matcher]":
        """Begin to make the matcher of ``sequence``, which follows its output so far.

        ``Code.CONSTRAINT_INVALID`` says what is wrong with the constraint, ``Code.INVALID`` that
        the output does not match it. ``sequence.finish`` is set where the output is a whole answer.
        """
        return self._pool.submit(self.matcher, constraint, sequence)

    def matcher(self, constraint: Constraint, sequence: Sequence) -> Matcher:
        """Do what ``start`` begins."""
        compiled = self.compile(constraint)
        parser = compiled.parser.deep_copy()
        room = sequence.sampling.max_tokens
        closing, warnings = None, compiled.warnings
        if compiled.shortest is not None:
            closing = Closing(parser, self._vocabulary, compiled.shortest, room)
            if not closing.works:
                warnings = (*warnings, _too_short(room, len(compiled.shortest)))
        ends = Ends(
            sequence.stop_ids - self._vocabulary.eos_ids,
            sequence.sampling.ignore_eos,
            sequence.sampling.min_tokens,
        )
        matcher = Matcher(parser, self._vocabulary, ends, closing=closing, warnings=warnings)
        _replay(matcher, sequence)
        return matcher

    def compile(self, constraint: Constraint) -> Compiled:
        """Return ``constraint`` compiled, from memory if it was seen before."""
        key = hashlib.sha256(msgspec.msgpack.encode(constraint)).digest()
        with self._lock:
            found = self._kept.get(key)
            mine: Future[Compiled] = Future()
            if found is None:
                self._kept[key] = mine
            self._kept.move_to_end(key)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        if found is not None:
            return found.result()
        try:
            mine.set_result(self._compile(constraint))
        except BaseException as error:
            mine.set_exception(error)
        return mine.result()

    def close(self) -> None:
        """Begin no more; what runs is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, constraint: Constraint) -> Compiled:
        grammar = grammar_of(constraint)
        parser = LLMatcher(self._vocabulary.tokenizer, grammar, log_level=0, limits=parser_limits())
        if parser.is_error():
            raise complaint(constraint, parser.get_error())
        warnings = [ignored(warning) for warning in parser.get_grammar_warnings()]
        shortest = None
        if constraint.strict and constraint.kind in _CLOSED:
            shortest = shortest_way(parser, self._vocabulary, limit=SEARCHED)
            warnings += [] if shortest else [NO_WAY]
        return Compiled(parser, tuple(warnings), shortest)


def _replay(matcher: Matcher, sequence: Sequence) -> None:
    """Let ``matcher`` follow what another engine generated."""
    for place in range(sequence.prompt_len, len(sequence.tokens)):
        verdict = matcher.replay(sequence.tokens[place], sequence.limit - place - 1)
        if verdict is Verdict.DONE and place == len(sequence.tokens) - 1:
            sequence.finish = Reason.STOP
        elif verdict is not Verdict.GO:
            words = "prior does not match the constraint"
            raise TuringError(Code.INVALID, words, param="prior")


def _too_short(room: int, needed: int) -> str:
    return f"max_tokens {room} is too small for an answer: the shortest found has {needed} tokens"
