"""Sequences whose constraint is being compiled; they wait here, outside of the scheduler."""

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Final

from turing_engine.grammar.compiler import Compiler
from turing_engine.grammar.matcher import Matcher
from turing_engine.plan.sequence import Sequence
from turing_protocol.errors import Code, TuringError
from turing_protocol.sampling import Constraint

COMPILE_SECONDS: Final = 10.0
"""Time for one constraint, the wait for a thread included."""
MAX_COMPILING: Final = 256
RETRY_MS: Final = 1000

Ready = Callable[[Sequence, TuringError | None], None]
"""Told, on the core's thread, that a sequence has its grammar or why it gets none."""


class Compiling:
    """Sends constraints to the compiler and brings the outcome back to the core's thread.

    ``post`` hands a function to that thread. A sequence that was aborted meanwhile is dropped when
    its outcome comes, by ``ready``.
    """

    def __init__(
        self, compiler: Compiler, post: Callable[[Callable[[], None]], None], ready: Ready
    ) -> None:
        self._compiler = compiler
        self._post = post
        self._ready = ready
        self._since: dict[Sequence, float] = {}

    def __len__(self) -> int:
        """Sequences that wait."""
        return len(self._since)

    def start(self, sequence: Sequence, constraint: Constraint, now: float) -> None:
        """Begin to compile; ``Code.OVERLOADED`` when too many wait."""
        if len(self._since) >= MAX_COMPILING:
            words = f"{len(self._since)} constraints are waiting to be compiled; try again later"
            raise TuringError(Code.OVERLOADED, words, retry_ms=RETRY_MS)
        self._since[sequence] = now
        future = self._compiler.start(constraint, sequence)
        future.add_done_callback(lambda done: self._post(partial(self._settle, sequence, done)))

    def expire(self, now: float) -> None:
        """Give up the sequences that have waited for too long."""
        late = [each for each, since in self._since.items() if now - since > COMPILE_SECONDS]
        for sequence in late:
            del self._since[sequence]
            words = f"the constraint took longer than {COMPILE_SECONDS:g} seconds to compile"
            self._ready(sequence, TuringError(Code.CONSTRAINT_INVALID, words))

    def close(self) -> None:
        """Compile no more."""
        self._compiler.close()

    def _settle(self, sequence: Sequence, done: "Future[Matcher]") -> None:
        if self._since.pop(sequence, None) is None:
            return
        error = _error_of(done)
        if error is None:
            sequence.grammar = done.result()
        self._ready(sequence, error)


def _error_of(done: "Future[Matcher]") -> TuringError | None:
    try:
        error = done.exception()
    except CancelledError:
        return TuringError(Code.ENGINE_LOST, "the engine is shutting down")
    if error is None or isinstance(error, TuringError):
        return error
    words = f"the constraint could not be compiled: {type(error).__name__}"
    return TuringError(Code.CONSTRAINT_INVALID, words)
