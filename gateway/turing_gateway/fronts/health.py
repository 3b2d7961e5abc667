"""Probes: ``/health``, ``/health/live``, ``/health/ready``, ``/version``."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turing_gateway.fronts.base import Services
from turing_gateway.http import json_response


class Health:
    """Says whether this process lives, and whether it can serve.

    Both read what is known already: a probe never waits for an engine.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Return the probes and the version."""
        return [
            Route("/health", self.ready, methods=["GET"]),
            Route("/health/ready", self.ready, methods=["GET"]),
            Route("/health/live", self.live, methods=["GET"]),
            Route("/version", self.version, methods=["GET"]),
        ]

    async def ready(self, request: Request) -> Response:
        """Return 200 when new work can be served, 503 otherwise; the body is empty."""
        return Response(status_code=200 if self._services.ready() else 503)

    async def live(self, request: Request) -> Response:
        """Return 200 as long as the process answers at all."""
        return Response(status_code=200)

    async def version(self, request: Request) -> Response:
        """Return the build's version."""
        return json_response({"version": self._services.version})
