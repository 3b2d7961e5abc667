"""A client that leaves frees what it held, streaming or not, running or queued."""

import json
import socket
from collections.abc import Iterator

import pytest

from e2e.asking import complete
from e2e.processes import Served, serving, until

ENDLESS = 100_000
"""Tokens: at 5 ms each, far more than any test waits for."""


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that runs one sequence at a time."""
    flags = ("--model", "scripted:delay_ms=5", "--max-batch-size", "1")
    with serving(tmp_path_factory.mktemp("slow"), *flags) as served:
        yield served


def post(served: Served, *, stream: bool) -> socket.socket:
    body = {"model": "scripted", "prompt": "abc", "max_tokens": ENDLESS, "stream": stream}
    data = json.dumps(body).encode()
    host, port = served.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def running(served: Served) -> float:
    return served.metric("turing_num_requests_running")


def waiting(served: Served) -> float:
    return served.metric("turing_num_requests_waiting")


def idle(served: Served) -> bool:
    held = served.metric("turing_kv_cache_usage_perc")
    return running(served) == waiting(served) == held == 0


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "plain"])
def test_a_running_request_ends_when_its_client_leaves(slow: Served, stream: bool) -> None:
    connection = post(slow, stream=stream)
    until(lambda: running(slow) == 1, "the request")
    connection.close()
    until(lambda: idle(slow), "an idle engine")


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "plain"])
def test_a_queued_request_leaves_the_queue_with_its_client(slow: Served, stream: bool) -> None:
    first = post(slow, stream=True)
    until(lambda: running(slow) == 1, "the first request")
    second = post(slow, stream=stream)
    until(lambda: waiting(slow) == 1, "the second request")
    second.close()
    until(lambda: waiting(slow) == 0, "an empty queue")
    assert running(slow) == 1
    first.close()
    until(lambda: idle(slow), "an idle engine")


def test_a_request_after_many_that_left_is_served(slow: Served) -> None:
    for _ in range(20):
        post(slow, stream=True).close()
    assert complete(slow.client(), "abc", max_tokens=5).usage[1] == 5
    until(lambda: idle(slow), "an idle engine")
