"""Codes as HTTP."""

import json

import pytest

from turing_gateway.errors import (
    envelope,
    error_response,
    ollama_error,
    refuse,
    retry_headers,
    status_of,
)
from turing_protocol.errors import Code, TuringError
from turing_protocol.lanes import Lane


@pytest.mark.parametrize("code", Code)
def test_every_code_has_a_status_and_a_whole_envelope(code: Code) -> None:
    response = error_response(TuringError(code, "words", param="field"))
    assert response.status_code == status_of(code) >= 400
    error = json.loads(bytes(response.body))["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"] == "words"
    assert error["param"] == "field"
    assert response.headers["content-type"] == "application/json"


def test_an_unknown_model_is_blamed_on_the_field_model() -> None:
    error = json.loads(envelope(TuringError(Code.MODEL_NOT_FOUND, "no such model")))["error"]
    assert (error["param"], error["code"]) == ("model", "model_not_found")


def test_an_invalid_field_has_no_code_but_names_the_field() -> None:
    error = json.loads(envelope(TuringError(Code.INVALID, "bad", param="n")))["error"]
    assert error == {
        "message": "bad",
        "type": "invalid_request_error",
        "param": "n",
        "code": None,
    }


@pytest.mark.parametrize(
    ("param", "words"), [(None, "bad x"), ("x", "bad x"), ("options.y", "options.y: bad x")]
)
def test_ollamas_one_sentence_names_the_field(param: str | None, words: str) -> None:
    status, body = ollama_error(TuringError(Code.INVALID, "bad x", param=param), "r")
    assert (status, json.loads(body)) == (400, {"error": words})


@pytest.mark.parametrize(
    ("retry_ms", "seconds", "exact"), [(0, "2", "2000"), (1, "1", "1"), (2001, "3", "2001")]
)
def test_waits_are_whole_seconds_rounded_up_beside_exact_milliseconds(
    retry_ms: int, seconds: str, exact: str
) -> None:
    headers = retry_headers(TuringError(Code.OVERLOADED, "full", retry_ms=retry_ms))
    assert headers == {"retry-after": seconds, "retry-after-ms": exact}


def test_only_shed_background_work_is_not_to_be_retried() -> None:
    shed = TuringError(Code.SHED, "shed")
    assert retry_headers(shed, Lane.BACKGROUND)["x-should-retry"] == "false"
    assert "x-should-retry" not in retry_headers(shed, Lane.BATCH)
    assert "x-should-retry" not in retry_headers(
        TuringError(Code.NO_ENGINE, "none"), Lane.BACKGROUND
    )


def test_other_failures_say_nothing_of_retries() -> None:
    assert retry_headers(TuringError(Code.INVALID, "bad", retry_ms=5)) == {}


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/messages", "anthropic"),
        ("/v1/messages/count_tokens", "anthropic"),
        ("/v1/messagesx", "openai"),
        ("/v1/models", "openai"),
        ("/", "openai"),
        ("/api/chat", "ollama"),
        ("/apis", "openai"),
    ],
)
def test_a_path_belongs_to_an_api(path: str, shape: str) -> None:
    scope = {"type": "http", "path": path, "state": {"request_id": "r1", "lane": Lane.BACKGROUND}}
    response = refuse(scope, TuringError(Code.SHED, "full", retry_ms=1200))
    assert (response.headers["retry-after"], response.headers["x-should-retry"]) == ("2", "false")
    body = json.loads(bytes(response.body))
    if shape == "anthropic":
        error = {"type": "overloaded_error", "message": "full"}
        whole = {"type": "error", "error": error, "request_id": "r1"}
        assert (response.status_code, body) == (529, whole)
    elif shape == "ollama":
        assert (response.status_code, body) == (503, {"error": "full"})
    else:
        assert (response.status_code, body["error"]["code"]) == (503, "overloaded")


ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


@pytest.mark.parametrize("code", Code)
def test_every_code_has_a_type_of_anthropics(code: Code) -> None:
    response = refuse({"type": "http", "path": "/v1/messages"}, TuringError(code, "words"))
    error = json.loads(bytes(response.body))["error"]
    assert error == {"type": ANTHROPIC[response.status_code], "message": "words"}
