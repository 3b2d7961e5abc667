"""The real sockets: what strangers, sleepers and slow readers do to an engine, and what not."""

import os
from collections import defaultdict
from pathlib import Path

import pytest
import zmq

from engine.rig import (
    EPOCH,
    LiveEngine,
    Peer,
    ends_of,
    failure_of,
    ids_of,
    make_submit,
    wait_for,
)
from turing_engine.sessions import LEASE_SECONDS
from turing_engine.stats import loading
from turing_engine.wire import Wire
from turing_protocol.codec import decode_state, encode
from turing_protocol.errors import Code
from turing_protocol.messages import (
    STATS_TOPIC,
    Abort,
    Asset,
    Fetch,
    Hello,
    Ping,
    Pong,
    Refused,
    State,
    Stats,
    Step,
    StreamEvent,
    Tokens,
)


def solo(folder: Path, prompt: bytes, max_tokens: int) -> list[int]:
    """Return what an engine says to one request alone."""
    folder = folder / "solo"
    folder.mkdir()
    with LiveEngine(folder).load() as engine, Peer(engine.endpoint) as peer:
        peer.greet()
        peer.send(make_submit(1, prompt, max_tokens=max_tokens))
        return ids_of(peer.until_ended(1), 1)


class Listener:
    """A subscriber of the state socket."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.set(zmq.RCVTIMEO, 20_000)
        self._socket.subscribe(STATS_TOPIC)
        self._socket.connect(endpoint)

    def next(self) -> Stats:
        _, frame = self._socket.recv_multipart()
        stats = decode_state(frame)
        assert isinstance(stats, Stats)
        return stats

    def close(self) -> None:
        self._context.destroy(linger=0)


def test_stats_are_published_while_loading_and_hello_waits_for_the_model(tmp_path: Path) -> None:
    with LiveEngine(tmp_path) as engine, Peer(engine.endpoint) as peer:
        listener = Listener(engine.state_endpoint)
        peer.send(Hello(1, 0, "early"))
        first, second = listener.next(), listener.next()
        assert (first.state, first.engine, first.epoch) == (State.LOADING, "e", EPOCH)
        assert second.seq == first.seq + 1
        engine.load()
        assert peer.greet().epoch == EPOCH
        while listener.next().state is not State.READY:
            pass
        listener.close()


def test_stats_tell_the_age_of_a_running_step(tmp_path: Path) -> None:
    with LiveEngine(tmp_path, "scripted:delay_ms=1500").load() as engine:
        listener = Listener(engine.state_endpoint)
        with Peer(engine.endpoint) as peer:
            peer.greet()
            peer.send(make_submit(1, max_tokens=1))
            ages = [listener.next().step_age_ms]
            while not (len(ages) > 1 and 0 < ages[-2] < ages[-1]):
                ages.append(listener.next().step_age_ms)
            peer.until_ended(1)
            while listener.next().step_age_ms:
                pass
        listener.close()


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\x00" * 1000],
        [b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94."],
        [b"\x91" * 10_0000],
        [encode(Step(1, []))],
        [encode(Hello(1, 0, "g")), b"more"],
        [os.urandom(5000)],
    ],
    ids=["empty", "zeros", "pickle", "nested", "other-direction", "two-parts", "random"],
)
def test_garbage_is_counted_and_ignored(tmp_path: Path, frames: list[bytes]) -> None:
    with LiveEngine(tmp_path).load() as engine, Peer(engine.endpoint) as peer:
        peer.socket.send_multipart(frames)
        peer.greet()
        peer.send(make_submit(1, max_tokens=3))
        assert len(ids_of(peer.until_ended(1), 1)) == 3
        wait_for(lambda: engine.stats().counters.bad_frames == 1)


def test_an_unknown_major_is_refused(tmp_path: Path) -> None:
    with LiveEngine(tmp_path).load() as engine, Peer(engine.endpoint) as peer:
        peer.send(Hello(2, 0, "future"))
        assert peer.receive(Refused).code is Code.VERSION


def test_a_ping_is_answered_also_during_a_step(tmp_path: Path) -> None:
    with (
        LiveEngine(tmp_path, "scripted:delay_ms=2000").load() as engine,
        Peer(engine.endpoint) as peer,
    ):
        peer.greet()
        peer.send(make_submit(1, max_tokens=1))
        wait_for(lambda: engine.wire.step_began > 0)
        peer.send(Ping(5.0))
        assert peer.receive(Pong).sent == 5.0
        assert engine.wire.step_began > 0
        peer.send(Abort(1))


def test_an_old_epoch_is_lost(tmp_path: Path) -> None:
    with LiveEngine(tmp_path).load() as engine, Peer(engine.endpoint) as peer:
        peer.send(make_submit(1))
        assert failure_of(peer.until_ended(1), 1).code is Code.ENGINE_LOST
        peer.greet()
        peer.send(make_submit(1, epoch=EPOCH + 1))
        assert failure_of(peer.until_ended(1), 1).code is Code.ENGINE_LOST


def test_assets_come_whole(tmp_path: Path) -> None:
    with LiveEngine(tmp_path).load() as engine, Peer(engine.endpoint) as peer:
        names = tuple(peer.greet().assets)
        peer.send(Fetch(1, names))
        assert [peer.receive(Asset).name for _ in names] == list(names)


def test_one_step_message_carries_all_streams_of_a_gateway(tmp_path: Path) -> None:
    with (
        LiveEngine(tmp_path, "scripted:delay_ms=20").load() as engine,
        Peer(engine.endpoint) as peer,
    ):
        peer.greet()
        for rid in range(16):
            peer.send(make_submit(rid, b"p%d" % rid, max_tokens=10))
        by_step: dict[int, list[int]] = defaultdict(list)
        ended: list[StreamEvent] = []
        while len(ends_of(ended)) < 16:
            step = peer.receive(Step)
            ended += step.events
            by_step[step.step] += [e.rid for e in step.events if isinstance(e, Tokens)]
        assert max(map(len, by_step.values())) == 16
        assert all(len(set(rids)) == len(rids) for rids in by_step.values())


def test_a_new_connection_takes_the_identity_over(tmp_path: Path) -> None:
    with LiveEngine(tmp_path, "scripted:delay_ms=5").load() as engine, Peer(engine.endpoint) as old:
        old.greet()
        old.send(make_submit(1, max_tokens=10_000))
        old.receive(Step)
        with Peer(engine.endpoint) as new:
            new.greet()
            wait_for(lambda: engine.stats().counters.aborted == 1)
            new.send(make_submit(1, b"anew", max_tokens=4))
            assert len(ids_of(new.until_ended(1), 1)) == 4


def test_a_vanished_gateway_frees_its_work(tmp_path: Path) -> None:
    with LiveEngine(tmp_path, "scripted:delay_ms=5").load() as engine:
        with Peer(engine.endpoint) as peer:
            peer.greet()
            peer.send(make_submit(1, max_tokens=10_000))
            peer.receive(Step)
        wait_for(lambda: engine.stats().counters.aborted == 1)
        wait_for(lambda: engine.stats().pages_used == engine.stats().running == 0)


def test_a_sleeping_gateway_loses_its_lease(tmp_path: Path) -> None:
    with (
        LiveEngine(tmp_path, "scripted:delay_ms=5").load() as engine,
        Peer(engine.endpoint) as peer,
    ):
        peer.greet()
        peer.send(make_submit(1, max_tokens=10_000))
        peer.receive(Step)
        engine.push(LEASE_SECONDS + 1)
        assert failure_of(peer.until_ended(1), 1).code is Code.ENGINE_LOST
        peer.send(Ping(0.0))
        peer.send(make_submit(2, max_tokens=3))
        assert len(ids_of(peer.until_ended(2), 2)) == 3


def test_a_slow_reader_is_dropped_whole_and_resumes_exactly(tmp_path: Path) -> None:
    prompts = [b"slow %d" % rid for rid in range(32)]
    tokens = 20_000
    with (
        LiveEngine(tmp_path, send_mark=200).load() as engine,
        Peer(engine.endpoint, hwm=1) as slow,
        Peer(engine.endpoint, b"quick") as quick,
    ):
        quick.greet()
        slow.greet()
        for rid, prompt in enumerate(prompts):
            slow.send(make_submit(rid, prompt, max_tokens=tokens))
        wait_for(lambda: engine.stats().counters.aborted == len(prompts), 60)
        quick.send(make_submit(1, max_tokens=5))
        assert len(ids_of(quick.until_ended(1), 1)) == 5
        events = slow.until_ended(*range(len(prompts)))
        assert {failure_of(events, rid).code for rid in range(32)} == {Code.ENGINE_LOST}
        got = ids_of(events, 7)
        slow.send(make_submit(99, prompts[7], max_tokens=len(got) + 50, prior=tuple(got)))
        got += ids_of(slow.until_ended(99), 99)
    assert got == solo(tmp_path, prompts[7], len(got))


def test_many_streams_over_two_gateways_lose_nothing(tmp_path: Path) -> None:
    with (
        LiveEngine(tmp_path).load() as engine,
        Peer(engine.endpoint, b"a") as a,
        Peer(engine.endpoint, b"b") as b,
    ):
        for peer in (a, b):
            peer.greet()
            for rid in range(100):
                peer.send(make_submit(rid, b"%d" % rid, max_tokens=rid + 1))
        for peer in (a, b):
            events = peer.until_ended(*range(100))
            assert all(len(ids_of(events, rid)) == rid + 1 for rid in range(100))
        wait_for(lambda: engine.stats().counters.finished == 200)
        assert engine.stats().counters.output_tokens == 2 * sum(range(1, 101))


def test_an_address_in_use_is_an_error() -> None:
    first = Wire("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", loading("e", 1))
    first.start()
    try:
        with pytest.raises(zmq.ZMQError, match="in use"):
            Wire(first.endpoint, "tcp://127.0.0.1:*", loading("e", 1))
        assert first.endpoint != first.state_endpoint
    finally:
        first.stop()
