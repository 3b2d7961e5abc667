"""Management calls: nothing changes, and every refusal says why."""

import json
from typing import Any

import pytest

from fakes.generator import Gateway


@pytest.mark.parametrize("key", ["model", "name"])
def test_a_pull_of_a_served_model_succeeds(key: str) -> None:
    gateway = Gateway()
    streamed = gateway.post("/api/pull", {key: "FAKE:latest"})
    assert streamed.headers["content-type"] == "application/x-ndjson"
    assert streamed.text == '{"status":"success"}\n'
    plain = gateway.post("/api/pull", {key: "fake", "stream": False})
    assert plain.headers["content-type"] == "application/json"
    assert json.loads(plain.text) == {"status": "success"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_pull_of_another_is_404(stream: bool) -> None:
    reply = Gateway().post("/api/pull", {"model": "nope", "stream": stream})
    assert reply.status_code == 404
    assert "'nope' not found" in reply.json()["error"]


FIXED: list[tuple[str, str, dict[str, Any], int]] = [
    ("POST", "/api/create", {"model": "x", "from": "fake"}, 403),
    ("POST", "/api/push", {"model": "fake"}, 403),
    ("POST", "/api/copy", {"source": "fake", "destination": "x"}, 403),
    ("POST", "/api/blobs/sha256:00", {}, 403),
    ("DELETE", "/api/delete", {"model": "fake"}, 403),
    ("DELETE", "/api/delete", {"model": "nope"}, 404),
    ("DELETE", "/api/delete", {}, 400),
    ("POST", "/api/pull", {}, 400),
]


@pytest.mark.parametrize(("method", "path", "body", "status"), FIXED)
def test_models_cannot_be_changed(
    method: str, path: str, body: dict[str, Any], status: int
) -> None:
    reply = Gateway().client.request(method, path, json=body)
    assert reply.status_code == status
    assert list(reply.json()) == ["error"]
    if status == 403:
        assert reply.json()["error"] == "this server has a fixed set of models"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/embed", {"input": "a"}),
        ("/api/embed", {"input": ["a", "b"]}),
        ("/api/embeddings", {"prompt": "a"}),
    ],
)
def test_embeddings_are_not_implemented(path: str, body: dict[str, Any]) -> None:
    reply = Gateway().post(path, {"model": "fake"} | body)
    assert reply.status_code == 501
    assert reply.json() == {"error": '"fake" does not support embeddings here'}


@pytest.mark.parametrize(
    ("body", "status"),
    [({"model": "nope", "input": "a"}, 404), ({"model": "fake", "input": [5]}, 400), ({}, 400)],
)
def test_bad_embedding_requests(body: dict[str, Any], status: int) -> None:
    assert Gateway().post("/api/embed", body).status_code == status
