"""``POST /v1/responses``: OpenAI's Responses API, without anything kept between requests."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turing_gateway.fronts.base import Services, read_controls
from turing_gateway.fronts.collect import first_event, written
from turing_gateway.fronts.responses_call import named_as_here, responses_call
from turing_gateway.fronts.responses_reply import Items, gather, opening, sse
from turing_gateway.fronts.responses_types import ResponsesBody
from turing_gateway.headers import effective_headers
from turing_gateway.http import (
    EventStream,
    endpoint,
    json_response,
    read_json,
    request_id,
    until_disconnect,
)


class Responses:
    """OpenAI's responses. ``store`` has no effect: there is nothing to retrieve later."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Return the one route."""
        return [Route("/v1/responses", endpoint(self.create), methods=["POST"])]

    async def create(self, request: Request) -> Response:
        """Answer one request, as one object or as a stream."""
        body = await read_json(request, ResponsesBody)
        controls = read_controls(request, body.turing)
        with named_as_here():
            call = responses_call(self._services, body, controls, request_id(request))
            items = Items(opening(call, body))
            events = self._services.run(call)
            first = await first_event(request.receive, events)
        headers = effective_headers(call.lane, first)
        if call.stream:
            chunks = written(
                first,
                events,
                lambda event: sse(items.take(event)),
                end=bytes,
                fail=lambda error: sse(items.fail(error)),
                request_id=call.request_id,
            )
            return EventStream(chunks, headers)
        work = gather(first, events, items)
        return json_response(await until_disconnect(request.receive, work), headers)
