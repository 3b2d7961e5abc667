"""Fleets against engines over real sockets: none, kill, hang, restart."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fakes import engine as fake
from fakes.engine import FakeEngine, expected
from fakes.fleets import SILENCE, MakeEngine, fleet_of, until
from fakes.wire import MODEL
from turing_gateway.fleet import fleet as fleet_module
from turing_gateway.fleet.discovery import Dns
from turing_gateway.fleet.fleet import Fleet, Stream
from turing_gateway.fleet.picker import Want, pick
from turing_gateway.fleet.view import EngineView, LinkState
from turing_protocol.codec import pack, unpack
from turing_protocol.errors import Code
from turing_protocol.messages import Failed, Finished, Limits, State, StreamEvent, Submit, Tokens
from turing_protocol.sampling import Sampling

pytestmark = pytest.mark.anyio


def request(prompt: Sequence[int], max_tokens: int, prior: Sequence[int] = ()) -> Submit:
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0)
    return Submit(rid=0, epoch=0, prompt=pack(prompt), sampling=sampling, prior=pack(prior))


def choose(fleet: Fleet, prompt: Sequence[int]) -> EngineView | None:
    want = Want(digest=MODEL.digest, key=pack(prompt), pages=1, tokens=len(prompt))
    return pick(fleet.views, want)


async def read(stream: Stream) -> tuple[list[int], StreamEvent]:
    tokens: list[int] = []
    last: StreamEvent | None = None
    async for last in stream:
        if isinstance(last, Tokens):
            tokens += unpack(last.ids)
    assert last is not None
    return tokens, last


async def test_a_stream_gives_the_tokens_of_the_engine(make_engine: MakeEngine) -> None:
    async with fleet_of(make_engine().start()) as fleet:
        async with fleet.submit(fleet.views[0], request([1, 2, 3], 20), pages=1) as stream:
            assert fleet.views[0].own_pages == 1
            tokens, end = await read(stream)
        assert tokens == expected([1, 2, 3], Sampling(max_tokens=20, temperature=0.0))
        assert isinstance(end, Finished)
        assert end.output == 20
        assert (fleet.views[0].own_pages, fleet.views[0].own_streams) == (0, 0)
        assert [info.name for info in fleet.models()] == ["fake"]


async def test_no_engine_is_not_ready(make_engine: MakeEngine) -> None:
    async with fleet_of(make_engine(), wait=False) as fleet:
        await fleet.changed(0.2)
        assert not fleet.ready
        assert fleet.models() == []
        async with fleet.submit(fleet.views[0], request([1], 1), pages=1) as stream:
            _, end = await read(stream)
        assert isinstance(end, Failed)
        assert end.code == Code.ENGINE_LOST


async def test_an_engine_that_comes_later_is_found(make_engine: MakeEngine) -> None:
    engine = make_engine()
    async with fleet_of(engine, wait=False) as fleet:
        await fleet.changed(0.2)
        engine.start()
        await until(fleet, lambda: fleet.ready)


async def finish_anyhow(fleet: Fleet, prompt: Sequence[int], count: int) -> list[int]:
    """Run to the end over any number of losses, as the generator does."""
    tokens: list[int] = []
    while True:
        engine = choose(fleet, prompt)
        if engine is None:
            await fleet.changed(0.1)
            continue
        async with fleet.submit(engine, request(prompt, count, tokens), pages=1) as stream:
            more, end = await read(stream)
        tokens += more
        if isinstance(end, Finished):
            assert end.output == count
            return tokens
        assert isinstance(end, Failed)
        assert end.code == Code.ENGINE_LOST


async def test_two_gateways_two_engines_one_killed(make_engine: MakeEngine) -> None:
    engines = [make_engine(name, step_seconds=0.01).start() for name in ("e0", "e1")]
    async with fleet_of(*engines) as left, fleet_of(*engines) as right:
        prompts = [[number, 7] for number in range(16)]
        homes = [(choose(left, prompt), choose(right, prompt)) for prompt in prompts]
        assert all(a and b and a.name == b.name for a, b in homes)
        work = [
            asyncio.create_task(finish_anyhow(fleet, prompt, 60))
            for fleet in (left, right)
            for prompt in prompts
        ]
        while len(engines[0].running) < 4 or len(engines[1].running) < 4:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(engines[0].kill)
        sampling = Sampling(max_tokens=60, temperature=0.0)
        outputs = await asyncio.wait_for(asyncio.gather(*work), 30)
        assert outputs == [expected(prompt, sampling) for _ in (left, right) for prompt in prompts]
        assert all(view.own_pages == 0 for fleet in (left, right) for view in fleet.views)
        assert len(engines[1].submitted) > 16


async def test_a_hung_engine_is_lost_and_taken_back_when_it_wakes(make_engine: MakeEngine) -> None:
    engine = make_engine(step_seconds=0.01).start()
    async with fleet_of(engine, silence=1.0) as fleet:
        async with fleet.submit(fleet.views[0], request([5], 4000), pages=63) as stream:
            await anext(stream)
            engine.hang()
            tokens, end = await asyncio.wait_for(read(stream), 20)
            assert isinstance(end, Failed)
            assert end.code == Code.ENGINE_LOST
            assert "no Stats" in end.message
        engine.wake()
        await until(fleet, lambda: fleet.ready)
        rest = await finish_anyhow(fleet, [5], len(tokens) + 5)
        assert rest[: len(tokens)] == tokens
        assert len(engine.running) == 0


async def test_a_stopped_process_is_lost(tmp_path: Path) -> None:
    bind = f"ipc://{tmp_path}/e"
    command = [sys.executable, "-m", "fakes.engine", "--bind", bind]
    with subprocess.Popen(command, cwd=Path(fake.__file__).parents[1]) as process:
        try:
            async with fleet_of(FakeEngine(bind), silence=1.0) as fleet:
                async with fleet.submit(fleet.views[0], request([5], 4000), pages=63) as stream:
                    await anext(stream)
                    os.kill(process.pid, signal.SIGSTOP)
                    _, end = await asyncio.wait_for(read(stream), 20)
                assert isinstance(end, Failed)
                assert fleet.views[0].state != LinkState.READY
        finally:
            process.kill()


async def test_a_restarted_engine_continues_a_stream(make_engine: MakeEngine) -> None:
    engine = make_engine(step_seconds=0.01).start()
    async with fleet_of(engine) as fleet:
        before = fleet.views[0].epoch
        work = asyncio.create_task(finish_anyhow(fleet, [9, 9], 80))
        while not engine.running or engine.running[0].output < 10:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(engine.restart)
        tokens = await asyncio.wait_for(work, 20)
        assert tokens == expected([9, 9], Sampling(max_tokens=80, temperature=0.0))
        assert fleet.views[0].epoch != before
        assert len(engine.submitted) == 2
        assert engine.submitted[1].prior != b""


async def test_leaving_the_scope_aborts(make_engine: MakeEngine) -> None:
    engine = make_engine(step_seconds=0.01).start()
    async with fleet_of(engine) as fleet:
        async with fleet.submit(fleet.views[0], request([5], 4000), pages=63) as stream:
            await anext(stream)
        while engine.aborted != [1]:
            await asyncio.sleep(0.01)
        assert engine.running == []
        assert fleet.views[0].own_pages == 0


async def test_a_cancelled_waiter_is_aborted_in_the_queue(make_engine: MakeEngine) -> None:
    limits = Limits(context=4096, pages_total=1000, max_running=1, max_waiting=8)
    engine = make_engine(step_seconds=0.01, limits=limits).start()

    async def run(fleet: Fleet, prompt: list[int]) -> None:
        async with fleet.submit(fleet.views[0], request(prompt, 4000), pages=63) as stream:
            await read(stream)

    async with fleet_of(engine) as fleet:
        first = asyncio.create_task(run(fleet, [1]))
        second = asyncio.create_task(run(fleet, [2]))
        while len(engine.waiting) < 1:
            await asyncio.sleep(0.01)
        second.cancel()
        while engine.waiting:
            await asyncio.sleep(0.01)
        assert engine.aborted == [2]
        assert len(engine.running) == 1
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)


async def test_assets_are_fetched_once_and_outlive_the_engines(make_engine: MakeEngine) -> None:
    files = {"tokenizer.json": b"{}" * 1000, "chat_template": b"x"}
    engines = [make_engine(name, assets=files).start() for name in ("e0", "e1")]
    async with fleet_of(*engines) as fleet:
        info = fleet.models()[0]
        assert (await fleet.assets(info)).files == files
        for engine in engines:
            await asyncio.to_thread(engine.kill)
        await until(fleet, lambda: not any(view.alive for view in fleet.views))
        assert (await fleet.assets(info)).files == files
        assert fleet.models() == [info]
        assert sorted(engines[0].fetched + engines[1].fetched) == sorted(files)


async def test_a_refused_version_is_told(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.major = 99
    engine.start()
    async with fleet_of(engine, wait=False) as fleet:
        await until(fleet, lambda: "version 99" in fleet.views[0].why)
        assert not fleet.ready


async def test_a_draining_engine_gets_no_new_work(make_engine: MakeEngine) -> None:
    engine = make_engine(step_seconds=0.01).start()
    async with fleet_of(engine) as fleet:
        view = fleet.views[0]
        async with fleet.submit(view, request([5], 50), pages=1) as stream:
            await anext(stream)
            engine.state = State.DRAINING
            await until(fleet, lambda: view.state == LinkState.DRAINING)
            async with fleet.submit(view, request([6], 5), pages=1) as refused:
                _, end = await read(refused)
            assert isinstance(end, Failed)
            assert end.code == Code.DRAINING
            tokens, end = await read(stream)
        assert isinstance(end, Finished)
        assert tokens == expected([5], Sampling(max_tokens=50, temperature=0.0))


async def test_a_name_that_changes_moves_work_without_cutting_it(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = [make_engine(name, step_seconds=0.01).start() for name in ("e0", "e1")]
    addresses = [old.endpoint]

    async def resolve(_: Dns) -> list[str]:
        return list(addresses)

    monkeypatch.setattr(Dns, "addresses", resolve)
    monkeypatch.setattr(fleet_module, "INTERVAL", 0.05)
    fleet = Fleet(["dns://engines:5555"], silence=SILENCE)
    await fleet.start()
    try:
        await until(fleet, lambda: fleet.ready)
        async with fleet.submit(fleet.views[0], request([5], 60), pages=1) as stream:
            await anext(stream)
            addresses[:] = [new.endpoint]
            await until(fleet, lambda: [v.name for v in fleet.views if v.ready] == ["e1"])
            assert [view.name for view in fleet.views] == ["e0", "e1"]
            tokens, end = await read(stream)
        assert isinstance(end, Finished)
        assert tokens == expected([5], Sampling(max_tokens=60, temperature=0.0))
        assert [view.name for view in fleet.views] == ["e1"]
    finally:
        await fleet.close()
