"""``POST /tokenize`` and ``/detokenize``, in vLLM's spelling and llama.cpp's."""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turing_gateway.call import Call
from turing_gateway.fronts.base import Services, context_of, read_controls, resolve_model
from turing_gateway.fronts.openai_call import chat_call
from turing_gateway.fronts.openai_types import ChatBody, MessageBody, Natural, ToolBody
from turing_gateway.http import endpoint, json_response, read_json, request_id
from turing_protocol.errors import Code, TuringError


class TokenizeBody(Struct, kw_only=True):
    """Text (``prompt``; llama.cpp says ``content``) or a conversation."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    return_token_strs: bool | None = None
    with_pieces: bool | None = None
    messages: Annotated[list[MessageBody], Meta(min_length=1)] | None = None
    tools: Annotated[list[ToolBody], Meta(min_length=1)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: Any = None


class DetokenizeBody(Struct, kw_only=True):
    """Ids to turn into text."""

    tokens: list[Natural]
    model: str | None = None


class Tokenize:
    """The served model's tokenizer over HTTP."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Return both directions."""
        return [
            Route("/tokenize", endpoint(self.tokenize), methods=["POST"]),
            Route("/detokenize", endpoint(self.detokenize), methods=["POST"]),
        ]

    async def tokenize(self, request: Request) -> Response:
        """Return ``tokens``, their ``count``, and the longest sequence that the model takes."""
        body = await read_json(request, TokenizeBody)
        info, ref = resolve_model(self._services.generator, body.model)
        tokens = await self._ids(request, body, ref.name)
        reply: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": context_of(self._services.views, info),
            "tokens": tokens,
        }
        if body.return_token_strs:
            reply["token_strs"] = await self._pieces(ref.name, tokens)
        if body.with_pieces:
            pieces = await self._pieces(ref.name, tokens)
            pairs = zip(tokens, pieces, strict=True)
            reply["tokens"] = [{"id": token, "piece": piece} for token, piece in pairs]
        return json_response(reply)

    async def detokenize(self, request: Request) -> Response:
        """Return the text of ``tokens`` under both names; an unknown id is a 400."""
        body = await read_json(request, DetokenizeBody)
        _, ref = resolve_model(self._services.generator, body.model)
        text = await self._services.generator.detokenize(ref.name, body.tokens)
        return json_response({"prompt": text, "content": text})

    async def _pieces(self, model: str, tokens: Sequence[int]) -> list[str]:
        detokenize = self._services.generator.detokenize
        return [await detokenize(model, [token]) for token in tokens]

    async def _ids(self, request: Request, body: TokenizeBody, model: str) -> list[int]:
        if body.messages is not None:
            return await self._services.generator.render(self._chat(request, body))
        text = body.content if body.prompt is None else body.prompt
        if text is None:
            raise TuringError(Code.INVALID, "prompt or messages is required", param="prompt")
        special = body.add_special_tokens
        if special is None:
            # llama.cpp adds none unless told to, vLLM does.
            special = body.add_special if body.prompt is None else True
        return await self._services.generator.tokenize(model, text, add_special=special or False)

    def _chat(self, request: Request, body: TokenizeBody) -> Call:
        chat = ChatBody(
            model=body.model,
            messages=body.messages or [],
            tools=body.tools,
            add_special_tokens=body.add_special_tokens,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            chat_template_kwargs=body.chat_template_kwargs,
            chat_template=body.chat_template,
        )
        return chat_call(self._services, chat, read_controls(request), request_id(request))
