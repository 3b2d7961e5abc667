"""Scheduler under any mix of requests, aborts, failures, shortage, chunks and cache hits."""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from engine.plan.toy import ToyRunner, config, expected, sequence
from turing_engine.plan.plan import Plan
from turing_engine.plan.scheduler import Progress, Scheduler, SchedulerConfig
from turing_engine.plan.sequence import Sequence, Status
from turing_protocol.admission import pages_needed
from turing_protocol.errors import Code, TuringError
from turing_protocol.lanes import Lane
from turing_protocol.messages import Reason
from turing_protocol.prefix import PAGE

DEPTH = 2
"""Plans that may be open together."""

ALPHABET = ([1, 2, 5, 7] * PAGE)[: 2 * PAGE + 9]
"""Prompts are cut from here, so that they share pages."""


class _Request(msgspec.Struct, eq=False):
    """A live request and what it should come to."""

    sequence: Sequence
    tokens: list[int]
    reason: Reason
    told: list[int]


class _Spec(msgspec.Struct):
    """What the next request asks for."""

    length: int
    tail: list[int]
    max_tokens: int
    prior: int
    lane: Lane
    stop: bool
    min_tokens: int
    world: int
    patience: float


SPECS = st.builds(
    _Spec,
    length=st.sampled_from([1, 63, 64, 65, 128, len(ALPHABET)]) | st.integers(1, len(ALPHABET)),
    tail=st.lists(st.integers(0, 3), max_size=2),
    max_tokens=st.sampled_from([0, 1, 2, 64, 100]) | st.integers(0, 150),
    prior=st.sampled_from([0, 0, 1, 70]),
    lane=st.sampled_from(Lane),
    stop=st.sampled_from([False, False, True]),
    min_tokens=st.integers(0, 3),
    world=st.sampled_from([0, 0, 1]),
    patience=st.sampled_from([float("inf"), 20.0]),
)


