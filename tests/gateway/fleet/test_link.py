"""The life of a link, step by step, and its promises under any order of happenings."""

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fakes.wire import make_stats, make_welcome
from turing_gateway.fleet.link import (
    BACKOFF_FIRST,
    BACKOFF_REFUSED,
    PONG_TIMEOUT,
    SILENCE,
    TICK,
    WELCOME_TIMEOUT,
    Action,
    Answer,
    Deliver,
    Dial,
    Hangup,
    Link,
    Send,
    Subscribe,
)
from turing_gateway.fleet.view import LinkState
from turing_protocol.errors import Code
from turing_protocol.messages import (
    Abort,
    Done,
    Failed,
    Finished,
    Hello,
    Ping,
    Pong,
    Reason,
    Refused,
    Started,
    State,
    Step,
    StreamEvent,
    Submit,
    Timings,
    Tokens,
)
from turing_protocol.sampling import Sampling


def make_submit(rid: int) -> Submit:
    return Submit(rid, 0, b"", Sampling())


def finished(rid: int) -> Finished:
    return Finished(rid, Reason.LENGTH, 1, 0, 1, Timings())


def ready_link(now: float = 0.0, epoch: int = 1) -> Link:
    link = Link("tcp://host:5555", "gw")
    link.tick(now)
    link.connected(now)
    link.received(now, make_welcome(epoch))
    return link


def listen(link: Link, start: float, seconds: float, *, stats: bool, pong: bool) -> list[Action]:
    """Tick through ``seconds`` with or without signs of life; return the actions of the last."""
    actions: list[Action] = []
    for count in range(1, round(seconds / TICK) + 1):
        now = start + count * TICK
        if stats:
            link.published(now, make_stats())
        if pong:
            link.received(now, Pong(now))
        actions = link.tick(now)
    return actions


def state_of(link: Link) -> LinkState:
    return link.view.state


def test_the_way_up() -> None:
    link = Link("tcp://host:5555", "gw")
    assert state_of(link) == LinkState.LOST
    assert link.tick(0.0) == [Dial()]
    assert state_of(link) == LinkState.DIALING
    assert link.tick(0.1) == []
    (greeting,) = link.connected(0.2)
    assert isinstance(greeting, Send)
    assert isinstance(greeting.message, Hello)
    assert state_of(link) == LinkState.GREETING
    actions = link.received(5.0, make_welcome(assets={"a": "1"}, adapters=("sql",)))
    assert actions == [Subscribe("tcp://*:5556"), Send(Ping(5.0))]
    view = link.view
    assert view.ready
    assert (view.name, view.epoch, view.why) == ("e0", 1, "")
    assert (view.assets, view.adapters) == ({"a": "1"}, ("sql",))


def test_submit_before_a_welcome_fails_the_stream() -> None:
    link = Link("tcp://host:5555", "gw")
    (action,) = link.submit(make_submit(1), 1)
    assert isinstance(action, Deliver)
    (event,) = action.events
    assert isinstance(event, Failed)
    assert event.code == Code.ENGINE_LOST


def test_a_submit_carries_the_epoch() -> None:
    (action,) = ready_link(epoch=77).submit(make_submit(1), 1)
    assert isinstance(action, Send)
    assert isinstance(action.message, Submit)
    assert action.message.epoch == 77


def test_events_pass_until_the_end() -> None:
    link = ready_link()
    link.submit(make_submit(1), 3)
    events: list[StreamEvent] = [Started(1, 1, 0), Tokens(1, b""), finished(1), Tokens(1, b"")]
    assert link.received(1.0, Step(1, events)) == [Deliver(events[:3])]
    assert link.received(1.0, Step(2, [Tokens(1, b"")])) == []
    assert link.view.own_pages == 0


def test_an_abort_is_sent_once_and_nothing_follows() -> None:
    link = ready_link()
    link.submit(make_submit(1), 3)
    assert link.abort(1) == [Send(Abort(1))]
    assert link.abort(1) == []
    assert link.received(1.0, Step(1, [finished(1)])) == []


def test_silence_is_a_loss() -> None:
    link = ready_link()
    link.submit(make_submit(1), 3)
    assert Hangup() not in listen(link, 0.0, SILENCE, stats=False, pong=True)
    actions = link.tick(SILENCE + 2 * TICK)
    assert actions[0] == Hangup()
    assert isinstance(actions[1], Deliver)
    assert [event.rid for event in actions[1].events] == [1]
    assert link.view.why == "no Stats for 1 s"


