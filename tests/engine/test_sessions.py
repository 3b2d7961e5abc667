"""Sessions: who holds what, and what each gateway is told, under any order of events."""

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from turing_engine.plan.sequence import Sequence
from turing_engine.sessions import FORGET_SECONDS, LEASE_SECONDS, Sessions, Stream
from turing_protocol.codec import pack
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import Failed, Finished, Reason, Step, Timings, Tokens
from turing_protocol.sampling import Sampling

A, B = b"gateway-a", b"gateway-b"


def make_stream(gateway: bytes, rid: int) -> Stream:
    return Stream(
        Sequence(
            owner=(gateway, rid),
            tokens=[1, 2],
            prompt_len=2,
            sampling=Sampling(),
            stop_ids=frozenset(),
            limit=18,
            root=b"",
        )
    )


def opened(sessions: Sessions, gateway: bytes, rid: int) -> Stream:
    assert sessions.claim(gateway, rid)
    stream = make_stream(gateway, rid)
    sessions.open(stream)
    return stream


def told(sessions: Sessions) -> dict[bytes, Step]:
    return dict(sessions.steps(0))


def test_a_gateway_that_never_said_hello_holds_nothing() -> None:
    sessions = Sessions()
    with pytest.raises(TuringError) as caught:
        sessions.claim(A, 1)
    assert caught.value.code is Code.ENGINE_LOST
    assert sessions.close((A, 1)) is None
    assert sessions.lose(A, gone=False) == []


def test_a_rid_is_taken_once() -> None:
    sessions = Sessions()
    sessions.hello(A, 0.0)
    stream = opened(sessions, A, 5)
    assert not sessions.claim(A, 5)
    assert sessions.close((A, 5)) is stream
    assert not sessions.claim(A, 5)
    assert not sessions.claim(A, 4)
    assert sessions.claim(A, 7)


def test_hello_drops_what_the_identity_held() -> None:
    sessions = Sessions()
    sessions.hello(A, 0.0)
    sessions.hello(B, 0.0)
    old, other = opened(sessions, A, 1), opened(sessions, B, 1)
    sessions.tell(A, Tokens(1, pack([3])))
    assert sessions.hello(A, 1.0) == [old]
    assert sessions.streams() == [other]
    assert told(sessions) == {}


def test_events_are_grouped_into_one_step_per_gateway_in_order() -> None:
    sessions = Sessions()
    events = [Tokens(rid, pack([rid])) for rid in range(4)]
    for gateway, event in zip((A, B, A, B), events, strict=True):
        sessions.tell(gateway, event)
    steps = dict(sessions.steps(9))
    assert steps == {A: Step(9, [events[0], events[2]]), B: Step(9, [events[1], events[3]])}
    assert told(sessions) == {}


def test_a_lease_ends_after_silence_and_the_gateway_is_told() -> None:
    sessions = Sessions()
    sessions.hello(A, 0.0)
    sessions.hello(B, 0.0)
    stream = opened(sessions, A, 1)
    opened(sessions, B, 1)
    sessions.hear(B, 5.0)
    assert sessions.expire(LEASE_SECONDS) == []
    assert sessions.expire(LEASE_SECONDS + 0.1) == [stream]
    (failed,) = told(sessions)[A].events
    assert isinstance(failed, Failed)
    assert failed.code is Code.ENGINE_LOST
    assert sessions.claim(A, 2), "a gateway that was only asleep goes on without a new Hello"


def test_a_gateway_silent_for_long_is_forgotten() -> None:
    sessions = Sessions()
    sessions.hello(A, 0.0)
    sessions.expire(FORGET_SECONDS + 1)
    with pytest.raises(TuringError):
        sessions.claim(A, 1)


def test_streams_of_a_gateway_that_stopped_reading_are_owed_until_it_is_heard() -> None:
    sessions = Sessions()
    sessions.hello(A, 0.0)
    stream = opened(sessions, A, 2)
    assert sessions.lose(A, gone=False) == [stream]
    sessions.hear(A, 1.0)
    assert told(sessions) == {}, "what is sent now would be dropped"
    sessions.reopened(A, {1})
    assert told(sessions) == {}
    sessions.hear(A, 2.0)
    assert [event.rid for event in told(sessions)[A].events] == [1, 2]
    sessions.hear(A, 3.0)
    assert told(sessions) == {}


def test_a_gateway_whose_connection_is_gone_is_forgotten() -> None:
    sessions = Sessions()
    sessions.hello(A, 0.0)
    stream = opened(sessions, A, 1)
    sessions.tell(A, Tokens(1, pack([3])))
    assert sessions.lose(A, gone=True) == [stream]
    sessions.reopened(A, {1})
    sessions.hear(A, 1.0)
    assert told(sessions) == {}
    with pytest.raises(TuringError):
        sessions.claim(A, 2)


class Gateway:
    """What one gateway believes: it ignores all before its Welcome and all of rids it aborted."""

    def __init__(self) -> None:
        self.connected = False
        self.welcome = False
        self.stalled = False
        self.open: set[int] = set()
        self.ended: set[int] = set()
        self.rid = 0

    def receive(self, step: Step | None) -> None:
        if step is None:
            self.welcome = True
            return
        for event in step.events if self.welcome else []:
            assert event.rid not in self.ended, "an event after the end"
            if isinstance(event, Finished | Failed) and event.rid in self.open:
                self.open.remove(event.rid)
                self.ended.add(event.rid)

    def restart(self, *, connected: bool) -> None:
        self.connected, self.welcome, self.stalled = connected, False, False
        self.open.clear()


