"""``POST /v1/admission/check``: ask before you send. Nothing is booked and nothing generated."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turing_gateway.fronts.base import Services, read_controls
from turing_gateway.fronts.openai_call import chat_call
from turing_gateway.fronts.openai_types import ChatBody
from turing_gateway.http import endpoint, json_response, read_json, request_id


class Admission:
    """The dry run of ``/v1/chat/completions``."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Return the one route."""
        return [Route("/v1/admission/check", endpoint(self.check), methods=["POST"])]

    async def check(self, request: Request) -> Response:
        """Return tokens, pages, the queue and the verdict on a chat completion that came now."""
        body = await read_json(request, ChatBody)
        controls = read_controls(request, body.turing)
        call = chat_call(self._services, body, controls, request_id(request))
        found = await self._services.generator.forecast(call)
        return json_response(msgspec.structs.asdict(found))
