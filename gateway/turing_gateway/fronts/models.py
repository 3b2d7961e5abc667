"""``GET /v1/models``: what is served, in entries for OpenAI's and Anthropic's clients at once."""

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turing_gateway.fronts.base import Services, context_of
from turing_gateway.http import endpoint, json_response
from turing_protocol.messages import ModelInfo


class Models:
    """The list of models; aliases are entries of their own with the real name as ``root``.

    Everything is on one page, whatever ``limit`` an Anthropic client asks for.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Return the list and the single entry; an id may hold slashes, plain or as %2F."""
        return [
            Route("/v1/models", endpoint(self.list), methods=["GET"]),
            Route("/v1/models/{name:path}", endpoint(self.retrieve), methods=["GET"]),
        ]

    async def list(self, request: Request) -> Response:
        """Return every served name."""
        entries = [
            self._entry(name, info)
            for info in self._services.generator.models()
            for name in (info.name, *info.aliases)
        ]
        ids = [entry["id"] for entry in entries]
        page = {
            "object": "list",
            "data": entries,
            "has_more": False,
            "first_id": ids[0] if ids else None,
            "last_id": ids[-1] if ids else None,
        }
        return json_response(page)

    async def retrieve(self, request: Request) -> Response:
        """Return one entry, or 404."""
        name = request.path_params["name"]
        return json_response(self._entry(name, self._services.generator.find(name)))

    def _entry(self, name: str, info: ModelInfo) -> dict[str, Any]:
        context = context_of(self._services.views, info)
        return {
            "id": name,
            "object": "model",
            "created": int(info.modified),
            "owned_by": "turing",
            "root": info.name,
            "parent": None,
            "max_model_len": context,
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(int(info.modified), UTC).isoformat(),
            "lifecycle": "active",
            "max_input_tokens": context,
            "max_tokens": context,
        }
