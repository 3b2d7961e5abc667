"""The ASGI application: routes of every front behind the checks that all requests pass."""

from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turing_gateway.drain import Drain
from turing_gateway.errors import refuse
from turing_gateway.fronts import FRONTS
from turing_gateway.fronts.base import Generator, Services, Views
from turing_gateway.http import Handler
from turing_gateway.metrics import Metrics
from turing_gateway.middleware import (
    BodyLimit,
    Guard,
    RequestLog,
    Rule,
    bearer,
    is_loopback,
    local_only,
    not_draining,
    single_framing,
)
from turing_gateway.openapi import document
from turing_gateway.settings import GatewaySettings
from turing_protocol.errors import Code, TuringError


def build_app(
    generator: Generator, views: Views, metrics: Metrics, settings: GatewaySettings, drain: Drain
) -> Starlette:
    """Return the application that serves ``generator`` under ``settings``.

    ``views`` are the engines as the gateway sees them; ``drain`` turns readiness off.
    """

    def ready() -> bool:
        served = settings.render_only or any(view.ready for view in views())
        return served and not drain.started

    services = Services(generator, metrics.watch, views, ready, build_version())
    routes = [*_routes(services), Route("/metrics", _scrape(metrics))]
    routes.append(Route("/openapi.json", _describe(routes, settings)))
    app = Starlette(
        routes=routes,
        middleware=_middleware(settings, drain),
        exception_handlers={HTTPException: _http_error},
    )
    # A path either exists or it does not: a redirect would lose the body of a POST.
    app.router.redirect_slashes = False
    return app


def build_version() -> str:
    """Return the version of the installed package; ``source`` when it runs from a checkout."""
    try:
        return version("turing-engine")
    except PackageNotFoundError:
        return "source"


def _routes(services: Services) -> list[Route]:
    return [route for name in FRONTS.names() for route in FRONTS.make(name, services).routes()]


def _middleware(settings: GatewaySettings, drain: Drain) -> list[Middleware]:
    rules: list[Rule] = [single_framing]
    if settings.api_key:
        rules.append(bearer(settings.api_key))
    elif is_loopback(settings.host):
        rules.append(local_only)
    rules.append(not_draining(drain))
    return [
        Middleware(RequestLog, drain=drain),
        Middleware(BodyLimit, limit=settings.max_body_bytes),
        *(Middleware(Guard, rule=rule) for rule in rules),
    ]


def _scrape(metrics: Metrics) -> Handler:
    async def scrape(request: Request) -> Response:
        """Return all metrics in Prometheus' text format."""
        return Response(metrics.expose(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return scrape


def _describe(routes: Sequence[Route], settings: GatewaySettings) -> Handler:
    @cache
    def described() -> bytes:
        return document(routes, build_version(), secured=bool(settings.api_key))

    async def describe(request: Request) -> Response:
        """Return this document."""
        return Response(described(), media_type="application/json")

    return describe


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer what no route answered: 404 for an unknown path, 405 for a wrong method."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 405:
        words = f"{request.method} is not allowed on {path}"
        response = refuse(request.scope, TuringError(Code.METHOD_NOT_ALLOWED, words))
    else:
        response = refuse(request.scope, TuringError(Code.NOT_FOUND, f"there is no {path}"))
    response.headers.update(error.headers or {})
    return response
