"""The blocking client, against a small real HTTP server."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from turing_gateway.cli.client import Server, ServerError


class Handler(BaseHTTPRequestHandler):
    """Answers like a server of ours; ``left`` is set when a reader of ``/endless`` goes away."""

    protocol_version = "HTTP/1.1"
    left = threading.Event()

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test output clean."""

    def reply(self, status: int, body: bytes) -> None:
        """Send one whole response."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def chunk(self, data: bytes) -> None:
        """Send one piece of a chunked response."""
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def do_GET(self) -> None:
        """Serve health and models, the latter only to who has the key."""
        if self.path == "/health/ready":
            self.reply(200, b"")
        elif self.headers["Authorization"] == "Bearer secret":
            self.reply(200, b'{"data": [{"id": "a/b"}, {"id": "c"}]}')
        else:
            self.reply(401, b'{"error": {"message": "no key"}}')

    def do_POST(self) -> None:
        """Stream the request back, split in odd places, or without end."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.path == "/endless":
            self._stream_until_the_reader_leaves()
            return
        event = b": ping\n\ndata: " + body + b"\n\n"
        for piece in (
            event[:9],
            event[9:20],
            event[20:],
            b"data: [DONE]\n\n",
            b"data: no\n\n",
            b"",
        ):
            self.chunk(piece)

    def _stream_until_the_reader_leaves(self) -> None:
        try:
            while True:
                self.chunk(b"data: {}\n\n")
        except OSError:
            self.left.set()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_a_server_is_ready_or_not(url: str) -> None:
    assert Server(url).ready()
    assert not Server(f"http://127.0.0.1:{unused_port()}").ready()


def test_models_are_listed_with_the_key(url: str) -> None:
    assert Server(url, "secret").models() == ["a/b", "c"]


def test_a_refusal_carries_the_servers_own_words(url: str) -> None:
    with pytest.raises(ServerError, match="answered 401: no key"):
        Server(url).models()


def test_a_server_that_is_not_there_is_named() -> None:
    port = unused_port()
    with pytest.raises(ServerError, match=f"http://127.0.0.1:{port} cannot be reached: "):
        Server(f"127.0.0.1:{port}").models()


def test_events_are_decoded_up_to_done(url: str) -> None:
    body = {"text": "ünïcode \u2028 here"}
    assert list(Server(url).events("/v1/x", body)) == [json.loads(json.dumps(body))]


def test_closing_the_events_closes_the_connection(url: str) -> None:
    events = Server(url).events("/endless", {})
    next(events)
    events.close()
    assert Handler.left.wait(10)


@pytest.mark.parametrize("spelt", ["http://h:1", "h:1", "http://h:1/", "http://h:1/v1", "h:1/v1/"])
def test_an_address_may_be_given_as_people_give_it(spelt: str) -> None:
    assert Server(spelt).url == "http://h:1"


@pytest.mark.parametrize("spelt", ["", "ftp://h", "http://"])
def test_what_is_no_address_is_refused(spelt: str) -> None:
    with pytest.raises(ServerError, match="is not an address such as"):
        Server(spelt)
