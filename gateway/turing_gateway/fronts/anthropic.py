"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``: Anthropic's Messages API."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turing_gateway.fronts.anthropic_call import messages_call
from turing_gateway.fronts.anthropic_reply import PING, Blocks, error_event, gather, sse
from turing_gateway.fronts.anthropic_types import (
    AdaptiveThinking,
    CountBody,
    EnabledThinking,
    MessagesBody,
)
from turing_gateway.fronts.base import Services, read_controls
from turing_gateway.fronts.collect import first_event, written
from turing_gateway.headers import effective_headers
from turing_gateway.http import (
    EventStream,
    endpoint,
    json_response,
    read_json,
    request_id,
    until_disconnect,
)

SESSION = "X-Claude-Code-Session-Id"
"""Names a conversation, which is worth keeping on the engine that has its pages."""


class Anthropic:
    """Anthropic's messages, for every API version: what they differ in is accepted in all."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Return the routes; that of the models is another front's, which serves both APIs."""
        return [
            Route("/v1/messages", endpoint(self.create), methods=["POST"]),
            Route("/v1/messages/count_tokens", endpoint(self.count), methods=["POST"]),
        ]

    async def create(self, request: Request) -> Response:
        """Answer one request, as one object or as a stream."""
        body = await read_json(request, MessagesBody)
        controls = read_controls(request, body.turing)
        identity, session = request_id(request), request.headers.get(SESSION, "")
        call = messages_call(self._services, body, controls, identity, session=session)
        blocks = Blocks(call, body.model, omit_thinking=_omits_thinking(body))
        events = self._services.run(call)
        first = await first_event(request.receive, events)
        headers = effective_headers(call.lane, first)
        if call.stream:
            chunks = written(
                first,
                events,
                lambda event: sse(blocks.take(event)),
                end=bytes,
                fail=lambda error: error_event(error, identity),
                request_id=identity,
            )
            return EventStream(chunks, headers, idle=PING)
        work = gather(first, events, blocks)
        return json_response(await until_disconnect(request.receive, work), headers)

    async def count(self, request: Request) -> Response:
        """Return the tokens of the prompt, which are those that an answer's usage counts."""
        body = await read_json(request, CountBody)
        controls = read_controls(request, body.turing)
        call = messages_call(self._services, body, controls, request_id(request))
        ids = await self._services.generator.render(call)
        return json_response({"input_tokens": len(ids)})


def _omits_thinking(body: MessagesBody) -> bool:
    match body.thinking:
        case EnabledThinking(display=display) | AdaptiveThinking(display=display):
            return display == "omitted"
        case _:
            return False
