"""One raw request against an ASGI application, with the client's side under a test's control."""

import asyncio
from collections.abc import Iterable
from typing import Any

from starlette.types import ASGIApp, Message, Scope


class Connection:
    """A request whose client sends the pieces of ``body`` and stays until ``leave``.

    Without pieces its body never ends.
    """

    def __init__(
        self,
        path: str,
        body: Iterable[bytes] = (b"",),
        *,
        method: str = "POST",
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.sent: list[Message] = []
        self._pieces = list(body)
        self._gone = asyncio.Event()
        names = [(name.encode(), value.encode()) for name, value in headers]
        self.scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.1"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"127.0.0.1:8000"), *names],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
        }

    def leave(self) -> None:
        """Close the connection as a client does."""
        self._gone.set()

    async def receive(self) -> Message:
        """Return the next piece of the body, then wait for the client to leave."""
        if self._pieces:
            piece = self._pieces.pop(0)
            more = bool(self._pieces)
            return {"type": "http.request", "body": piece, "more_body": more}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def receive_now(self) -> Message | None:
        """Return what ``receive`` has without waiting, ``None`` for nothing."""
        return await self.receive() if self._pieces or self._gone.is_set() else None

    async def send(self, message: Message) -> None:
        """Keep what the application sends."""
        self.sent.append(message)

    async def serve(self, app: ASGIApp) -> None:
        """Run the application for this request."""
        await app(self.scope, self.receive, self.send)

    async def until_sent(self, count: int) -> None:
        """Wait until the application has sent ``count`` messages."""
        while len(self.sent) < count:
            await asyncio.sleep(0)

    @property
    def status(self) -> int:
        """The status of the answer."""
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        raw: list[tuple[bytes, bytes]] = self.sent[0]["headers"]
        return {name.decode(): value.decode() for name, value in raw}

    @property
    def body(self) -> bytes:
        """All of the answer's body so far."""
        return b"".join(message.get("body", b"") for message in self.sent[1:])


def json_headers(**more: Any) -> list[tuple[str, str]]:
    """Return the headers of a JSON body, and more with underscores for dashes."""
    extra = [(name.replace("_", "-"), str(value)) for name, value in more.items()]
    return [("content-type", "application/json"), *extra]
