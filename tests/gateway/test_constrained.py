"""Constrained calls through engine processes: valid, refused up front, carried over losses."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from turing_gateway.call import Begin, Call, Event, Failure, Finish, TextDelta
from turing_gateway.fleet.fleet import Fleet
from turing_gateway.fronts.formats import json_schema, written
from turing_gateway.generate import Generator
from turing_gateway.text.pool import TextPool
from turing_protocol.errors import Code
from turing_protocol.sampling import Sampling

pytestmark = [pytest.mark.anyio, pytest.mark.e2e]

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 60}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}
STRICT = json_schema(SCHEMA, "response_format", strict=True)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    started = {name: _start(tmp_path, name) for name in ("e0", "e1")}
    yield started
    for process in started.values():
        process.kill()
        process.wait()


def _start(folder: Path, name: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "turing_engine", "--model", "scripted:delay_ms=4"]
    command += ["--bind", f"ipc://{folder}/{name}", "--name", name]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


@asynccontextmanager
async def generator_over(folder: Path) -> AsyncIterator[Generator]:
    fleet = Fleet([f"ipc://{folder}/e0", f"ipc://{folder}/e1"], silence=3.0)
    await fleet.start()
    pool = TextPool()
    async with asyncio.timeout(60):
        while not all(view.ready for view in fleet.views):
            await fleet.changed(0.05)
    try:
        yield Generator(fleet, pool)
    finally:
        pool.close()
        await fleet.close()


def make_call(**fields: Any) -> Call:
    values: dict[str, Any] = {"sampling": Sampling(temperature=1.5), "seed": 3, "max_tokens": 200}
    return Call(model="scripted", prompt="Who?", **(values | fields))


async def collect(generator: Generator, call: Call) -> list[Event]:
    async with asyncio.timeout(60), aclosing(generator.run(call)) as events:
        return [event async for event in events]


def texts(events: list[Event], choices: int = 1) -> list[str]:
    found = [""] * choices
    for event in events:
        if isinstance(event, TextDelta):
            found[event.choice] += event.text
    return found


async def refused(generator: Generator, call: Call) -> Failure:
    (failure,) = await collect(generator, call)
    assert isinstance(failure, Failure)
    return failure


@pytest.mark.parametrize("kill", [False, True], ids=["calm", "killed"])
async def test_answers_are_valid_and_the_same_whatever_dies(
    tmp_path: Path, processes: dict[str, "subprocess.Popen[bytes]"], kill: bool
) -> None:
    async with generator_over(tmp_path) as generator:
        call = make_call(format=STRICT, max_tokens=90)
        whole = texts(await collect(generator, call))[0]
        text, engine = "", ""
        async with asyncio.timeout(60), aclosing(generator.run(call)) as events:
            async for event in events:
                if isinstance(event, Begin):
                    engine = event.engine
                if isinstance(event, TextDelta):
                    text += event.text
                    if kill and len(text) > 30:
                        processes[engine].kill()
                if isinstance(event, Finish):
                    assert event.reason == "stop"
    assert text == whole
    jsonschema.validate(json.loads(text), SCHEMA)
    assert (processes[engine].poll() is not None) == kill


async def test_choices_stops_and_refusals(
    tmp_path: Path, processes: dict[str, "subprocess.Popen[bytes]"]
) -> None:
    async with generator_over(tmp_path) as generator:
        events = await collect(generator, make_call(format=STRICT, choices=3))
        answers = texts(events, 3)
        assert len(set(answers)) == 3
        for text in answers:
            jsonschema.validate(json.loads(text), SCHEMA)

        hidden = await collect(
            generator,
            make_call(
                format=STRICT, sampling=Sampling(temperature=1.5, stop_ids=(ord("}"), ord(",")))
            ),
        )
        jsonschema.validate(json.loads(texts(hidden)[0]), SCHEMA)

        broken = json_schema({"type": "strng"}, "format", strict=False)
        failure = await refused(generator, make_call(format=broken, format_field="format"))
        assert (failure.error.code, failure.error.param) == (Code.CONSTRAINT_INVALID, "format")
        failure = await refused(
            generator, make_call(format=written("regex", "((", "r", strict=True))
        )
        assert "unclosed group" in failure.error.message


async def test_warnings_are_told_or_refused(
    tmp_path: Path, processes: dict[str, "subprocess.Popen[bytes]"]
) -> None:
    async with generator_over(tmp_path) as generator:
        short = make_call(format=STRICT, max_tokens=20)
        first, *_, last = await collect(generator, short)
        assert isinstance(first, Begin) and isinstance(last, Finish)
        assert last.reason == "length"
        assert first.warnings == last.warnings
        assert "too small" in first.warnings[0]
        strict = make_call(format=STRICT, max_tokens=20, strict=True)
        failure = await refused(generator, strict)
        assert (failure.error.code, failure.error.message) == (Code.UNSUPPORTED, first.warnings[0])

        hurried = await collect(generator, make_call(format=STRICT, max_tokens=82, strict=True))
        assert isinstance(hurried[-1], Finish)
        assert "closed early" in hurried[-1].warnings[0]

        stopped = make_call(format=STRICT, stop=(",",))
        _, *_, last = await collect(generator, stopped)
        assert isinstance(last, Finish)
        assert (last.stop, len(last.warnings)) == (",", 1)
        assert "stop string" in last.warnings[0]
        assert (await refused(generator, make_call(format=STRICT, stop=(",",), strict=True))).error