class SchedulerMachine(RuleBasedStateMachine):
    """Drives a scheduler and a toy runner, and checks every promise after every event."""

    sizes: SchedulerConfig
    scheduler: Scheduler

    def __init__(self) -> None:
        super().__init__()
        self.runner = ToyRunner()
        self.now = 0.0
        self.live: dict[Sequence, _Request] = {}
        self.open: list[Plan] = []
        self.rows: dict[int, list[Sequence]] = {}
        self.mirror: dict[bytes, bytes] = {}

    @initialize(
        pages=st.integers(4, 9),
        max_running=st.sampled_from([1, 3, 4]),
        budget=st.sampled_from([4, 30, 64, 100, 2048]),
        chunks=st.tuples(*[st.sampled_from([16, 64, 128, 10**9])] * 3),
        max_waiting=st.sampled_from([3, 50]),
    )
    def configure(
        self,
        pages: int,
        max_running: int,
        budget: int,
        chunks: tuple[int, ...],
        max_waiting: int,
    ) -> None:
        self.sizes = config(
            pages=pages,
            max_running=max_running,
            max_step_tokens=budget,
            chunk=dict(zip(Lane, chunks, strict=True)),
            max_waiting=max_waiting,
        )
        self.scheduler = Scheduler(self.sizes)

    # -- events ---------------------------------------------------------------------------------

    @rule(specs=st.lists(SPECS, min_size=1, max_size=5))
    def add(self, specs: list[_Spec]) -> None:
        for spec in specs:
            self.add_one(spec)

    def add_one(self, spec: _Spec) -> None:
        request = sequence(
            [*ALPHABET[: spec.length], *spec.tail],
            spec.max_tokens,
            lane=spec.lane,
            stop=spec.stop,
            min_tokens=min(spec.min_tokens, spec.max_tokens),
            world=spec.world,
            deadline=self.now + spec.patience,
        )
        tokens, reason = expected(request)
        # A resume continues behind tokens of the same answer, never behind its end.
        known = min(spec.prior, len(tokens) - request.prompt_len - 1)
        if known > 0:
            request.tokens = tokens[: request.prompt_len + known]
        try:
            self.scheduler.add(request, self.now)
        except TuringError as error:
            self.check_refusal(request, error)
            return
        if len(request.tokens) == request.limit:
            assert request.finish is Reason.LENGTH
            return
        self.live[request] = _Request(request, tokens, reason, list(request.tokens))

    def check_refusal(self, request: Sequence, error: TuringError) -> None:
        if error.code is Code.NEVER_FITS:
            assert pages_needed(request.limit) > self.sizes.pages
        elif sum(self.scheduler.waiting) < self.sizes.max_waiting:
            assert request.lane is not Lane.INTERACTIVE
            assert request.output_len == 0, "an answer that began is never shed"
            booked, pages = self.scheduler.reserved_pages, self.sizes.pages
            after = booked + pages_needed(request.limit)
            assert booked
            assert after * 100 > 90 * pages
            assert error.code is (Code.SHED if after * 100 > 95 * pages else Code.OVERLOADED)
        else:
            assert error.code is Code.OVERLOADED

    @rule(steps=st.integers(1, 40), depth=st.integers(1, DEPTH))
    def run(self, steps: int, depth: int) -> None:
        """Take some steps with ``depth`` plans in flight."""
        for _ in range(steps):
            while len(self.open) >= depth:
                self.settle()
            self.plan()

    @precondition(lambda self: len(self.open) < DEPTH)
    @rule()
    def plan(self) -> None:
        busy = {member for members in self.rows.values() for member in members}
        decodes = [
            member
            for member in self.live
            if member.status is Status.RUNNING and member not in busy and member.remaining == 1
        ]
        plan = self.scheduler.plan(self.now)
        if plan is None:
            assert self.open or not self.live, "work waits and nothing moves"
            return
        by_slot = {
            member.slot: member
            for member in self.live
            if member.status is Status.RUNNING and member not in busy
        }
        members = [by_slot[chunk.slot] for chunk in plan.chunks]
        assert len(set(members)) == len(members)
        self.check_decodes(plan, members, decodes)
        self.check_sizes(plan, members)
        self.check_writes(plan, members)
        self.open.append(plan)
        self.rows[plan.step] = members

    def check_decodes(self, plan: Plan, members: list[Sequence], decodes: list[Sequence]) -> None:
        kept = [member for member in decodes if member.status is Status.RUNNING]
        assert set(kept) <= set(members), "a running decode is left out"
        assert set(members[: len(kept)]) == set(kept), "decodes come first"
        assert all(len(chunk.ids) == 1 for chunk in plan.chunks[: len(kept)])

    def check_sizes(self, plan: Plan, members: list[Sequence]) -> None:
        assert 0 < sum(len(chunk.ids) for chunk in plan.chunks) <= self.sizes.max_step_tokens
        loose = 0
        for member, chunk in zip(members, plan.chunks, strict=True):
            assert chunk.pages is member.pages
            assert len(chunk.ids) <= self.sizes.chunk[member.lane]
            loose += (chunk.start + len(chunk.ids)) % PAGE != 0 and not chunk.sample
        assert loose <= 1

    def check_writes(self, plan: Plan, members: list[Sequence]) -> None:
        for member, chunk in zip(members, plan.chunks, strict=True):
            last = (chunk.start + len(chunk.ids) - 1) // PAGE
            written = set(member.pages[chunk.start // PAGE : last + 1])
            others = (other for other in self.live if other is not member)
            assert not any(written & set(other.pages) for other in others)

    @precondition(lambda self: self.open)
    @rule()
    def settle(self) -> None:
        plan = self.open.pop(0)
        del self.rows[plan.step]
        for progress in self.scheduler.settle(plan, self.runner.run(plan), self.now):
            self.check_progress(progress)

    def settle_all(self) -> None:
        while self.open:
            self.settle()

    def check_progress(self, progress: Progress) -> None:
        request = self.live[progress.sequence]
        request.told.extend(progress.ids)
        assert request.told == request.tokens[: len(request.told)], "tokens depend on company"
        assert request.told == progress.sequence.tokens
        if progress.sequence.finish is None:
            assert len(request.told) < len(request.tokens)
        else:
            assert (request.told, progress.sequence.finish) == (request.tokens, request.reason)
            del self.live[progress.sequence]

    @precondition(lambda self: self.open)
    @rule(ran=st.booleans())
    def fail(self, ran: bool) -> None:
        """A step raises, after it wrote its pages or before; with a device, later ones go on."""
        plan = self.open.pop(0)
        members = self.rows.pop(plan.step)
        if ran:
            self.runner.run(plan)
        else:
            # Its starts and stops did not happen either; the runner hears of the stops again.
            self.runner.run(Plan(plan.step, [], plan.starts, plan.stops))
        failed = self.scheduler.fail(plan, self.now)
        assert set(failed) == {member for member in members if member in self.live}
        for member in failed:
            del self.live[member]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(list(self.live)))
        self.scheduler.abort(member, self.now)
        self.scheduler.abort(member, self.now)
        del self.live[member]

    @rule(seconds=st.sampled_from([1.0, 15.0, 31.0, 121.0]))
    def advance(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def expire(self) -> None:
        for member in self.scheduler.expire(self.now):
            assert member.deadline < self.now
            assert member.preemptions == 0
            del self.live[member]

    @rule()
    def drain_events(self) -> None:
        stored, removed = self.scheduler.drain_page_events()
        for key in removed:
            del self.mirror[key]
        for key, parent in stored:
            assert key not in self.mirror
            self.mirror[key] = parent
        roots = {b"world 0", b"world 1"}
        assert all(parent in self.mirror or parent in roots for parent in self.mirror.values())

    # -- what always holds ----------------------------------------------------------------------

    @invariant()
    def pages_are_conserved(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        held = {page for member in self.live for page in member.pages}
        if not self.open:
            assert self.scheduler.pages_used == len(held)
        assert len(held) <= self.scheduler.pages_used
        assert self.scheduler.pages_used + self.scheduler.pages_cached <= self.sizes.pages

    @invariant()
    def facts_agree(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        waiting = [member for member in self.live if member.status is Status.WAITING]
        running = [member for member in self.live if member.status is Status.RUNNING]
        assert len(waiting) + len(running) == len(self.live)
        lanes = [member.lane for member in waiting]
        assert self.scheduler.waiting == tuple(lanes.count(lane) for lane in Lane)
        assert self.scheduler.waiting_tokens == sum(len(member.tokens) for member in waiting)
        taken = [member.slot for member in running]
        assert len(set(taken)) == len(taken) <= self.scheduler.running <= self.sizes.max_running
        assert all(0 <= slot < self.sizes.max_running for slot in taken)
        if not self.open:
            footprint = sum(pages_needed(member.limit) for member in self.live)
            assert self.scheduler.reserved_pages == footprint
            assert self.scheduler.has_work == bool(self.live)

    def teardown(self) -> None:
        """Every sequence ends, and everything is given back."""
        if not hasattr(self, "scheduler"):
            return
        steps = 0
        while self.live or self.open:
            self.run(1, depth=1)
            self.settle_all()
            steps += 1
            assert steps < 20_000, "a sequence never ends"
        assert not self.scheduler.has_work
        assert (self.scheduler.pages_used, self.scheduler.reserved_pages) == (0, 0)
        self.drain_events()
        assert self.scheduler.pages_cached == len(self.mirror)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