def test_stats_keep_a_link_up() -> None:
    link = ready_link()
    listen(link, 0.0, 20.0, stats=True, pong=True)
    assert link.view.ready


def test_a_dead_request_socket_is_a_loss_though_state_arrives() -> None:
    link = ready_link()
    listen(link, 0.0, PONG_TIMEOUT + 1.0, stats=True, pong=False)
    assert link.view.why == "no Pong for 5 s"


def test_our_own_stall_is_not_the_engines_silence() -> None:
    link = ready_link()
    link.tick(TICK)
    assert link.tick(30.0) == [Send(Ping(30.0))]
    assert link.view.ready
    listen(link, 30.0, SILENCE + 2 * TICK, stats=False, pong=True)
    assert not link.view.alive


def test_only_a_welcome_revives() -> None:
    link = ready_link()
    link.disconnected(1.0, "gone")
    assert link.published(1.1, make_stats()) == []
    assert link.received(1.1, make_welcome()) == []
    assert link.view.state == LinkState.LOST
    assert link.tick(1.0 + BACKOFF_FIRST / 2) == []
    assert link.tick(1.0 + BACKOFF_FIRST) == [Dial()]


def test_stats_of_another_epoch_are_a_loss() -> None:
    link = ready_link()
    assert link.published(1.0, make_stats(epoch=2)) == [Hangup()]
    assert link.view.state == LinkState.LOST


def test_no_welcome_is_a_loss() -> None:
    link = Link("tcp://host:5555", "gw")
    link.tick(0.0)
    link.connected(0.0)
    assert not link.unanswered
    assert link.tick(WELCOME_TIMEOUT + 1) == [Hangup()]
    assert link.unanswered, "it may be loading: no reason to warn"
    link.tick(WELCOME_TIMEOUT + 10)
    link.connected(WELCOME_TIMEOUT + 10)
    link.received(WELCOME_TIMEOUT + 10, Refused(Code.VERSION, "no"))
    assert not link.unanswered


def test_refusals_wait_long_and_say_why() -> None:
    other_version = Link("tcp://host:5555", "gw")
    refused = Link("tcp://host:5555", "gw")
    for link in (other_version, refused):
        link.tick(0.0)
        link.connected(0.0)
    other_version.received(0.0, make_welcome(major=99))
    refused.received(0.0, Refused(Code.VERSION, "too old"))
    assert "99" in other_version.view.why
    assert "too old" in refused.view.why
    for link in (other_version, refused):
        assert link.tick(BACKOFF_REFUSED - 1) == []
        assert link.tick(BACKOFF_REFUSED) == [Dial()]


def test_an_engine_that_dropped_us_is_greeted_anew() -> None:
    link = ready_link()
    link.submit(make_submit(1), 1)
    link.submit(make_submit(2), 1)
    dropped = Failed(1, Code.ENGINE_LOST, "lost touch")
    first, second, third = link.received(1.0, Step(1, [dropped]))
    assert first == Deliver([dropped])
    assert second == Hangup()
    assert isinstance(third, Deliver)
    assert [event.rid for event in third.events] == [2]


def test_a_draining_engine_finishes_its_streams() -> None:
    link = ready_link()
    link.submit(make_submit(1), 1)
    link.published(1.0, make_stats(state=State.DRAINING))
    assert link.view.state == LinkState.DRAINING
    (action,) = link.submit(make_submit(2), 1)
    assert isinstance(action, Deliver)
    assert isinstance(action.events[0], Failed)
    assert action.events[0].code == Code.DRAINING
    assert link.received(1.0, Step(1, [finished(1)])) == [Deliver([finished(1)])]


def test_a_retired_link_is_done_after_its_last_stream() -> None:
    link = ready_link()
    link.submit(make_submit(1), 1)
    link.retire(1.0)
    assert not link.done
    link.received(1.0, Step(1, [finished(1)]))
    assert link.done
    link.disconnected(2.0, "gone")
    assert link.tick(100.0) == []


def test_answers_pass() -> None:
    assert ready_link().received(1.0, Done(7, True)) == [Answer(Done(7, True))]


