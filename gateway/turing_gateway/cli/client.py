"""A small blocking client for a running server, on the standard library alone."""

import http.client
import json
from collections.abc import Generator
from typing import Any
from urllib.parse import urlsplit

QUICK_S = 10.0
READ_S = 600.0
"""The longest silence in an answer; a server sends comments in between."""


class ServerError(Exception):
    """The server could not be reached or refused; its text is one line for the user."""


class Server:
    """A server's address and key. A call opens one connection and closes it when it is done."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ServerError(f"{url!r} is not an address such as http://127.0.0.1:8000")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
        self._parts = urlsplit(self.url)
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def ready(self) -> bool:
        """Whether the server says that it can answer; False too when nothing listens."""
        try:
            self.text("/health/ready")
        except ServerError:
            return False
        return True

    def models(self) -> list[str]:
        """Return the ids of what is served."""
        return [model["id"] for model in json.loads(self.text("/v1/models"))["data"]]

    def text(self, path: str) -> str:
        """Return the body of a page."""
        connection = self._open(QUICK_S)
        try:
            return self._send(connection, "GET", path, None).read().decode()
        finally:
            connection.close()

    def events(self, path: str, body: dict[str, Any]) -> Generator[dict[str, Any]]:
        """Post ``body`` and yield the JSON of each server-sent event up to ``[DONE]``.

        Closing the iterator closes the connection, which stops the answer on the server.
        """
        connection = self._open(READ_S)
        try:
            response = self._send(connection, "POST", path, json.dumps(body))
            for line in response:
                data = line.decode().removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                if line.startswith(b"data:"):
                    yield json.loads(data)
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{self.url} broke off: {_text(error)}") from None
        finally:
            connection.close()

    def _open(self, timeout: float) -> http.client.HTTPConnection:
        https = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
        return kind(self._parts.netloc, timeout=timeout)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None
    ) -> http.client.HTTPResponse:
        try:
            connection.request(method, self._parts.path + path, body, self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{self.url} cannot be reached: {_text(error)}") from None
        if response.status != 200:
            raise ServerError(f"{self.url} answered {response.status}: {_reason(response)}")
        return response


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


def _reason(response: http.client.HTTPResponse) -> str:
    body = response.read()
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.reason
