"""What every request passes before it reaches a route, as plain ASGI classes."""

import asyncio
import hmac
import ipaddress
import logging
import re
import time
import uuid
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turing_gateway.drain import Drain
from turing_gateway.errors import refuse
from turing_gateway.http import CLIENT_CLOSED
from turing_protocol.errors import Code, TuringError

Rule = Callable[[Scope, Headers], Response | None]
"""Looks at a request and returns its refusal, or ``None`` to let it pass."""

DISCARD_S = 5.0
"""How long an early answer waits for the client to finish sending its body."""

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})
"""Paths that answer without a key: probes and scrapes carry none."""

_ID = re.compile(r"[\x21-\x7e]{1,128}", re.ASCII)
_access = logging.getLogger("turing_gateway.access")


class RequestLog:
    """Gives each request its id, counts it in flight, and logs one line when it ends.

    An inbound ``X-Request-Id`` is kept when it is printable ASCII of at most 128 characters.
    """

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self.app = app
        self.drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        identity = given if _ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = identity
        started, status = time.perf_counter(), CLIENT_CLOSED

        async def tag(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                # OpenAI's SDKs read the first, Anthropic's the second.
                headers["x-request-id"] = headers["request-id"] = identity
            await send(message)

        self.drain.enter()
        try:
            await self.app(scope, receive, tag)
        finally:
            self.drain.leave()
            took = (time.perf_counter() - started) * 1000
            path = scope["raw_path"].decode("latin-1")
            level = logging.DEBUG if scope["path"] in OPEN_PATHS else logging.INFO
            words = "%s %s %d %.1fms %s"
            _access.log(level, words, scope["method"], path, status, took, identity)


class BodyLimit:
    """Refuses bodies over ``limit`` bytes, and lets early answers reach clients that still send.

    An answer sent over an unread body would leave the server's receive queue full, which blocks
    the connection for ever; so the rest of the body is taken and dropped first.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        length = headers.get("content-length", "0")
        if length == "0" and "transfer-encoding" not in headers:
            await self.app(scope, receive, send)
            return
        body = _Body(receive, self.limit)
        try:
            refused = length.isdecimal() and int(length) > self.limit
            app = refuse(scope, body.too_large()) if refused else self.app
            await app(scope, body.receive, body.sender(send))
        finally:
            body.close()


class _Body:
    """The receiving side of one request that has a body."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._size = 0
        self._done = False
        self._rest: asyncio.Task[None] | None = None

    def too_large(self) -> TuringError:
        return TuringError(Code.TOO_LARGE, f"the body exceeds {self._limit} bytes")

    async def receive(self) -> Message:
        message = await self._receive()
        self._size += len(message.get("body", b""))
        self._done = not message.get("more_body", False)
        if self._size > self._limit:
            raise self.too_large()
        return message

    def sender(self, send: Send) -> Send:
        async def forward(message: Message) -> None:
            if message["type"] == "http.response.start" and not self._done:
                await self._discard(message)
            await send(message)

        return forward

    async def _discard(self, start: Message) -> None:
        self._rest = asyncio.create_task(self._drop())
        await asyncio.wait({self._rest}, timeout=DISCARD_S)
        if not self._rest.done():
            MutableHeaders(scope=start)["connection"] = "close"

    async def _drop(self) -> None:
        while not self._done:
            self._done = not (await self._receive()).get("more_body", False)

    def close(self) -> None:
        if self._rest:
            self._rest.cancel()


class Guard:
    """Answers a request itself when ``rule`` finds a reason to refuse it."""

    def __init__(self, app: ASGIApp, rule: Rule) -> None:
        self.app = app
        self.rule = rule

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request."""
        refusal = self.rule(scope, Headers(scope=scope)) if scope["type"] == "http" else None
        await (refusal or self.app)(scope, receive, send)


def single_framing(scope: Scope, headers: Headers) -> Response | None:
    """Refuse ``Content-Length`` beside ``Transfer-Encoding``, the way requests are smuggled.

    RFC 9112 section 6.1 lets a server reject such a message; the connection is closed.
    """
    if not ("content-length" in headers and "transfer-encoding" in headers):
        return None
    words = "Content-Length and Transfer-Encoding must not be sent together"
    return _closing(scope, TuringError(Code.INVALID, words, param="Transfer-Encoding"))


def local_only(scope: Scope, headers: Headers) -> Response | None:
    """Refuse a ``Host`` or ``Origin`` that is not this machine, which keeps web pages away.

    The first stops DNS rebinding, the second requests that a page sends across origins. Origins of
    desktop applications (schemes other than http and https) pass.
    """
    host = headers.get("host")
    if host is not None and not is_loopback(_hostname(f"//{host}")):
        return _forbidden(scope, "Host")
    origin = headers.get("origin", "")
    foreign = origin.startswith(("http:", "https:")) and not is_loopback(_hostname(origin))
    if foreign or origin == "null":
        return _forbidden(scope, "Origin")
    return None


def bearer(key: str) -> Rule:
    """Return a rule that asks for ``key`` on every path but ``OPEN_PATHS``.

    The key is accepted as ``Authorization: Bearer`` and as ``x-api-key``; of both, one must be it.
    """
    wanted = key.encode()

    def rule(scope: Scope, headers: Headers) -> Response | None:
        if scope["path"] in OPEN_PATHS:
            return None
        given = _keys(headers)
        if any(hmac.compare_digest(key.encode(), wanted) for key in given):
            return None
        words = "send the API key as Authorization: Bearer KEY or as x-api-key"
        if any(given):
            words = "the API key is wrong"
        response = refuse(scope, TuringError(Code.UNAUTHORIZED, words))
        response.headers["www-authenticate"] = "Bearer"
        return response

    return rule


def not_draining(drain: Drain) -> Rule:
    """Return a rule that refuses new work once ``drain`` has started; reads (GET) go on."""

    def rule(scope: Scope, headers: Headers) -> Response | None:
        if not drain.started or scope["method"] in ("GET", "HEAD"):
            return None
        return _closing(scope, TuringError(Code.DRAINING, "this gateway is shutting down"))

    return rule


def is_loopback(host: str | None) -> bool:
    """Whether ``host`` (a name or an address) can only mean this machine."""
    if host is None:
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") in ("localhost", "ip6-localhost")


def _keys(headers: Headers) -> tuple[str, str]:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return bearer, headers.get("x-api-key", "")


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _closing(scope: Scope, error: TuringError) -> Response:
    response = refuse(scope, error)
    response.headers["connection"] = "close"
    return response


def _forbidden(scope: Scope, name: str) -> Response:
    words = f"{name} is not of this machine; bind another address or set an API key to allow it"
    return refuse(scope, TuringError(Code.FORBIDDEN, words, param=name))