def test_pages_are_fresh_until_the_next_stats() -> None:
    link = ready_link()
    view = link.view
    link.submit(make_submit(1), 10)
    assert (view.load, view.fresh_pages) == (10, 10)
    link.published(1.0, make_stats(reserved_pages=25))
    assert (view.load, view.fresh_pages) == (25, 0)
    link.submit(make_submit(2), 5)
    assert view.load == 30
    link.published(1.1, make_stats())
    assert view.load == 15
    link.submit(make_submit(3), 7)
    link.abort(1)
    assert (view.load, view.fresh_pages, view.fresh_streams) == (12, 7, 1)
    link.abort(3)
    link.abort(2)
    assert (view.load, view.sequences) == (0, 0)


class AnyOrder(RuleBasedStateMachine):
    """A link between a gateway that submits and aborts and a world that does what it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.link = Link("tcp://host:5555", "gw")
        self.now = 0.0
        self.rid = 0
        self.epoch = 1
        self.open: set[int] = set()
        self.sent: set[int] = set()
        self.ended: set[int] = set()
        self.aborted: set[int] = set()
        self.dialled = False

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Dial):
                assert not self.dialled
                self.dialled = True
            elif isinstance(action, Hangup):
                assert self.dialled
                self.dialled = False
            elif isinstance(action, Send):
                assert self.dialled
                self.note(action.message)
            elif isinstance(action, Deliver):
                self.take(action.events)

    def note(self, message: object) -> None:
        if isinstance(message, Submit):
            assert message.rid not in self.sent
            assert message.epoch == self.link.view.epoch
            self.sent.add(message.rid)

    def take(self, events: object) -> None:
        assert isinstance(events, list)
        for event in events:
            assert event.rid in self.open, "after its end, after an abort, or never submitted"
            if isinstance(event, Finished | Failed):
                self.open.discard(event.rid)
                self.ended.add(event.rid)

    @rule(seconds=st.sampled_from([0.0, TICK, TICK, TICK, 0.5, 3.0]))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.link.tick(self.now))

    @precondition(lambda self: self.dialled)
    @rule()
    def connect(self) -> None:
        self.perform(self.link.connected(self.now))

    @rule()
    def disconnect(self) -> None:
        self.perform(self.link.disconnected(self.now, "gone"))
        assert not self.open

    @rule(epoch=st.integers(1, 3))
    def welcome(self, epoch: int) -> None:
        was = self.link.view.state
        self.perform(self.link.received(self.now, make_welcome(epoch)))
        if self.link.view.state == LinkState.READY:
            assert was in (LinkState.GREETING, LinkState.READY)

    @rule(epoch=st.integers(1, 3), state=st.sampled_from([State.READY, State.DRAINING]))
    def stats(self, epoch: int, state: State) -> None:
        was = self.link.view.state
        self.perform(self.link.published(self.now, make_stats(epoch, state=state)))
        if self.link.view.state == LinkState.READY:
            assert was == LinkState.READY

    @rule(pages=st.integers(1, 100))
    def submit(self, pages: int) -> None:
        self.rid += 1
        self.open.add(self.rid)
        self.perform(self.link.submit(make_submit(self.rid), pages))

    @precondition(lambda self: self.rid)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        rid = data.draw(st.integers(1, self.rid))
        self.open.discard(rid)
        self.aborted.add(rid)
        self.perform(self.link.abort(rid))

    @precondition(lambda self: self.rid)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        rids = st.integers(1, self.rid + 2)
        codes = st.sampled_from([Code.STEP_FAILED, Code.ENGINE_LOST])
        event = st.one_of(
            st.builds(Started, rids, st.just(1), st.just(0)),
            st.builds(Tokens, rids, st.just(b"")),
            st.builds(finished, rids),
            st.builds(Failed, rids, codes, st.just("")),
        )
        events = data.draw(st.lists(event, max_size=5))
        self.perform(self.link.received(self.now, Step(1, events)))

    @invariant()
    def accounts_agree(self) -> None:
        view = self.link.view
        assert view.own_streams == len(self.open)
        assert (view.own_pages == 0) == (not self.open)
        assert 0 <= view.fresh_pages <= view.own_pages
        assert 0 <= view.fresh_streams <= view.own_streams
        assert (view.fresh_pages == 0) == (view.fresh_streams == 0)
        assert view.alive or not self.open
        assert self.sent <= self.open | self.ended | self.aborted


TestAnyOrder = AnyOrder.TestCase
