"""The structs that go from the scheduler to a runner (and to other ranks) and back."""

import msgspec

from turing_protocol.messages import TokenLogprobs
from turing_protocol.sampling import Sampling


class Start(msgspec.Struct, array_like=True):
    """A sequence takes (or retakes, after preemption) the runner slot ``slot``.

    ``prompt`` and ``output`` are what penalties count; ``output`` holds tokens generated before
    (a resume or a preemption), so their KV is recomputed as if they were prompt.
    ``banned`` are ids that may not be sampled before ``sampling.min_tokens`` outputs.
    """

    slot: int
    sampling: Sampling
    prompt: list[int]
    output: list[int]
    banned: list[int]


class Chunk(msgspec.Struct, array_like=True):
    """One sequence's share of a step: ``ids`` at positions ``start … start + len(ids)``.

    ``pages`` is the sequence's page table and covers at least ``start + len(ids)`` tokens; it is
    read anew each step, for a full page may be replaced by one of equal contents. With ``sample``
    the logits behind the last id are sampled; the sampled token's position, which keys its random
    draw, is ``start + len(ids)``.
    """

    slot: int
    start: int
    ids: list[int]
    pages: list[int]
    sample: bool


class Plan(msgspec.Struct, array_like=True):
    """One step. ``stops`` are slots given back since the last plan; they come before ``starts``.

    A stop may name a slot whose start failed, so stopping an empty slot does nothing.
    """

    step: int
    chunks: list[Chunk]
    starts: list[Start]
    stops: list[int]


class Sampled(msgspec.Struct, array_like=True):
    """What one chunk produced: new ids (empty without ``sample``) and their logprobs if asked."""

    ids: list[int]
    logprobs: list[TokenLogprobs] = []


class Result(msgspec.Struct, array_like=True):
    """Outcome of a plan, ``rows`` aligned with ``Plan.chunks``."""

    step: int
    rows: list[Sampled]
