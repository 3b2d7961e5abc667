"""LaneQueue: order, ageing, expiry and counts, by rule and against a brute-force model."""

from sys import getrefcount

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.plan.toy import sequence
from turing_engine.plan.lanes import LaneQueue
from turing_engine.plan.sequence import Sequence
from turing_protocol.lanes import Lane

NEVER = float("inf")


def waiting(
    queue: LaneQueue,
    now: float,
    *,
    lane: Lane = Lane.INTERACTIVE,
    order: int = 0,
    due: float = 100.0,
    deadline: float = NEVER,
    preemptions: int = 0,
) -> Sequence:
    """Queue a new sequence as the scheduler would."""
    item = sequence(10, lane=lane, deadline=deadline)
    item.level, item.order, item.due, item.preemptions = lane, order, due, preemptions
    queue.push(item, now)
    return item


def drain(queue: LaneQueue, now: float) -> list[Sequence]:
    """Take everything out in turn."""
    items: list[Sequence] = []
    while (item := queue.first(now)) is not None:
        assert queue.remove(item, now)
        items.append(item)
    return items


def level(queue: LaneQueue, item: Sequence, now: float) -> Lane:
    """Return what ``item`` counts as at ``now``."""
    queue.first(now)
    return item.level


def test_higher_lane_goes_first() -> None:
    queue = LaneQueue()
    background = waiting(queue, 0, lane=Lane.BACKGROUND, order=1)
    batch = waiting(queue, 0, lane=Lane.BATCH, order=2)
    interactive = waiting(queue, 0, order=3)
    assert drain(queue, 1) == [interactive, batch, background]


def test_within_a_lane_deadline_then_arrival() -> None:
    queue = LaneQueue()
    late = waiting(queue, 0, order=1, due=50)
    second = waiting(queue, 0, order=3, due=20)
    first = waiting(queue, 0, order=2, due=20)
    assert drain(queue, 1) == [first, second, late]


def test_preempted_goes_to_the_front_of_its_lane_only() -> None:
    queue = LaneQueue()
    early = waiting(queue, 0, lane=Lane.BATCH, order=1, due=1)
    preempted = waiting(queue, 0, lane=Lane.BATCH, order=9, due=90, preemptions=1)
    interactive = waiting(queue, 0, order=10, due=99)
    assert drain(queue, 1) == [interactive, preempted, early]


def test_batch_counts_as_interactive_after_30_seconds() -> None:
    queue = LaneQueue()
    batch = waiting(queue, 0, lane=Lane.BATCH, order=1, due=30)
    interactive = waiting(queue, 29, order=2, due=59)
    assert queue.first(29.9) is interactive
    assert queue.first(30.0) is batch
    assert batch.lane is Lane.BATCH


def test_background_rises_after_120_seconds_and_again_30_later() -> None:
    queue = LaneQueue()
    background = waiting(queue, 0, lane=Lane.BACKGROUND, order=1, due=30)
    batch = waiting(queue, 121, lane=Lane.BATCH, order=2, due=151)
    interactive = waiting(queue, 140, order=3, due=170)
    assert level(queue, background, 119.9) is Lane.BACKGROUND
    assert level(queue, background, 121) is Lane.BATCH
    assert queue.first(149) is interactive
    assert drain(queue, 150) == [background, interactive, batch]


def test_one_look_after_a_long_pause_raises_twice() -> None:
    queue = LaneQueue()
    background = waiting(queue, 0, lane=Lane.BACKGROUND)
    assert level(queue, background, 1000) is Lane.INTERACTIVE


def test_only_waiting_counts_towards_ageing() -> None:
    queue = LaneQueue()
    batch = waiting(queue, 0, lane=Lane.BATCH)
    queue.remove(batch, 20)
    queue.push(batch, 500)
    assert level(queue, batch, 509) is Lane.BATCH
    assert level(queue, batch, 510) is Lane.INTERACTIVE


def test_a_rise_starts_the_count_for_the_next_one_anew() -> None:
    queue = LaneQueue()
    background = waiting(queue, 0, lane=Lane.BACKGROUND)
    queue.remove(background, 20)
    queue.push(background, 20)
    assert level(queue, background, 149) is Lane.BATCH
    assert level(queue, background, 150) is Lane.INTERACTIVE


def test_risen_level_is_kept_when_it_waits_again() -> None:
    queue = LaneQueue()
    batch = waiting(queue, 0, lane=Lane.BATCH)
    queue.first(30)
    queue.remove(batch, 31)
    queue.push(batch, 40)
    assert level(queue, batch, 40) is Lane.INTERACTIVE
    assert queue.counts() == (0, 1, 0)


