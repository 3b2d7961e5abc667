"""``POST /v1/chat/completions``."""

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turing_gateway.call import (
    Begin,
    Call,
    Event,
    Failure,
    Finish,
    TextDelta,
    ThinkDelta,
    TokenInfo,
    ToolDelta,
)
from turing_gateway.fronts.base import Services, read_controls
from turing_gateway.fronts.collect import Answer, Usage, collect, first_event, warned
from turing_gateway.fronts.openai_call import chat_call, refuse_chat_options, refuse_unserved
from turing_gateway.fronts.openai_reply import (
    NULL,
    Chunks,
    Identity,
    chat_logprobs,
    encode,
    ending,
    field,
    identity,
    sse,
)
from turing_gateway.fronts.openai_types import ChatBody, NamedChoice
from turing_gateway.headers import effective_headers
from turing_gateway.http import (
    EventStream,
    endpoint,
    json_response,
    read_json,
    request_id,
    until_disconnect,
)


class OpenAIChat:
    """OpenAI's chat completions."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Return the one route."""
        return [Route("/v1/chat/completions", endpoint(self.create), methods=["POST"])]

    async def create(self, request: Request) -> Response:
        """Answer one request, as one object or as a stream."""
        services = self._services
        body = await read_json(request, ChatBody)
        controls = read_controls(request, body.turing)
        call = chat_call(services, body, controls, request_id(request))
        refuse_unserved(body)
        refuse_chat_options(body)
        prompt = await services.generator.render(call) if body.return_token_ids else None
        events = services.run(call)
        first = await first_event(request.receive, events)
        headers = effective_headers(call.lane, first)
        if call.stream:
            chunks = Chunks(self._name(".chunk", call, body), "delta", body)
            writer = ChatStream(chunks, body, prompt)
            stream = sse(first, events, writer.write, chunks.end, call.request_id)
            return EventStream(stream, headers)
        work = collect(first, events, call.choices)
        answers, usage = await until_disconnect(request.receive, work)
        reply = completion(self._name("", call, body), body, answers, usage, prompt)
        return json_response(reply, headers)

    def _name(self, kind: str, call: Call, body: ChatBody) -> Identity:
        return identity(
            "chatcmpl", f"chat.completion{kind}", call, body.model, self._services.fingerprint
        )


def completion(
    name: Identity,
    body: ChatBody,
    answers: Sequence[Answer],
    usage: Usage,
    prompt: Sequence[int] | None,
) -> dict[str, Any]:
    """Return the whole answer as one object; ``prompt`` are its ids where they were asked for."""
    choices = [_choice(index, body, answer) for index, answer in enumerate(answers)]
    reply = {**msgspec.structs.asdict(name), "choices": choices, "usage": usage.openai()}
    if prompt is not None:
        reply["prompt_token_ids"] = prompt
    return reply | warned(line for answer in answers for line in answer.warnings)


def _choice(index: int, body: ChatBody, answer: Answer) -> dict[str, Any]:
    choice = {
        "index": index,
        "message": _message(body, answer),
        "logprobs": chat_logprobs(answer.tokens) if body.logprobs else None,
        "finish_reason": finish_reason(body, answer.reason),
    }
    if body.return_token_ids:
        choice["token_ids"] = answer.ids
    return choice


def _message(body: ChatBody, answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.thinking and body.include_reasoning is not False:
        message["reasoning_content"] = answer.thinking
    if answer.calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.calls
        ]
    return message


def finish_reason(body: ChatBody, reason: str) -> str:
    """Return ``reason`` as OpenAI has it: a call that the client chose is not the model's."""
    chosen = reason == "tool_calls" and isinstance(body.tool_choice, NamedChoice)
    return "stop" if chosen else reason


class ChatStream:
    """Writes the events of one call as ``chat.completion.chunk`` lines.

    Per choice: a chunk with the role, deltas, a chunk with the finish reason. ``prompt`` are the
    prompt's ids where they were asked for; they go with the first chunk.
    """

    def __init__(self, chunks: Chunks, body: ChatBody, prompt: Sequence[int] | None = None) -> None:
        self._chunks = chunks
        self._body = body
        self._thinks = body.include_reasoning is not False
        self._logprobs = body.logprobs or False
        self._ids = body.return_token_ids or False
        self._more = b"" if prompt is None else field("prompt_token_ids", prompt)

    def write(self, event: Event) -> bytes:
        """Return the chunk of ``event``; empty when the client sees nothing of it."""
        self._chunks.usage.count(event)
        match event:
            case TextDelta(choice, text, ids, tokens):
                if not (text or tokens or self._ids):
                    return b""
                delta = b'{"content":' + encode(text) + b"}"
                return self._delta(choice, delta, ids, tokens)
            case ThinkDelta(choice, text, ids):
                if not (self._thinks and (text or self._ids)):
                    return b""
                return self._delta(choice, b'{"reasoning_content":' + encode(text) + b"}", ids)
            case ToolDelta():
                delta = encode({"tool_calls": [_tool_delta(event)]})
                return self._delta(event.choice, delta, event.ids)
            case Begin():
                return self._begin(event)
            case Finish():
                reason = finish_reason(self._body, event.reason)
                finish = encode(reason)
                return self._chunks.choice(event.choice, b"{}", finish=finish, more=ending(event))
            case Failure():
                raise event.error

    def _begin(self, event: Begin) -> bytes:
        more, self._more = self._more, b""
        return self._chunks.choice(event.choice, b'{"role":"assistant","content":""}', more=more)

    def _delta(
        self,
        choice: int,
        delta: bytes,
        ids: Sequence[int] = (),
        tokens: Sequence[TokenInfo] = (),
    ) -> bytes:
        logprobs = encode(chat_logprobs(tokens)) if self._logprobs and tokens else NULL
        extra = field("token_ids", ids) if self._ids else b""
        return self._chunks.choice(choice, delta, logprobs=logprobs, extra=extra)


def _tool_delta(event: ToolDelta) -> dict[str, Any]:
    # Only the first piece names the call: strict clients take a null name for a new one.
    if not event.name:
        return {"index": event.index, "function": {"arguments": event.arguments}}
    return {
        "index": event.index,
        "id": event.id,
        "type": "function",
        "function": {"name": event.name, "arguments": event.arguments},
    }
