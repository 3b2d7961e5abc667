"""``GET /openapi.json``: the HTTP surface as OpenAPI 3.1, from the routes and the bodies' structs.

Only what neither can tell is written here: which body a path takes, and what it streams.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.routing import Route

from turing_gateway.call import Forecast
from turing_gateway.errors import error_body
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
from turing_gateway.middleware import OPEN_PATHS

Json = dict[str, Any]

BODIES: dict[str, type[msgspec.Struct]] = {
    "/v1/admission/check": openai_types.ChatBody,
    "/v1/chat/completions": openai_types.ChatBody,
    "/v1/chat/completions/render": openai_types.ChatBody,
    "/v1/completions": openai_types.TextBody,
    "/v1/completions/render": openai_types.TextBody,
    "/v1/responses": responses_types.ResponsesBody,
    "/v1/responses/render": responses_types.ResponsesBody,
    "/v1/messages": anthropic_types.MessagesBody,
    "/v1/messages/count_tokens": anthropic_types.CountBody,
    "/v1/messages/render": anthropic_types.PromptBody,
    "/tokenize": tokenize.TokenizeBody,
    "/detokenize": tokenize.DetokenizeBody,
    "/api/chat": ollama_types.ChatBody,
    "/api/generate": ollama_types.GenerateBody,
    "/api/show": ollama_types.ModelBody,
    "/api/pull": ollama_types.ModelBody,
    "/api/delete": ollama_types.ModelBody,
    "/api/embed": ollama_types.EmbedBody,
    "/api/embeddings": ollama_types.EmbedBody,
}
"""Path → the JSON body that it takes."""

ANSWERS: dict[str, type[msgspec.Struct]] = {
    "/v1/admission/check": Forecast,
    "/v1/messages": anthropic_reply.Reply,
    "/v1/responses": responses_events.Reply,
}
"""Path → its answer, where that is a struct and not put together field by field."""

SSE, NDJSON, TEXT = "text/event-stream", "application/x-ndjson", "text/plain"
STREAMS: dict[str, tuple[str, Any]] = {
    "/v1/chat/completions": (SSE, None),
    "/v1/completions": (SSE, None),
    "/v1/responses": (SSE, responses_events.Event),
    "/v1/messages": (SSE, anthropic_reply.Sent),
    "/api/chat": (NDJSON, None),
    "/api/generate": (NDJSON, None),
    "/api/pull": (NDJSON, None),
}
"""Path → the media type of its stream, and the kinds of its events."""

PLAIN = {
    "/": TEXT,
    "/metrics": CONTENT_TYPE_PLAIN_0_0_4,
    "/health": "",
    "/health/live": "",
    "/health/ready": "",
}
"""Path → the media type of an answer that is not JSON; none for an empty one."""

NESTED = (*responses_types.ITEMS.values(), ollama_types.Options)
"""Parts of bodies that are checked one by one after the rest."""

_PACKAGE = "turing_gateway.fronts."
_PARAMETER = re.compile(r"\{(\w+)(:\w+)?\}")


def document(routes: Iterable[Route], version: str, *, secured: bool = False) -> bytes:
    """Return the document of ``routes`` as JSON; ``secured`` when they ask for a key."""
    served = [route for route in routes if route.methods]
    schemas = _Schemas(served)
    paths: dict[str, Json] = {}
    for route in served:
        operations = paths.setdefault(_plain(route.path), {})
        for method in _methods(route):
            operations[method] = _operation(route, method, schemas, secured=secured)
    whole = {
        "openapi": "3.1.0",
        "info": {"title": "Turing Engine", "version": version},
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "parameters": _controls(schemas.components),
            "headers": {name: {"schema": {"type": "string"}} for name in RESPONSE_HEADERS},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
    # Structs of one name are told apart by their module.
    return msgspec.json.encode(whole).replace(_PACKAGE.encode(), b"")


class _Schemas:
    """The schemas of all structs, and references to them."""

    def __init__(self, routes: Iterable[Route]) -> None:
        kinds = [*BODIES.values(), *ANSWERS.values(), *NESTED, ControlsBody]
        kinds += [events for _, events in STREAMS.values() if events is not None]
        kinds += [error_body(route.path) for route in routes]
        unique = list(dict.fromkeys(kinds))
        schemas, self.components = msgspec.json.schema_components(
            unique, ref_template="#/components/schemas/{name}"
        )
        self._of = dict(zip(unique, schemas, strict=True))

    def of(self, kind: Any) -> Json:
        """Return the schema of a struct or union; of ``None`` that of some object."""
        return {"type": "object"} if kind is None else self._of[kind]


def _plain(path: str) -> str:
    """Return ``path`` without Starlette's kinds of parameters."""
    return _PARAMETER.sub(r"{\1}", path)


def _methods(route: Route) -> list[str]:
    # Starlette answers HEAD wherever it answers GET.
    methods = set(route.methods or ())
    return sorted(m.lower() for m in methods - ({"HEAD"} if "GET" in methods else set()))


def _operation(route: Route, method: str, schemas: _Schemas, *, secured: bool) -> Json:
    path = route.path
    words = [word for word in re.split(r"\W+", _plain(path)) if word]
    operation: Json = {
        "operationId": "_".join([method, *words]),
        "summary": (route.endpoint.__doc__ or "").partition("\n")[0],
        "parameters": list(_parameters(path)),
        "responses": {
            "200": _success(path, schemas),
            "default": {
                "description": "An error, in the shape of this API; of 429 and 503 with a wait.",
                "headers": {"Retry-After": {"schema": {"type": "integer"}}},
                "content": {"application/json": {"schema": schemas.of(error_body(path))}},
            },
        },
    }
    if path in BODIES and method != "get":
        content = {"application/json": {"schema": schemas.of(BODIES[path])}}
        operation["requestBody"] = {"required": True, "content": content}
    if secured and path not in OPEN_PATHS:
        operation["security"] = [{"key": []}]
    return operation


def _parameters(path: str) -> Iterator[Json]:
    for name, _ in _PARAMETER.findall(path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    if _has_controls(path):
        for name in REQUEST_HEADERS.values():
            yield {"$ref": f"#/components/parameters/{name}"}


def _has_controls(path: str) -> bool:
    return path in BODIES and "turing" in BODIES[path].__struct_fields__


def _success(path: str, schemas: _Schemas) -> Json:
    success: Json = {"description": "Done."}
    if path in PLAIN:
        kind = PLAIN[path]
        return success | ({"content": {kind: {"schema": {"type": "string"}}}} if kind else {})
    # An array where a router renders several prompts.
    answer = {} if path == "/v1/completions/render" else schemas.of(ANSWERS.get(path))
    success["content"] = {"application/json": {"schema": answer}}
    if path in STREAMS:
        media, events = STREAMS[path]
        success["content"][media] = {"schema": schemas.of(events)}
    if _has_controls(path) and path in STREAMS:
        names = RESPONSE_HEADERS
        success["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
    return success


def _controls(components: dict[str, Any]) -> Json:
    fields = components[ControlsBody.__name__]["properties"]
    fields = {**fields, "strict": {"enum": [0, 1]}}
    return {
        header: {
            "name": header,
            "in": "header",
            "description": f"As turing.{field} in the body, which wins over it.",
            "schema": fields[field],
        }
        for field, header in REQUEST_HEADERS.items()
    }
