"""Probes."""

import pytest

from fakes.generator import Gateway, make_view
from fakes.wire import make_stats
from turing_gateway.fleet.view import EngineView, LinkState
from turing_protocol.messages import State


@pytest.mark.parametrize(
    ("view", "status"),
    [
        (make_view(), 200),
        (make_view(state=LinkState.LOST), 503),
        (make_view(stats=make_stats(state=State.LOADING)), 503),
        (make_view(stats=make_stats(state=State.BROKEN)), 503),
    ],
)
def test_health_tells_whether_an_engine_takes_work(view: EngineView, status: int) -> None:
    gateway = Gateway(views=[view])
    for path in ("/health", "/health/ready"):
        response = gateway.client.get(path)
        assert (response.status_code, response.content) == (status, b"")
    assert gateway.client.get("/health/live").status_code == 200


def test_one_ready_engine_is_enough() -> None:
    views = [make_view(state=LinkState.LOST), make_view()]
    assert Gateway(views=views).client.get("/health").status_code == 200
    assert Gateway(views=[]).client.get("/health").status_code == 503


def test_the_version_is_told() -> None:
    body = Gateway().client.get("/version").json()
    assert isinstance(body["version"], str)
    assert body["version"]
