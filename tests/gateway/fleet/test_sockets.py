"""What a link does with engines that misbehave, over real sockets."""

import asyncio
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from fakes.engine import FakeEngine
from fakes.fleets import MakeEngine, fleet_of, until
from fakes.wire import make_welcome
from turing_gateway.fleet.fleet import Fleet
from turing_protocol.codec import decode_to_engine, encode
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import Failed, Hello, Ping, Submit
from turing_protocol.sampling import Sampling

pytestmark = pytest.mark.anyio


async def hello(router: zmq.asyncio.Socket) -> bytes:
    """Return who says Hello next."""
    async with asyncio.timeout(20):
        while True:
            identity, frame = await router.recv_multipart()
            message = decode_to_engine(frame)
            if isinstance(message, Hello):
                return identity
            assert isinstance(message, Ping)


async def test_what_is_not_of_this_wire_costs_the_link_and_it_comes_back(tmp_path: Path) -> None:
    bind = f"ipc://{tmp_path}/e"
    with zmq.asyncio.Context() as context:
        router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        router.setsockopt(zmq.LINGER, 0)
        router.bind(bind)
        async with fleet_of(FakeEngine(bind), wait=False) as fleet:
            first = await hello(router)
            await router.send_multipart([first, b"\x93 junk"])
            await until(fleet, lambda: "not a message of this wire" in fleet.views[0].why)
            again = await hello(router)
            assert again == first, "the engine frees what an identity held before"
            await router.send_multipart([again, encode(make_welcome())])
            await until(fleet, lambda: fleet.ready)
        router.close()


async def test_a_submit_never_reaches_the_successor_of_its_engine(make_engine: MakeEngine) -> None:
    engine = make_engine().start()
    async with fleet_of(engine) as fleet:
        request = Submit(0, 0, b"\x01\0\0\0", Sampling())
        engine.kill()
        async with fleet.submit(fleet.views[0], request, pages=1) as stream:
            events = [event async for event in stream]
        assert [type(event) for event in events] == [Failed]
        engine.start()
        await until(fleet, lambda: fleet.ready)
        async with fleet.submit(fleet.views[0], request, pages=1) as stream:
            await anext(stream)
    assert [submit.rid for submit in engine.submitted] == [2]


async def test_assets_that_do_not_match_their_hash_are_not_used(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(assets={"tokenizer.json": b"true"})
    monkeypatch.setattr("turing_gateway.fleet.fleet.ASSETS_TIMEOUT", 0.3)
    welcome = engine._welcome
    monkeypatch.setattr(engine, "_welcome", lambda: _tampered(engine, welcome()))
    engine.start()
    async with fleet_of(engine) as fleet:
        with pytest.raises(TuringError, match="no engine has the tokenizer") as caught:
            await fleet.assets(fleet.models()[0])
    assert caught.value.code == Code.NO_ENGINE
    assert engine.fetched == ["tokenizer.json"]


def _tampered(engine: FakeEngine, welcome: object) -> object:
    engine.assets = {"tokenizer.json": b"false"}
    return welcome


async def test_a_fleet_needs_addresses_that_can_be_read() -> None:
    with pytest.raises(TuringError) as caught:
        Fleet(["host:5555"])
    assert caught.value.code == Code.INVALID
