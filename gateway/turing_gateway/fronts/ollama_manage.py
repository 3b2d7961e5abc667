"""Ollama's endpoints for what this server does not do: change its models, embed text.

The models are fixed when the engines start. A pull of one that is there has nothing left to do and
succeeds, since launchers pull before they chat; everything else is refused by its true reason.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turing_gateway.fronts.base import Services
from turing_gateway.fronts.ollama_names import find_model
from turing_gateway.fronts.ollama_reply import NDJSON, line
from turing_gateway.fronts.ollama_types import EmbedBody, ModelBody
from turing_gateway.http import endpoint, json_response, read_json
from turing_protocol.errors import Code, TuringError

FIXED = "this server has a fixed set of models"


class OllamaManage:
    """Answers management calls without ever changing a model."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Return the routes that change models on an Ollama server, and the embeddings."""
        fixed = endpoint(self.fixed)
        return [
            Route("/api/pull", endpoint(self.pull), methods=["POST"]),
            Route("/api/delete", endpoint(self.delete), methods=["DELETE"]),
            Route("/api/create", fixed, methods=["POST"]),
            Route("/api/copy", fixed, methods=["POST"]),
            Route("/api/push", fixed, methods=["POST"]),
            Route("/api/blobs/{digest}", fixed, methods=["POST"]),
            Route("/api/embed", endpoint(self.embed), methods=["POST"]),
            Route("/api/embeddings", endpoint(self.embed), methods=["POST"]),
        ]

    async def pull(self, request: Request) -> Response:
        """Succeed for a served model, 404 for another."""
        body = await read_json(request, ModelBody)
        find_model(self._services.generator, body.asked)
        done = {"status": "success"}
        return (
            json_response(done) if body.stream is False else Response(line(done), 200, None, NDJSON)
        )

    async def delete(self, request: Request) -> Response:
        """Refuse to delete a served model; 404 for another."""
        body = await read_json(request, ModelBody)
        find_model(self._services.generator, body.asked)
        raise TuringError(Code.FORBIDDEN, FIXED, param="model")

    async def fixed(self, request: Request) -> Response:
        """Refuse."""
        raise TuringError(Code.FORBIDDEN, FIXED)

    async def embed(self, request: Request) -> Response:
        """Refuse with 501, as Ollama does for a model that only completes text."""
        body = await read_json(request, EmbedBody)
        info, _ = find_model(self._services.generator, body.asked)
        words = f'"{info.name}" does not support embeddings here'
        return Response(
            msgspec.json.encode({"error": words}), status_code=501, media_type="application/json"
        )
