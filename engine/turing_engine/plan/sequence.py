"""The state of one request inside the engine."""

import enum

import msgspec

from turing_engine.plan.grammar import Grammar
from turing_protocol.lanes import Lane
from turing_protocol.messages import Reason
from turing_protocol.sampling import Knobs, Sampling


class Status(enum.IntEnum):
    """Where a sequence is in its life."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2


class Sequence(msgspec.Struct, kw_only=True, eq=False):
    """One request: its tokens, its pages and how far they are computed.

    ``tokens`` = prompt + prior + generated; ``computed`` of them have KV in ``pages``.
    ``owner`` identifies (gateway, rid) and is opaque to the policy. Times are seconds of the clock
    that the scheduler is handed.
    """

    owner: tuple[bytes, int]
    tokens: list[int]
    prompt_len: int
    sampling: Sampling
    stop_ids: frozenset[int]
    """Ids that end the sequence: end-of-sequence ids (unless ignored) and requested stop ids."""
    limit: int
    """Length of ``tokens`` at which the sequence ends: prompt + max_tokens, within the context."""
    root: bytes
    """Salt of the page hashes."""
    lane: Lane = Lane.INTERACTIVE
    knobs: Knobs = Knobs()
    tenant: str = ""
    arrival: float = 0.0
    deadline: float = float("inf")
    """When a sequence that has not started is given up."""
    grammar: Grammar | None = None
    """What constrains the output, if anything does."""

    status: Status = Status.WAITING
    computed: int = 0
    cached: int = 0
    """Prompt tokens found in the prefix cache when the sequence first started."""
    pages: list[int] = msgspec.field(default_factory=list)
    keys: list[bytes] = msgspec.field(default_factory=list)
    """Page keys of full pages known so far."""
    slot: int = -1
    in_step: bool = False
    """Whether a plan that is neither settled nor failed contains the sequence."""
    preemptions: int = 0
    retries: bool = False
    """Whether its last draw did not count, so that the runner has to begin anew with its slot."""
    finish: Reason | None = None
    """Why the sequence ended; ``None`` also when it was aborted or failed."""
    started_at: float = 0.0
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    finished_at: float = 0.0

    order: int = 0
    """Arrival order among all sequences of this engine."""
    due: float = float("inf")
    """Position within its lane: the deadline, or a far one for those that came without."""
    level: Lane = Lane.INTERACTIVE
    """The lane it counts as: ``lane``, or a higher one once it has waited long enough."""
    waited: float = 0.0
    """Seconds spent waiting at ``level`` before ``queued_at``."""
    queued_at: float = 0.0
    """When it last joined the queue or rose a level."""

    @property
    def output_len(self) -> int:
        """Tokens generated so far, prior ones included."""
        return len(self.tokens) - self.prompt_len

    @property
    def remaining(self) -> int:
        """Tokens whose KV is not computed yet."""
        return len(self.tokens) - self.computed

    @property
    def left(self) -> int:
        """Tokens that may still be generated."""
        return self.limit - len(self.tokens)
