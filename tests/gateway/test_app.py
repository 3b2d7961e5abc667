"""The application as a whole: routes, errors of routing, checks, render-only, drain."""

import pytest

from fakes.generator import Gateway, fails
from turing_protocol.errors import Code


def test_an_unknown_path_is_404_in_the_envelope() -> None:
    response = Gateway().client.get("/v1/nothing")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"
    assert response.headers["x-request-id"]


def test_a_wrong_method_is_405_and_says_what_is_allowed() -> None:
    response = Gateway().client.get("/v1/chat/completions")
    assert response.status_code == 405
    assert response.json()["error"]["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/v1/models/", "//v1/models", "/V1/models", "/v1/models%2F.."])
def test_a_path_is_exact(path: str) -> None:
    assert Gateway().client.get(path, follow_redirects=False).status_code == 404


def test_every_route_but_the_open_ones_asks_for_the_key() -> None:
    gateway = Gateway(api_key="k3y")
    answers = {
        (method, route.path): gateway.client.request(method, route.path).status_code  # type: ignore[attr-defined]
        for route in gateway.app.routes
        for method in ("GET", "POST", "OPTIONS", "DELETE")
    }
    free = {path for (_, path), status in answers.items() if status != 401}
    assert free == {"/health", "/health/live", "/health/ready", "/metrics"}
    response = gateway.client.get("/v1/models", headers={"authorization": "Bearer k3y"})
    assert response.status_code == 200


def test_a_foreign_host_is_refused_on_loopback_without_a_key() -> None:
    evil = {"host": "evil.example"}
    assert Gateway().client.get("/v1/models", headers=evil).status_code == 403
    assert Gateway(host="0.0.0.0").client.get("/v1/models", headers=evil).status_code == 200
    with_key = {"authorization": "Bearer k", **evil}
    assert Gateway(api_key="k").client.get("/v1/models", headers=with_key).status_code == 200


def test_no_cross_origin_reader_is_allowed() -> None:
    response = Gateway().client.get("/v1/models", headers={"origin": "http://localhost:3000"})
    assert "access-control-allow-origin" not in response.headers


def test_a_body_over_the_limit_is_413_and_the_next_request_works() -> None:
    gateway = Gateway(max_body_bytes=1024)
    response = gateway.complete(prompt="x" * 2000)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    assert gateway.complete().status_code == 200


def test_a_gateway_that_only_renders_is_healthy_without_an_engine() -> None:
    assert Gateway(render_only=True, views=[]).client.get("/health").status_code == 200
    assert Gateway(views=[]).client.get("/health").status_code == 503


def test_a_drain_turns_readiness_off_and_refuses_new_work() -> None:
    gateway = Gateway()
    gateway.drain.started = True
    assert gateway.client.get("/health/ready").status_code == 503
    assert gateway.client.get("/health/live").status_code == 200
    response = gateway.chat()
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "draining"
    assert response.headers["retry-after"] == "2"
    assert response.headers["connection"] == "close"


def test_metrics_are_plain_text() -> None:
    response = Gateway().client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "turing_num_requests_running 0.0" in response.text


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.OVERLOADED, 429),
        (Code.SHED, 503),
        (Code.NO_ENGINE, 503),
        (Code.CONTEXT_TOO_LONG, 400),
        (Code.ENGINE_LOST, 500),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_fails_before_the_first_event_is_a_status(
    code: Code, status: int, stream: bool
) -> None:
    gateway = Gateway(fails(code, "why", param="messages"))
    response = gateway.chat(stream=stream)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["message"] == "why"
    assert ("retry-after" in response.headers) == (status in (429, 503))
    assert gateway.generator.closed == 1
