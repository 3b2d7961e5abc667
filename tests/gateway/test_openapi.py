"""The description of the HTTP surface: nothing of it is missing, and it is true."""

import json
import re
from types import ModuleType
from typing import Any

import jsonschema
import msgspec
import pytest
from starlette.routing import Route

from fakes.generator import Gateway, fails
from turing_gateway import errors
from turing_gateway.fronts import (
    anthropic_reply,
    anthropic_types,
    ollama_types,
    openai_types,
    responses_events,
    responses_types,
    tokenize,
)
from turing_gateway.headers import REQUEST_HEADERS, RESPONSE_HEADERS, ControlsBody
from turing_gateway.openapi import ANSWERS, BODIES, PLAIN, STREAMS
from turing_protocol.errors import Code

DESCRIBED = (
    anthropic_reply,
    anthropic_types,
    errors,
    ollama_types,
    openai_types,
    responses_events,
    responses_types,
    tokenize,
)
Json = dict[str, Any]


def described(**settings: Any) -> Json:
    response = Gateway(**settings).client.get(
        "/openapi.json", headers={"authorization": "Bearer k3y"}
    )
    assert response.status_code == 200
    document: Json = response.json()
    return document


def structs(module: ModuleType) -> list[type[msgspec.Struct]]:
    """Return the structs that a module defines and does not only build others on."""
    own = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and kind.__module__ == module.__name__
    ]
    return [kind for kind in own if not any(other.__base__ is kind for other in own)]


def schema_of(document: Json, kind: type) -> Json:
    schemas: dict[str, Json] = document["components"]["schemas"]
    qualified = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"
    return schemas[qualified] if qualified in schemas else schemas[kind.__name__]


def test_every_route_is_described() -> None:
    gateway = Gateway()
    document = gateway.client.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    served = {
        (re.sub(r":\w+}", "}", route.path), method.lower())
        for route in gateway.app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert len(served) == len(gateway.app.routes)
    told = {
        (path, method) for path, operations in document["paths"].items() for method in operations
    }
    assert told == served


def test_every_operation_says_what_it_does_and_has_a_name_of_its_own() -> None:
    operations = [o for path in described()["paths"].values() for o in path.values()]
    assert all(operation["summary"].endswith(".") for operation in operations)
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)


def test_what_is_written_by_hand_is_of_routes_that_exist() -> None:
    paths = set(described()["paths"])
    assert {*BODIES, *ANSWERS, *STREAMS, *PLAIN} <= paths


def test_every_post_with_a_body_describes_it() -> None:
    fixed = {"/api/create", "/api/copy", "/api/push", "/api/blobs/{digest}"}
    bare = {
        path
        for path, operations in described()["paths"].items()
        for method, operation in operations.items()
        if method != "get" and "requestBody" not in operation
    }
    assert bare == fixed


@pytest.mark.parametrize("module", DESCRIBED, ids=lambda module: module.__name__)
def test_every_field_of_every_struct_is_described(module: ModuleType) -> None:
    document = described()
    kinds = structs(module)
    assert kinds
    for kind in kinds:
        fields = {field.encode_name for field in msgspec.structs.fields(kind)}
        tag = kind.__struct_config__.tag_field
        assert set(schema_of(document, kind)["properties"]) == fields | ({tag} if tag else set())


def test_every_schema_is_one_and_every_reference_is_to_one() -> None:
    document = described()
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    targets = set(re.findall(r'"\$ref": ?"#/components/([^"]+)"', json.dumps(document)))
    assert targets
    for target in targets:
        kind, _, name = target.partition("/")
        assert name in document["components"][kind]


def test_controls_are_headers_of_what_generates_and_renders() -> None:
    document = described()
    with_controls = {
        path
        for path, operations in document["paths"].items()
        for operation in operations.values()
        if {"$ref": "#/components/parameters/X-Turing-Lane"} in operation["parameters"]
    }
    generating = {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}
    rendering = {f"{path}/render" for path in generating} | {"/v1/messages/count_tokens"}
    dry = {"/v1/admission/check"}
    assert with_controls == generating | rendering | dry | {"/api/chat", "/api/generate"}
    assert set(document["components"]["parameters"]) == set(REQUEST_HEADERS.values())
    assert set(REQUEST_HEADERS) == set(ControlsBody.__struct_fields__)


def test_an_answer_has_the_headers_that_are_told() -> None:
    answer = Gateway().chat()
    assert all(name in answer.headers for name in RESPONSE_HEADERS)
    operation = described()["paths"]["/v1/chat/completions"]["post"]
    assert set(operation["responses"]["200"]["headers"]) == set(RESPONSE_HEADERS)


BODIES_SENT: dict[str, Json] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "n": 2},
    "/v1/completions": {"prompt": ["a", "b"], "turing": {"lane": "batch"}},
    "/v1/responses": {"input": "hi", "tools": [{"type": "function", "name": "f"}]},
    "/v1/messages": {
        "model": "fake",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "x"}],
    },
    "/api/chat": {
        "model": "fake",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": False,
    },
    "/tokenize": {"prompt": "x"},
}


@pytest.mark.parametrize("path", BODIES_SENT)
def test_bodies_that_are_taken_fit_and_others_do_not(path: str) -> None:
    document = described()
    schema = schema_of(document, BODIES[path]) | {"components": document["components"]}
    validator = jsonschema.Draft202012Validator(schema)
    assert Gateway().post(path, BODIES_SENT[path]).status_code == 200
    assert validator.is_valid(BODIES_SENT[path])
    wrong = BODIES_SENT[path] | {"model": 5}
    assert Gateway().post(path, wrong).status_code == 400
    assert not validator.is_valid(wrong)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_answers_fit_where_they_are_structs(path: str) -> None:
    document = described()
    schema = schema_of(document, ANSWERS[path]) | {"components": document["components"]}
    jsonschema.validate(Gateway().post(path, BODIES_SENT[path]).json(), schema)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/api/chat"])
def test_errors_fit(path: str) -> None:
    document = described()
    told = document["paths"][path]["post"]["responses"]["default"]
    schema = told["content"]["application/json"]["schema"]
    refused = Gateway(fails(Code.OVERLOADED)).post(path, BODIES_SENT[path])
    assert refused.status_code == 429
    jsonschema.validate(refused.json(), schema | {"components": document["components"]})


def test_a_key_is_told_of_where_it_is_asked_for() -> None:
    def asking(document: Json) -> set[str]:
        return {
            p for p, ops in document["paths"].items() if any("security" in o for o in ops.values())
        }

    assert asking(described()) == set()
    document = described(api_key="k3y")
    open_paths = {"/health", "/health/live", "/health/ready", "/metrics"}
    assert asking(document) == set(document["paths"]) - open_paths