def test_expire_returns_late_ones_once() -> None:
    queue = LaneQueue()
    late = waiting(queue, 0, deadline=5)
    waiting(queue, 0, deadline=50)
    assert queue.expire(5) == []
    assert queue.expire(6) == [late]
    assert queue.expire(6) == []
    assert len(queue) == 1


def test_what_has_started_does_not_expire() -> None:
    queue = LaneQueue()
    waiting(queue, 10, deadline=5, preemptions=1)
    assert queue.expire(100) == []


def test_removing_what_is_not_there_is_false() -> None:
    queue = LaneQueue()
    item = waiting(queue, 0)
    assert queue.remove(item, 0)
    assert not queue.remove(item, 0)
    assert queue.first(0) is None


def test_tokens_count_everything_to_compute() -> None:
    queue = LaneQueue()
    first = waiting(queue, 0)
    waiting(queue, 0)
    assert queue.tokens == 20
    queue.remove(first, 0)
    assert queue.tokens == 10


def test_order_survives_many_removals() -> None:
    queue = LaneQueue()
    items = [waiting(queue, 0, order=order, due=order) for order in range(500)]
    for item in items[::2] + items[1:400:2]:
        queue.remove(item, 0)
    assert drain(queue, 0) == items[401::2]


def test_removed_sequences_are_let_go() -> None:
    queue = LaneQueue()
    items = [waiting(queue, 0, lane=Lane.BATCH, deadline=90) for _ in range(501)]
    alone = getrefcount(sequence(10)) + 1
    for item in items[1:]:
        queue.remove(item, 0)
    kept = sum(getrefcount(item) > alone + 1 for item in items)
    assert kept < 200


class _Model:
    """What one waiting sequence has been through, in whole seconds."""

    def __init__(self, item: Sequence, now: int) -> None:
        self.item = item
        self.since: int | None = now
        self.waited = 0

    def total(self, now: int) -> int:
        return self.waited + (now - self.since if self.since is not None else 0)

    def level(self, now: int) -> int:
        rises = {Lane.INTERACTIVE: [], Lane.BATCH: [30], Lane.BACKGROUND: [120, 150]}
        return self.item.lane - sum(self.total(now) >= at for at in rises[self.item.lane])


class QueueMachine(RuleBasedStateMachine):
    """Compares the queue with a sort over everything that waits."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = LaneQueue()
        self.now = 0
        self.order = 0
        self.models: list[_Model] = []

    def here(self) -> list[_Model]:
        return [model for model in self.models if model.since is not None]

    def away(self) -> list[_Model]:
        return [model for model in self.models if model.since is None]

    @rule(seconds=st.sampled_from([0, 1, 7, 30, 120]))
    def advance(self, seconds: int) -> None:
        self.now += seconds

    @rule(lane=st.sampled_from(Lane), due=st.none() | st.integers(0, 60))
    def push(self, lane: Lane, due: int | None) -> None:
        self.order += 1
        deadline = NEVER if due is None else self.now + due
        place = self.now + 30 if due is None else self.now + due
        item = waiting(
            self.queue, self.now, lane=lane, order=self.order, due=place, deadline=deadline
        )
        self.models.append(_Model(item, self.now))

    @precondition(lambda self: self.here())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from(self.here()))
        assert self.queue.remove(model.item, self.now)
        model.waited, model.since = model.total(self.now), None

    @precondition(lambda self: self.away())
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        model = data.draw(st.sampled_from(self.away()))
        model.item.preemptions += 1
        self.queue.push(model.item, self.now)
        model.since = self.now

    @rule()
    def expire(self) -> None:
        late = {
            model.item
            for model in self.here()
            if model.item.deadline < self.now and not model.item.preemptions
        }
        assert set(self.queue.expire(self.now)) == late
        self.models = [model for model in self.models if model.item not in late]

    @invariant()
    def head_is_the_smallest(self) -> None:
        def key(model: _Model) -> tuple[int, bool, float, int]:
            item = model.item
            return model.level(self.now), item.preemptions == 0, item.due, item.order

        head = self.queue.first(self.now)
        best = min(self.here(), key=key, default=None)
        assert head is (best.item if best else None)
        assert all(model.item.level == model.level(self.now) for model in self.here())

    @invariant()
    def counts_agree(self) -> None:
        lanes = [model.item.lane for model in self.here()]
        assert self.queue.counts() == tuple(lanes.count(lane) for lane in Lane)
        assert len(self.queue) == len(lanes)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
