"""``POST …/render`` beside the endpoints that generate from messages: the ids of a prompt.

Two readers: a body without ``model`` (a person with curl) gets the short form, one with ``model``
(llm-d's router always sends it) the router's, where completions answer with an array.
"""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turing_gateway.call import Call
from turing_gateway.fronts.anthropic_call import messages_call
from turing_gateway.fronts.anthropic_types import PromptBody
from turing_gateway.fronts.base import Services, context_of, read_controls
from turing_gateway.fronts.openai_call import chat_call, text_calls
from turing_gateway.fronts.openai_types import ChatBody, TextBody
from turing_gateway.fronts.responses_call import named_as_here, responses_call
from turing_gateway.fronts.responses_types import ResponsesBody
from turing_gateway.http import endpoint, json_response, read_json, request_id


class Render:
    """Answers what a generation with the same body would prefill; needs no engine slot."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Return one route per API whose bodies can be rendered."""
        return [
            Route("/v1/chat/completions/render", endpoint(self.chat), methods=["POST"]),
            Route("/v1/completions/render", endpoint(self.text), methods=["POST"]),
            Route("/v1/messages/render", endpoint(self.messages), methods=["POST"]),
            Route("/v1/responses/render", endpoint(self.responses), methods=["POST"]),
        ]

    async def chat(self, request: Request) -> Response:
        """Return one object."""
        body = await read_json(request, ChatBody)
        controls = read_controls(request, body.turing)
        call = chat_call(self._services, body, controls, request_id(request))
        return json_response(await self._one("chatcmpl-", body.model, call, body.priority))

    async def text(self, request: Request) -> Response:
        """Return an array, one object per prompt; a person's single prompt gets the object."""
        body = await read_json(request, TextBody)
        controls = read_controls(request, body.turing)
        calls = text_calls(self._services, body, controls, request_id(request))
        replies = [await self._one("cmpl-", body.model, call, body.priority) for call in calls]
        return json_response(replies[0] if body.model is None and len(calls) == 1 else replies)

    async def messages(self, request: Request) -> Response:
        """Return one object; unlike an answer it needs neither ``model`` nor ``max_tokens``."""
        body = await read_json(request, PromptBody)
        controls = read_controls(request, body.turing)
        call = messages_call(self._services, body, controls, request_id(request))
        return json_response(await self._one("msg_", body.model, call, None))

    async def responses(self, request: Request) -> Response:
        """Return one object."""
        body = await read_json(request, ResponsesBody)
        controls = read_controls(request, body.turing)
        with named_as_here():
            call = responses_call(self._services, body, controls, request_id(request))
            return json_response(await self._one("resp_", body.model, call, None))

    async def _one(
        self, prefix: str, model: str | None, call: Call, priority: int | None
    ) -> dict[str, Any]:
        ids = await self._services.generator.render(call)
        short: dict[str, Any] = {"tokens": ids, "count": len(ids)}
        if model is None:
            return short
        return {
            "request_id": f"{prefix}{call.request_id}",
            "model": model,
            "token_ids": ids,
            **short,
            "features": None,
            "sampling_params": self._sampling(call, len(ids)),
            "stream": call.stream,
            "cache_salt": call.salt or None,
            "priority": priority or 0,
        }

    def _sampling(self, call: Call, prompt: int) -> dict[str, Any]:
        info = self._services.generator.find(call.model)
        left = max(0, context_of(self._services.views, info) - prompt)
        asked = left if call.max_tokens is None else call.max_tokens
        return {
            **msgspec.structs.asdict(call.sampling),
            "max_tokens": min(asked, left) if call.clamp else asked,
            "n": call.choices,
            "stop": call.stop,
            "seed": call.seed,
            "logit_bias": dict(call.sampling.logit_bias),
        }
