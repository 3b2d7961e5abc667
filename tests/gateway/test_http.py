"""Reading bodies, writing streams, noticing clients that leave."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from fakes.asgi import Connection
from turing_gateway import http
from turing_gateway.http import EventStream, convert, endpoint, read_json, until_disconnect
from turing_protocol.errors import Code, TuringError
from turing_protocol.lanes import Lane

pytestmark = pytest.mark.anyio


class Inner(Struct):
    role: str


class Body(Struct):
    items: list[Inner]
    n: Annotated[int, Meta(ge=1, le=4)] | None = None
    bias: dict[str, float] | None = None


def request(*pieces: bytes, **state: Any) -> Request:
    connection = Connection("/x", pieces)
    connection.scope["state"] = {"request_id": "r1", **state}
    return Request(connection.scope, connection.receive)


async def failure(body: bytes) -> TuringError:
    with pytest.raises(TuringError) as caught:
        await read_json(request(body), Body)
    assert caught.value.code is Code.INVALID
    return caught.value


async def test_a_body_is_read_from_all_its_pieces_and_unknown_fields_are_ignored() -> None:
    body = await read_json(request(b'{"items":[{"ro', b'le":"u"}],"n":null,"more":1}'), Body)
    assert body == Body([Inner("u")])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ("{}", "items"),
        ('{"items":[{"role":"u"},{}]}', "items.1.role"),
        ('{"items":[{"role":5}]}', "items.0.role"),
        ('{"items":[],"n":9}', "n"),
        ('{"items":[],"n":1.5}', "n"),
        ('{"items":[],"bias":{"a":"x"}}', "bias"),
        ("[]", None),
        ("null", None),
    ],
)
async def test_what_does_not_fit_names_its_field(body: str, param: str | None) -> None:
    error = await failure(body.encode())
    assert error.param == param
    assert (param or "body") in error.message


async def test_a_missing_body_is_called_so() -> None:
    assert (await failure(b"")).message == "missing request body"


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({"items": [{"role": 5}]}, "options.items.0.role"),
        ({}, "options.items"),
        ({"items": [], "n": 9}, "options.n"),
        ([], "options"),
    ],
)
async def test_a_part_of_a_body_names_its_whole_path(value: Any, param: str) -> None:
    with pytest.raises(TuringError, match=param) as caught:
        convert(value, Body, "options")
    assert (caught.value.code, caught.value.param) == (Code.INVALID, param)


async def test_a_part_of_a_body_that_fits() -> None:
    assert convert({"items": [{"role": "u"}]}, Body, "options") == Body([Inner("u")])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"items":[}',
        b"\xff\xfe\x00",
        b'{"items":[{"role":"\xff"}]}',
        b'{"items":[],"n":NaN}',
        b'\xef\xbb\xbf{"items":[]}',
        b'{"items":[]} x',
    ],
)
async def test_what_is_not_json_is_refused(body: bytes) -> None:
    await failure(body)


@pytest.mark.parametrize("body", [b'{"more":' + b"[" * 200_000, b'{"items":' + b"[" * 200_000])
async def test_endless_nesting_is_refused(body: bytes) -> None:
    await failure(body)


async def test_an_endpoint_answers_a_failure_in_the_envelope_of_its_lane() -> None:
    async def shed(request: Request) -> Response:
        raise TuringError(Code.SHED, "full")

    response = await endpoint(shed)(request(lane=Lane.BACKGROUND))
    assert response.status_code == 503
    assert response.headers["x-should-retry"] == "false"


async def test_an_unexpected_failure_is_logged_and_its_text_stays_inside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(request: Request) -> Response:
        raise RuntimeError("secret path")

    with caplog.at_level(logging.ERROR):
        response = await endpoint(broken)(request())
    error = json.loads(bytes(response.body))["error"]
    assert response.status_code == 500
    assert "r1" in error["message"]
    assert "secret" not in error["message"]
    assert "secret path" in caplog.text


async def test_work_is_cancelled_and_cleaned_up_when_the_client_leaves() -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("cleaned")

    connection = Connection("/x", [])
    asyncio.get_running_loop().call_soon(connection.leave)
    with pytest.raises(ClientDisconnect):
        await until_disconnect(connection.receive, work())
    assert steps == ["cleaned"]


async def test_a_result_or_an_error_of_work_passes_through() -> None:
    async def fails() -> None:
        raise TuringError(Code.INVALID, "bad")

    async def works() -> int:
        return 5

    connection = Connection("/x")
    assert await until_disconnect(connection.receive, works()) == 5
    with pytest.raises(TuringError):
        await until_disconnect(connection.receive, fails())


class Chunks:
    """Yields what is put in, and notes that it was closed."""

    def __init__(self, *chunks: bytes, hang: bool = False) -> None:
        self.chunks = chunks
        self.hang = hang
        self.closed = False

    async def __call__(self) -> AsyncGenerator[bytes, None]:
        try:
            for chunk in self.chunks:
                yield chunk
            if self.hang:
                await asyncio.Event().wait()
        finally:
            self.closed = True


async def test_a_stream_sends_each_chunk_as_it_is_and_ends() -> None:
    connection = Connection("/x")
    chunks = Chunks(b"a", b"b")
    await EventStream(chunks(), {"x-turing-lane": "batch"})(
        connection.scope, connection.receive, connection.send
    )
    assert [m.get("body") for m in connection.sent] == [None, b"a", b"b", b""]
    assert connection.headers["content-type"].startswith("text/event-stream")
    assert connection.headers["x-turing-lane"] == "batch"
    assert "content-length" not in connection.headers
    assert chunks.closed


async def test_a_stream_closes_its_chunks_when_the_client_leaves() -> None:
    connection = Connection("/x")
    chunks = Chunks(b"a", hang=True)
    stream = EventStream(chunks(), {})
    serving = asyncio.ensure_future(stream(connection.scope, connection.receive, connection.send))
    await connection.until_sent(2)
    connection.leave()
    await serving
    assert chunks.closed
    assert connection.sent[-1]["more_body"]


async def test_a_silent_stream_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "KEEP_ALIVE_S", 0.01)
    connection = Connection("/x")
    stream = EventStream(Chunks(b"a", hang=True)(), {})
    serving = asyncio.ensure_future(stream(connection.scope, connection.receive, connection.send))
    await connection.until_sent(4)
    connection.leave()
    await serving
    assert connection.body.startswith(b"a: keep-alive\n\n: keep-alive\n\n")


async def test_a_client_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "KEEP_ALIVE_S", 0.01)
    monkeypatch.setattr(http, "STALL_S", 0.01)
    connection = Connection("/x")
    chunks = Chunks(b"a", b"b")

    async def send(message: Any) -> None:
        if message.get("body") == b"b":
            await asyncio.Event().wait()
        await connection.send(message)

    await EventStream(chunks(), {})(connection.scope, connection.receive, send)
    assert connection.body == b"a"
    assert chunks.closed