REOPEN = object()
gateways = st.sampled_from([A, B])


class SessionsMachine(RuleBasedStateMachine):
    """Sessions between a wire that loses frames and gateways that stall, vanish and return."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions = Sessions()
        self.gateways = {A: Gateway(), B: Gateway()}
        self.outbox: deque[tuple[bytes, object]] = deque()
        self.inbox: deque[tuple[bytes, bool | set[int]]] = deque()
        self.cut: dict[bytes, set[int]] = {}
        self.now = 0.0
        for gateway in self.gateways:
            self.greet(gateway)

    def greet(self, gateway: bytes) -> None:
        self.gateways[gateway].restart(connected=True)
        self.sessions.hello(gateway, self.now)
        self.outbox.append((gateway, None))
        while self.outbox:
            self.pump()

    def emit(self) -> None:
        self.outbox.extend(self.sessions.steps(0))

    def pump(self) -> None:
        """Let the wire handle one frame."""
        gateway, item = self.outbox.popleft()
        peer = self.gateways[gateway]
        if item is REOPEN:
            self.inbox.append((gateway, self.cut.pop(gateway)))
            return
        rids = {event.rid for event in item.events} if isinstance(item, Step) else set()
        if gateway in self.cut:
            self.cut[gateway] |= rids
        elif peer.stalled or not peer.connected:
            self.cut[gateway] = rids
            self.inbox.append((gateway, not peer.connected))
        else:
            peer.receive(item if isinstance(item, Step) else None)

    def take(self) -> None:
        """Let the core handle one notice of the wire."""
        gateway, notice = self.inbox.popleft()
        if isinstance(notice, bool):
            self.sessions.lose(gateway, gone=notice)
            self.outbox.append((gateway, REOPEN))
        else:
            self.sessions.reopened(gateway, notice)
        self.emit()

    @rule(gateway=gateways)
    def reconnect(self, gateway: bytes) -> None:
        peer = self.gateways[gateway]
        if peer.connected:
            peer.restart(connected=False)
        else:
            self.greet(gateway)

    @rule(gateway=gateways)
    def stall(self, gateway: bytes) -> None:
        self.gateways[gateway].stalled = self.gateways[gateway].connected

    @rule(gateway=gateways)
    def ping(self, gateway: bytes) -> None:
        peer = self.gateways[gateway]
        peer.stalled = False
        if peer.welcome:
            self.sessions.hear(gateway, self.now)
            self.emit()

    @rule(gateway=gateways)
    def submit(self, gateway: bytes) -> None:
        peer = self.gateways[gateway]
        if not peer.welcome or peer.stalled:
            return
        self.sessions.hear(gateway, self.now)
        peer.rid += 1
        peer.open.add(peer.rid)
        try:
            assert self.sessions.claim(gateway, peer.rid)
            self.sessions.open(make_stream(gateway, peer.rid))
        except TuringError as error:
            self.sessions.tell(gateway, Failed(peer.rid, error.code, error.message))
        self.emit()

    @rule(gateway=gateways, last=st.booleans(), data=st.data())
    def generate(self, gateway: bytes, last: bool, data: st.DataObject) -> None:
        live = [s for s in self.sessions.streams() if s.sequence.owner[0] == gateway]
        if not live:
            return
        owner = data.draw(st.sampled_from(live)).sequence.owner
        self.sessions.tell(gateway, Tokens(owner[1], pack([1])))
        if last:
            assert self.sessions.close(owner) is not None
            self.sessions.tell(gateway, Finished(owner[1], Reason.STOP, 2, 0, 1, Timings()))
        self.emit()

    @rule(gateway=gateways, data=st.data())
    def abort(self, gateway: bytes, data: st.DataObject) -> None:
        peer = self.gateways[gateway]
        if peer.open and not peer.stalled:
            rid = data.draw(st.sampled_from(sorted(peer.open)))
            peer.open.remove(rid)
            self.sessions.close((gateway, rid))

    @rule(seconds=st.floats(0, 20))
    def expire(self, seconds: float) -> None:
        self.now += seconds
        self.sessions.expire(self.now)
        self.emit()

    @rule(frames=st.integers(1, 5))
    def deliver(self, frames: int) -> None:
        for _ in range(min(frames, len(self.outbox))):
            self.pump()

    @rule()
    def notice(self) -> None:
        if self.inbox:
            self.take()

    def teardown(self) -> None:
        """Once all gateways read again, nobody waits for a stream that no longer exists."""
        for _ in range(3):
            for gateway in self.gateways:
                self.ping(gateway)
            while self.outbox or self.inbox:
                while self.outbox:
                    self.pump()
                while self.inbox:
                    self.take()
        held = {stream.sequence.owner for stream in self.sessions.streams()}
        for gateway, peer in self.gateways.items():
            assert {(gateway, rid) for rid in peer.open} <= held


TestSessionsMachine = SessionsMachine.TestCase
TestSessionsMachine.settings = settings(max_examples=300)
