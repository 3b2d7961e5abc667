"""The state of one request inside the engine."""

import enum

import msgspec

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
    ``owner`` identifies (gateway, rid) and is opaque to the policy.
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

    status: Status = Status.WAITING
    computed: int = 0
    cached: int = 0
    """Prompt tokens found in the prefix cache when the sequence first started."""
    pages: list[int] = msgspec.field(default_factory=list)
    keys: list[bytes] = msgspec.field(default_factory=list)
    """Page keys of full pages known so far."""
    slot: int = -1
    preemptions: int = 0
    finish: Reason | None = None
    started_at: float = 0.0
    first_token_at: float = 0.0
    finished_at: float = 0.0

    @property
    def output_len(self) -> int:
        """Tokens generated so far, prior ones included."""
        return len(self.tokens) - self.prompt_len

    @property
    def remaining(self) -> int:
        """Tokens whose KV is not computed yet."""
        return len(self.tokens) - self.computed
