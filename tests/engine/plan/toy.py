"""A runner whose next token is a hash of the whole history, and what it should have said."""

import hashlib
from collections.abc import Callable

import msgspec

from turing_engine.plan.plan import Chunk, Plan, Result, Sampled
from turing_engine.plan.scheduler import Progress, Scheduler, SchedulerConfig
from turing_engine.plan.sequence import Sequence
from turing_protocol.lanes import Lane
from turing_protocol.messages import Reason
from turing_protocol.prefix import PAGE
from turing_protocol.sampling import Sampling

VOCAB = 16
STOP = 3


def config(
    *,
    pages: int = 32,
    max_running: int = 4,
    max_waiting: int = 64,
    max_step_tokens: int = 2048,
    chunk: int | dict[Lane, int] = 10**9,
    context: int = 4096,
    slo_itl: float = float("inf"),
) -> SchedulerConfig:
    """Return sizes for a test; one ``chunk`` for all lanes unless given by lane."""
    caps = dict.fromkeys(Lane, chunk) if isinstance(chunk, int) else chunk
    return SchedulerConfig(
        pages=pages,
        max_running=max_running,
        max_waiting=max_waiting,
        max_step_tokens=max_step_tokens,
        chunk=caps,
        context=context,
        slo_itl=slo_itl,
    )


def sequence(
    prompt: list[int] | int,
    max_tokens: int = 8,
    *,
    lane: Lane = Lane.INTERACTIVE,
    prior: tuple[int, ...] = (),
    min_tokens: int = 0,
    stop: bool = False,
    world: int = 0,
    deadline: float = float("inf"),
) -> Sequence:
    """Return a new sequence; an int prompt stands for that many distinct-looking tokens.

    ``world`` plays the adapter: it changes both the page salt and the KV that is computed.
    """
    ids = [i * 7 % 11 for i in range(prompt)] if isinstance(prompt, int) else prompt
    return Sequence(
        owner=(b"gateway", 0),
        tokens=[*ids, *prior],
        prompt_len=len(ids),
        sampling=Sampling(max_tokens=max_tokens, min_tokens=min_tokens, seed=world),
        stop_ids=frozenset({STOP}) if stop else frozenset(),
        limit=len(ids) + max_tokens,
        root=b"world %d" % world,
        lane=lane,
        deadline=deadline,
    )


def absorb(state: bytes, token: int) -> bytes:
    """Return the KV of ``token`` behind the KV of everything before it."""
    return hashlib.blake2b(state + bytes([token]), digest_size=8).digest()


def origin(world: int) -> bytes:
    """Return what the first token's KV is computed from."""
    return b"%d" % world


def choose(state: bytes, banned: frozenset[int]) -> int:
    """Return the token that follows a history."""
    token = state[0] % VOCAB
    while token in banned:
        token = (token + 1) % VOCAB
    return token


def expected(request: Sequence) -> tuple[list[int], Reason]:
    """Return all tokens of a fresh sequence run alone, and why it ends."""
    tokens = list(request.tokens)
    state = origin(request.sampling.seed)
    for token in tokens:
        state = absorb(state, token)
    while len(tokens) < request.limit:
        held_back = len(tokens) - request.prompt_len < request.sampling.min_tokens
        token = choose(state, request.stop_ids if held_back else frozenset())
        tokens.append(token)
        state = absorb(state, token)
        if token in request.stop_ids:
            return tokens, Reason.STOP
    return tokens, Reason.LENGTH


class _Slot(msgspec.Struct):
    world: int
    prompt_len: int
    min_tokens: int
    banned: frozenset[int]
    states: list[bytes]
    tokens: list[int]


class ToyRunner:
    """Keeps KV in pages, reads every position it attends to, and checks what it is told."""

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}
        self._memory: dict[tuple[int, int], bytes] = {}

    def run(self, plan: Plan) -> Result:
        """Compute one step."""
        for slot in plan.stops:
            self._slots.pop(slot, None)
        for start in plan.starts:
            assert start.slot not in self._slots, "a slot is started while it is taken"
            held = _Slot(
                start.sampling.seed,
                len(start.prompt),
                start.sampling.min_tokens,
                frozenset(start.banned),
                [],
                [],
            )
            for token in [*start.prompt, *start.output]:
                _learn(held, token)
            self._slots[start.slot] = held
        return Result(plan.step, [self._run_chunk(chunk) for chunk in plan.chunks])

    def _run_chunk(self, chunk: Chunk) -> Sampled:
        slot = self._slots[chunk.slot]
        end = chunk.start + len(chunk.ids)
        assert chunk.ids and chunk.ids == slot.tokens[chunk.start : end]
        assert len(chunk.pages) * PAGE >= end
        for position in range(chunk.start):
            place = chunk.pages[position // PAGE], position % PAGE
            assert self._memory.get(place) == slot.states[position], "wrong KV is attended to"
        for position in range(chunk.start, end):
            place = chunk.pages[position // PAGE], position % PAGE
            self._memory[place] = slot.states[position]
        assert chunk.sample == (end == len(slot.tokens))
        if not chunk.sample:
            return Sampled([])
        held_back = len(slot.tokens) - slot.prompt_len < slot.min_tokens
        token = choose(slot.states[-1], slot.banned if held_back else frozenset())
        _learn(slot, token)
        return Sampled([token])


def _learn(slot: _Slot, token: int) -> None:
    before = slot.states[-1] if slot.states else origin(slot.world)
    slot.states.append(absorb(before, token))
    slot.tokens.append(token)


class Loop:
    """A scheduler and a toy runner, one plan at a time."""

    def __init__(self, sizes: SchedulerConfig) -> None:
        self.scheduler = Scheduler(sizes)
        self.runner = ToyRunner()

    def add(self, *requests: Sequence, now: float = 0.0) -> None:
        """Queue some requests."""
        for request in requests:
            self.scheduler.add(request, now)

    def plan(self, now: float = 0.0) -> Plan:
        """Return the next plan, which must exist."""
        plan = self.scheduler.plan(now)
        assert plan is not None
        return plan

    def settle(self, plan: Plan, now: float = 0.0) -> list[Progress]:
        """Run a plan and settle it."""
        return self.scheduler.settle(plan, self.runner.run(plan), now)

    def step(self, now: float = 0.0) -> Plan:
        """Plan, run and settle."""
        plan = self.plan(now)
        self.settle(plan, now)
        return plan

    def until(self, done: Callable[[], bool], now: float = 0.0) -> int:
        """Run until ``done()``; return the number of steps."""
        steps = 0
        while not done():
            self.step(now)
            steps += 1
            assert steps < 2_000, "no end in sight"
        return steps

    def finish(self, now: float = 0.0) -> int:
        """Run until nothing is left; return the number of steps."""
        return self.until(lambda: not self.scheduler.has_work, now)


def sizes(plan: Plan) -> list[int]:
    """Return the tokens of each chunk."""
    return [len(chunk.ids) for chunk in plan.chunks]


def slots(plan: Plan) -> list[int]:
    """Return the slot of each chunk."""
    return [chunk.slot for chunk in plan.chunks]


def decoding(loop: Loop, *requests: Sequence) -> None:
    """Add requests and run their prompts to the end."""
    loop.add(*requests)
    loop.until(lambda: all(request.remaining == 1 for request in requests))
