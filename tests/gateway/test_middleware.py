"""What every request passes before it reaches a route."""

import asyncio
import logging

import pytest
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fakes.asgi import Connection
from turing_gateway import middleware
from turing_gateway.drain import Drain
from turing_gateway.http import endpoint
from turing_gateway.middleware import (
    OPEN_PATHS,
    BodyLimit,
    Guard,
    RequestLog,
    Rule,
    bearer,
    is_loopback,
    local_only,
    not_draining,
    single_framing,
)

pytestmark = pytest.mark.anyio


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the length of the body, as an endpoint does."""

    async def handler(request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    request = Request(scope, receive)
    request.state.request_id = "r"
    await (await endpoint(handler)(request))(scope, receive, send)


async def ignore(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer without looking at the body."""
    await PlainTextResponse("early", 404)(scope, receive, send)


async def serve(app: ASGIApp, connection: Connection) -> Connection:
    await connection.serve(app)
    return connection


def verdict(rule: Rule, path: str = "/v1/models", method: str = "POST", **headers: str) -> int:
    """Return the status of the refusal, 0 for none."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    refusal = rule({"type": "http", "path": path, "method": method}, Headers(named))
    return refusal.status_code if refusal else 0


@pytest.mark.parametrize("given", ["abc-123", "x" * 128])
async def test_an_inbound_request_id_is_kept(given: str) -> None:
    app = RequestLog(echo, Drain())
    done = await serve(app, Connection("/x", headers=[("x-request-id", given)]))
    assert done.headers["x-request-id"] == done.headers["request-id"] == given


@pytest.mark.parametrize("given", [[], ["x" * 129], ["a b"], [""], ["a\tb"]])
async def test_another_request_id_is_replaced_by_a_random_one(given: list[str]) -> None:
    app = RequestLog(echo, Drain())
    headers = [("x-request-id", value) for value in given]
    made = [
        (await serve(app, Connection("/x", headers=headers))).headers["x-request-id"]
        for _ in range(2)
    ]
    assert made[0] != made[1]
    assert all(len(identity) == 32 for identity in made)


async def test_requests_are_counted_while_they_run_and_logged_at_their_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    drain = Drain()
    counted: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        counted.append(drain.active)
        await echo(scope, receive, send)

    with caplog.at_level(logging.INFO, "turing_gateway.access"):
        await serve(RequestLog(app, drain), Connection("/v1/x"))
        await serve(RequestLog(app, drain), Connection("/metrics"))
    assert counted == [1, 1]
    assert drain.active == 0
    assert [record.getMessage().split()[:3] for record in caplog.records] == [
        ["POST", "/v1/x", "200"]
    ]


async def test_a_body_within_the_limit_passes() -> None:
    headers = [("content-length", "10")]
    done = await serve(BodyLimit(echo, 10), Connection("/x", [b"12345", b"67890"], headers=headers))
    assert (done.status, done.body) == (200, b"10")


@pytest.mark.parametrize(
    "headers", [[("content-length", "11")], [("transfer-encoding", "chunked")]]
)
async def test_a_body_over_the_limit_is_taken_to_its_end_and_refused(
    headers: list[tuple[str, str]],
) -> None:
    connection = Connection("/x", [b"12345", b"67890", b"1"], headers=headers)
    done = await serve(BodyLimit(echo, 10), connection)
    assert done.status == 413
    assert b"request_too_large" in done.body
    assert (await done.receive_now()) is None


async def test_an_early_answer_waits_for_the_body() -> None:
    headers = [("content-length", "10")]
    done = await serve(BodyLimit(ignore, 10), Connection("/x", [b"12345", b"678"], headers=headers))
    assert done.status == 404
    assert "connection" not in done.headers
    assert (await done.receive_now()) is None


async def test_an_early_answer_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "DISCARD_S", 0.01)
    headers = [("content-length", "10")]
    done = await serve(BodyLimit(ignore, 10), Connection("/x", [], headers=headers))
    assert (done.status, done.headers["connection"]) == (404, "close")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content_length": "5"}, 0),
        ({"transfer_encoding": "chunked"}, 0),
        ({"content_length": "5", "transfer_encoding": "chunked"}, 400),
    ],
)
async def test_two_framings_are_refused(headers: dict[str, str], status: int) -> None:
    assert verdict(single_framing, **headers) == status


async def test_a_refused_framing_closes_the_connection() -> None:
    headers = [("content-length", "5"), ("transfer-encoding", "chunked")]
    done = await serve(Guard(echo, single_framing), Connection("/x", headers=headers))
    assert (done.status, done.headers["connection"]) == (400, "close")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 0),
        ({"host": "127.0.0.1:8000"}, 0),
        ({"host": "localhost"}, 0),
        ({"host": "[::1]:8000"}, 0),
        ({"host": "evil.example"}, 403),
        ({"host": "localhost.evil.example"}, 403),
        ({"host": "[::1"}, 403),
        ({"host": ""}, 403),
        ({"host": "localhost", "origin": "http://localhost:3000"}, 0),
        ({"host": "localhost", "origin": "tauri://localhost"}, 0),
        ({"host": "localhost", "origin": "https://evil.example"}, 403),
        ({"host": "localhost", "origin": "http://[::1"}, 403),
        ({"host": "localhost", "origin": "null"}, 403),
    ],
)
async def test_web_pages_are_kept_away_from_loopback(headers: dict[str, str], status: int) -> None:
    assert verdict(local_only, **headers) == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Basic k3y"}, 401),
        ({"authorization": "Bearer k3y"}, 0),
        ({"authorization": "bearer  k3y"}, 0),
        ({"x_api_key": "k3y"}, 0),
        ({"x_api_key": "wrong"}, 401),
        ({"x_api_key": "k3y", "authorization": "Bearer other"}, 0),
        ({"x_api_key": "other", "authorization": "Bearer k3y"}, 0),
        ({"x_api_key": "other", "authorization": "Bearer another"}, 401),
        ({"authorization": "Bearer k3y\xe9"}, 401),
    ],
)
async def test_the_key_is_asked_for(headers: dict[str, str], status: int) -> None:
    assert verdict(bearer("k3y"), **headers) == status


@pytest.mark.parametrize("path", ["//health", "/health/", "/HEALTH", "/v1/../health", "/", "/ui"])
async def test_only_the_listed_paths_are_open(path: str) -> None:
    assert verdict(bearer("k"), path) == 401
    assert all(verdict(bearer("k"), known) == 0 for known in OPEN_PATHS)


async def test_a_drain_refuses_new_work_and_answers_probes() -> None:
    drain = Drain()
    rule = not_draining(drain)
    assert verdict(rule) == 0
    drain.started = True
    assert verdict(rule) == 503
    assert verdict(rule, method="GET") == 0


async def test_a_guard_lets_other_scopes_through() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    connection = Connection("/x")
    for wrapped in (Guard(app, bearer("k")), RequestLog(app, Drain()), BodyLimit(app, 1)):
        await wrapped({"type": "lifespan"}, connection.receive, connection.send)
    assert seen == ["lifespan"] * 3


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("LOCALHOST.", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("example.org", False),
        (None, False),
    ],
)
async def test_loopback_is_known(host: str | None, local: bool) -> None:
    assert is_loopback(host) is local


async def test_a_client_that_leaves_while_its_body_is_dropped_ends_the_request() -> None:
    connection = Connection("/x", [], headers=[("content-length", "10")])
    asyncio.get_running_loop().call_soon(connection.leave)
    done = await serve(BodyLimit(ignore, 10), connection)
    assert done.status == 404
