"""Reading JSON bodies, writing event streams, and noticing that a client has gone."""

import asyncio
import functools
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turing_gateway.errors import refuse
from turing_protocol.errors import Code, TuringError

T = TypeVar("T")

KEEP_ALIVE_S = 15.0
"""Silence on a stream after which a comment is sent, so that proxies keep the connection."""
STALL_S = 60.0
"""A client that takes nothing for this long is treated as gone."""
CLIENT_CLOSED = 499
"""Status noted for a client that left before its answer (nginx's number); nobody receives it."""

Handler = Callable[[Request], Awaitable[Response]]

_log = logging.getLogger(__name__)
_WHERE = re.compile(r"(?P<what>.*) - at (`key` in )?`\$\.?(?P<path>.*)`", re.DOTALL)
_INDEX = re.compile(r"\[(\d+)\]")
_MISSING = re.compile(r"Object missing required field `(?P<field>.*)`")


async def read_json(request: Request, kind: type[T]) -> T:
    """Return the request's JSON body as a ``kind``, decoded and checked in one pass.

    What does not fit is ``Code.INVALID`` with the path of the field as ``param``. The decoder holds
    the interpreter lock, so a thread would not free the event loop: the body limit bounds the time.
    """
    body = await request.body()
    if not body:
        raise TuringError(Code.INVALID, "missing request body")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TuringError(Code.INVALID, f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise TuringError(Code.INVALID, "the body is nested too deeply") from None


def convert(value: Any, kind: type[T], path: str) -> T:
    """Return the part of a decoded body at ``path`` as a ``kind``; errors as ``read_json``."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), path) from None


def endpoint(handler: Handler) -> Handler:
    """Return ``handler`` with its failures turned into error answers of its API."""

    @functools.wraps(handler)
    async def run(request: Request) -> Response:
        try:
            return await handler(request)
        except TuringError as error:
            return refuse(request.scope, error)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED)
        except Exception:
            return refuse(request.scope, internal_error(request_id(request)))

    return run


def internal_error(request: str) -> TuringError:
    """Log the exception being handled and return what a client may know of it."""
    _log.exception("request %s failed", request)
    return TuringError(Code.INTERNAL, f"internal error; the log has it under request id {request}")


def request_id(request: Request) -> str:
    """Return the id that the outermost middleware gave to ``request``."""
    identity: str = request.state.request_id
    return identity


def json_response(body: Any, headers: Mapping[str, str] | None = None) -> Response:
    """Return ``body`` encoded as JSON with status 200."""
    return Response(msgspec.json.encode(body), headers=headers, media_type="application/json")


async def until_disconnect(receive: Receive, work: Awaitable[T]) -> T:
    """Return what ``work`` returns; if the client leaves first, cancel it.

    The request body must have been read. A client that left is ``ClientDisconnect``, raised after
    ``work`` has cleaned up.
    """
    return await _unless(_disconnected(receive), work)


class EventStream(Response):
    """A response whose body is a stream of ready-made chunks.

    The stream closes ``chunks`` when they end, when the client leaves, and when the client stalls.
    While nothing is sent for ``KEEP_ALIVE_S`` seconds, ``idle`` is.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        *,
        media_type: str = "text/event-stream",
        idle: bytes = b": keep-alive\n\n",
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", **headers}, media_type=media_type)
        del self.headers["content-length"]
        self._chunks = chunks
        self._idle = idle
        self._turn = asyncio.Lock()
        self._sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; returns early, with the connection unfinished, when the client left."""
        with suppress(ClientDisconnect):
            await until_disconnect(receive, _unless(self._stalled(send), self._pump(send)))

    async def _pump(self, send: Send) -> None:
        async with aclosing(self._chunks) as chunks:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for chunk in chunks:
                await self._write(send, chunk)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, chunk: bytes) -> None:
        async with self._turn:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        self._sent = asyncio.get_running_loop().time()

    async def _stalled(self, send: Send) -> None:
        # A comment that cannot be sent for STALL_S waits behind a chunk that cannot be sent either.
        loop = asyncio.get_running_loop()
        self._sent = loop.time()
        with suppress(TimeoutError):
            while True:
                await asyncio.sleep(self._sent + KEEP_ALIVE_S - loop.time())
                if loop.time() - self._sent >= KEEP_ALIVE_S:
                    async with asyncio.timeout(STALL_S):
                        await self._write(send, self._idle)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _unless(stop: Awaitable[None], work: Awaitable[T]) -> T:
    stopping, working = asyncio.ensure_future(stop), asyncio.ensure_future(work)
    try:
        await asyncio.wait({stopping, working}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        stopping.cancel()
        working.cancel()
        await asyncio.gather(stopping, working, return_exceptions=True)


def _invalid(text: str, root: str = "") -> TuringError:
    found = _WHERE.fullmatch(text)
    what = found["what"] if found else text
    path = _INDEX.sub(r".\1", found["path"]).removesuffix("[...]") if found else ""
    path = f"{root}.{path}".strip(".")
    missing = _MISSING.fullmatch(what)
    if missing:
        path = f"{path}.{missing['field']}" if path else missing["field"]
        return TuringError(Code.INVALID, f"{path} is required", param=path)
    what = what[:1].lower() + what[1:]
    if not path:
        return TuringError(Code.INVALID, f"the body is not valid: {what}")
    return TuringError(Code.INVALID, f"{path} is not valid: {what}", param=path)
