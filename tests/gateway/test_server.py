"""The application behind its real HTTP server, over sockets."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fakes.generator import Gateway, begin
from turing_gateway import server
from turing_gateway.call import Call, Event, TextDelta
from turing_gateway.server import bind, serve, url

pytestmark = pytest.mark.anyio


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def word(call: Call) -> list[Event]:
    return [begin(), TextDelta(0, "Hel", (7,))]


class Client:
    """One connection, byte for byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, head: str, body: bytes = b"", *headers: str) -> None:
        """Send a request with a Host and the given head and body."""
        lines = [head, "Host: 127.0.0.1", *headers]
        if body and not any(h.lower().startswith("transfer-") for h in headers):
            lines.append(f"Content-Length: {len(body)}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    def ask(self, **fields: Any) -> None:
        """Ask for a completion."""
        body = json.dumps({"prompt": "x", **fields}).encode()
        self.send("POST /v1/completions HTTP/1.1", body)

    async def until(self, text: bytes) -> bytes:
        """Read up to and with ``text``."""
        return await asyncio.wait_for(self.reader.readuntil(text), 10)

    async def rest(self) -> bytes:
        """Read until the server closes."""
        return await asyncio.wait_for(self.reader.read(), 10)

    async def answer(self) -> bytes:
        """Read the head of an answer and a body of known length."""
        head = await self.until(b"\r\n\r\n")
        length = next(
            (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")),
            b": 0",
        )
        size = int(length.partition(b":")[2])
        return head + await asyncio.wait_for(self.reader.readexactly(size), 10)


class Running:
    """A server of a gateway in this loop."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        serving = serve(gateway.app, gateway.settings, gateway.drain, gateway.generator.interrupt)
        self.task = asyncio.ensure_future(serving)
        self._clients: list[Client] = []

    async def client(self) -> Client:
        """Connect, as soon as the server listens."""
        for _ in range(500):
            with contextlib.suppress(OSError):
                pair = await asyncio.open_connection("127.0.0.1", self.gateway.settings.port)
                self._clients.append(Client(*pair))
                return self._clients[-1]
            await asyncio.sleep(0.01)
        raise TimeoutError

    async def ended(self) -> bool:
        """Wait for the server to end and return what ``serve`` returned."""
        return await asyncio.wait_for(self.task, 10)

    async def close(self) -> None:
        """End everything."""
        for client in self._clients:
            client.writer.close()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@asynccontextmanager
async def running(*args: Any, **settings: Any) -> AsyncIterator[Running]:
    instance = Running(Gateway(*args, port=free_port(), **settings))
    try:
        yield instance
    finally:
        await instance.close()


async def test_a_stream_and_plain_answers_share_a_connection() -> None:
    async with running() as run:
        client = await run.client()
        for _ in range(2):
            client.ask(stream=True)
            assert b"data: [DONE]\n\n" in await client.until(b"\r\n0\r\n\r\n")
            client.ask()
            assert b'"text":"Hello"' in await client.answer()


@pytest.mark.parametrize("framing", ["Transfer-Encoding: chunked", "transfer-encoding: Chunked"])
async def test_a_smuggled_request_is_not_executed(framing: str) -> None:
    async with running() as run:
        client = await run.client()
        hidden = b"GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        size = f"Content-Length: {5 + len(hidden)}"
        client.send("POST /v1/completions HTTP/1.1", b"0\r\n\r\n" + hidden, framing, size)
        answer = await client.rest()
        assert answer.count(b"HTTP/1.1 ") == 1
        assert answer.startswith(b"HTTP/1.1 400")


async def test_a_huge_body_is_refused_with_an_answer_and_the_server_goes_on() -> None:
    async with running(max_body_bytes=1024) as run:
        for _ in range(2):
            client = await run.client()
            client.send("POST /v1/completions HTTP/1.1", b"x" * (4 << 20))
            assert (await client.answer()).startswith(b"HTTP/1.1 413")
        client.ask()
        assert (await client.answer()).startswith(b"HTTP/1.1 200")


async def test_a_huge_body_on_an_unknown_path_does_not_block_the_connection() -> None:
    async with running() as run:
        client = await run.client()
        client.send("POST /nothing HTTP/1.1", b"x" * (4 << 20))
        assert (await client.answer()).startswith(b"HTTP/1.1 404")
        client.ask()
        assert (await client.answer()).startswith(b"HTTP/1.1 200")


async def test_headers_have_a_limit() -> None:
    async with running() as run:
        client = await run.client()
        client.send("GET /version HTTP/1.1", b"", "X-Long: " + "a" * (64 << 10))
        assert (await client.rest()).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_ends_its_run(stream: bool) -> None:
    async with running(word, hang=True) as run:
        client = await run.client()
        client.ask(stream=stream)
        while not run.gateway.generator.calls:
            await asyncio.sleep(0.001)
        client.writer.transport.abort()
        while not run.gateway.generator.closed:
            await asyncio.sleep(0.001)
        await asyncio.wait_for(run.gateway.drain.idle(), 10)


async def test_a_stop_lets_streams_finish_and_turns_readiness_off() -> None:
    async with running(word, hang=True) as run:
        client, probe, late = await run.client(), await run.client(), await run.client()
        client.ask(stream=True)
        await client.until(b"Hel")
        os.kill(os.getpid(), signal.SIGTERM)
        while not run.gateway.drain.started:
            await asyncio.sleep(0.001)
        probe.send("GET /health/ready HTTP/1.1")
        assert (await probe.answer()).startswith(b"HTTP/1.1 503")
        late.ask()
        assert b'"code":"draining"' in await late.rest()
        run.gateway.generator.release.set()
        assert b"[DONE]" in await client.rest()
        assert await run.ended()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_server_stops_at_once_although_a_client_is_connected(number: int) -> None:
    async with running() as run:
        client = await run.client()
        client.ask()
        await client.answer()
        os.kill(os.getpid(), number)
        assert await run.ended()


async def test_a_second_signal_cuts_what_still_runs() -> None:
    async with running(word, hang=True) as run:
        client = await run.client()
        client.ask(stream=True)
        await client.until(b"Hel")
        os.kill(os.getpid(), signal.SIGTERM)
        while not run.gateway.drain.started:
            await asyncio.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)
        assert not await run.ended()
        assert b'"code":"draining"' in await client.rest()
        assert run.gateway.generator.closed == 1


async def test_the_grace_time_bounds_the_wait() -> None:
    async with running(word, hang=True, grace_seconds=0.05) as run:
        client = await run.client()
        client.ask(stream=True)
        await client.until(b"Hel")
        plain = await run.client()
        plain.ask()
        while run.gateway.drain.active < 2:
            await asyncio.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)
        assert not await run.ended()
        assert b'data: {"error":' in await client.rest()
        assert (await plain.rest()).startswith(b"HTTP/1.1 503")


async def test_it_stops_with_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PARENT_POLL_S", 0.01)
    async with running(exit_with_parent=True) as run:
        await run.client()
        monkeypatch.setattr(os, "getppid", lambda: 1 << 30)
        assert await run.ended()


async def test_an_address_in_use_is_an_error() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            bind("127.0.0.1", taken.getsockname()[1])
        assert url(taken) == f"http://127.0.0.1:{taken.getsockname()[1]}"


async def test_an_ipv6_address_is_written_in_brackets() -> None:
    with bind("::1", 0) as listener:
        assert url(listener) == f"http://[::1]:{listener.getsockname()[1]}"
