"""Whole engine processes: one is killed in mid-stream, and nobody notices."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from turing_gateway.call import Begin, Call, Finish, TextDelta
from turing_gateway.fleet.fleet import Fleet
from turing_gateway.generate import Generator
from turing_gateway.text.pool import TextPool
from turing_protocol.sampling import Sampling

pytestmark = [pytest.mark.anyio, pytest.mark.e2e]

NAMES = ("e0", "e1")


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    started = {name: _start(tmp_path, name) for name in NAMES}
    yield started
    for process in started.values():
        process.kill()
        process.wait()


def _start(folder: Path, name: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "turing_engine", "--model", "scripted:delay_ms=5"]
    command += ["--bind", f"ipc://{folder}/{name}", "--name", name]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


async def ask(generator: Generator, prompt: str, seed: int) -> tuple[str, str]:
    """Return the text and the engine that began it."""
    call = Call(
        model="scripted",
        prompt=prompt,
        sampling=Sampling(temperature=1.0),
        seed=seed,
        max_tokens=100,
    )
    text, engine = "", ""
    async with aclosing(generator.run(call)) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                text += event.text
            elif isinstance(event, Begin):
                engine = event.engine
            else:
                assert isinstance(event, Finish), event
                assert event.output_tokens == 100
    return text, engine


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_streams_of_a_lost_process_go_on_elsewhere(
    processes: dict[str, "subprocess.Popen[bytes]"], tmp_path: Path, number: signal.Signals
) -> None:
    fleet, pool = Fleet([f"ipc://{tmp_path}/{name}" for name in NAMES]), TextPool()
    generator = Generator(fleet, pool)
    await fleet.start()
    try:
        async with asyncio.timeout(60):
            while not all(view.ready for view in fleet.views):
                await fleet.changed(0.1)
            jobs = [(f"prompt {index}", index) for index in range(16)]
            alone = {job: (await ask(generator, *job))[0] for job in jobs[:4]}
            work = [asyncio.create_task(ask(generator, *job)) for job in jobs * 2]
            while sum(view.own_streams for view in fleet.views) < len(work):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            processes["e0"].send_signal(number)
            outcomes = await asyncio.gather(*work)
    finally:
        await fleet.close()
        pool.close()
    assert {engine for _, engine in outcomes} == set(NAMES)
    texts = [text for text, _ in outcomes]
    assert texts[:16] == texts[16:]
    assert texts[:4] == [alone[job] for job in jobs[:4]]
