"""``POST /api/chat`` and ``POST /api/generate``."""

import time
from collections.abc import Sequence

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turing_gateway.call import Begin, Call
from turing_gateway.fronts.base import Events, Services, context_of, read_controls, serving
from turing_gateway.fronts.collect import first_event, written
from turing_gateway.fronts.ollama_call import (
    Notes,
    chat_call,
    check_thinking,
    generate_call,
    unloads,
)
from turing_gateway.fronts.ollama_fit import drop_old_turns, fit_tools
from turing_gateway.fronts.ollama_names import find_model
from turing_gateway.fronts.ollama_reply import NDJSON, Shape, Stream, error_line, whole
from turing_gateway.fronts.ollama_types import ChatBody, GenerateBody, GenerationBody
from turing_gateway.headers import effective_headers
from turing_gateway.http import (
    EventStream,
    endpoint,
    json_response,
    read_json,
    request_id,
    until_disconnect,
)
from turing_protocol.errors import Code, TuringError
from turing_protocol.messages import ModelInfo


class Ollama:
    """Ollama's two ways to generate. Both stream unless told otherwise."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Return the two routes."""
        return [
            Route("/api/chat", endpoint(self.chat), methods=["POST"]),
            Route("/api/generate", endpoint(self.generate), methods=["POST"]),
        ]

    async def chat(self, request: Request) -> Response:
        """Answer a conversation; one without messages loads the model."""
        begun = time.perf_counter_ns()
        body = await read_json(request, ChatBody)
        controls = read_controls(request, body.turing)
        info, ref = find_model(self._services.generator, body.model)
        shape = _shape(body, begun, chat=True)
        unload = unloads(body)
        if not body.messages:
            return self._load(info, shape, unload)
        notes = Notes(strict=controls.strict)
        call = chat_call(body, ref, controls, request_id(request), notes)
        await check_thinking(self._services.generator, body, call)
        call = await self._fit_tools(info, call, notes)
        return await self._reply(request, call, shape, notes, info, body.truncate is not False)

    async def generate(self, request: Request) -> Response:
        """Answer a prompt; an empty one loads the model."""
        begun = time.perf_counter_ns()
        body = await read_json(request, GenerateBody)
        controls = read_controls(request, body.turing)
        info, ref = find_model(self._services.generator, body.model)
        shape = _shape(body, begun, chat=False)
        unload = unloads(body)
        if not body.prompt:
            return self._load(info, shape, unload)
        notes = Notes(strict=controls.strict)
        call = generate_call(body, ref, controls, request_id(request), notes)
        await check_thinking(self._services.generator, body, call)
        if not body.raw:
            prompt = await self._with_context(info, call, body.context or ())
            shape = replace(shape, prompt=prompt)
            call = replace(call, messages=(), prompt=prompt) if body.context else call
        return await self._reply(request, call, shape, notes, info, False)

    def _load(self, info: ModelInfo, shape: Shape, unload: bool) -> Response:
        # The models are fixed: they are loaded as long as their engine runs.
        if not any(view.ready for view in serving(self._services.views, info)):
            raise TuringError(Code.NO_ENGINE, f"no engine is ready for {info.name}")
        reason = "unload" if unload else "load"
        return json_response(shape.object(done=True) | {"done_reason": reason})

    async def _fit_tools(self, info: ModelInfo, call: Call, notes: Notes) -> Call:
        return await fit_tools(self._services.generator, call, self._context(info, call), notes)

    async def _with_context(
        self, info: ModelInfo, call: Call, context: Sequence[int]
    ) -> tuple[int, ...]:
        """Return the ids of ``context``, an earlier answer's, and of ``call`` behind it."""
        if any(not 0 <= token < info.vocab_size for token in context):
            words = "context has a token that is not in the vocabulary"
            raise TuringError(Code.INVALID, words, param="context")
        ids = await self._services.generator.render(call)
        if context and ids[0] == info.bos_id:
            ids = ids[1:]  # a text begins only once
        return (*context, *ids)

    async def _reply(
        self,
        request: Request,
        call: Call,
        shape: Shape,
        notes: Notes,
        info: ModelInfo,
        truncate: bool,
    ) -> Response:
        first, events = await self._start(request, call, notes, info, truncate)
        shape = replace(shape, notes=tuple(notes.lines))
        headers = effective_headers(call.lane, first)
        if not call.stream:
            work = whole(shape, first, events)
            return json_response(await until_disconnect(request.receive, work), headers)
        stream = Stream(shape)
        lines = written(
            first,
            events,
            stream.write,
            end=lambda: b"",
            fail=error_line,
            request_id=call.request_id,
        )
        return EventStream(lines, headers, media_type=NDJSON, idle=stream.idle)

    async def _start(
        self, request: Request, call: Call, notes: Notes, info: ModelInfo, truncate: bool
    ) -> tuple[Begin, Events]:
        """Run ``call``; if it is too long and may be cut, run it again without its oldest turns."""
        generator = self._services.generator
        events = self._services.run(call)
        try:
            return await first_event(request.receive, events), events
        except TuringError as error:
            if error.code is not Code.CONTEXT_TOO_LONG or not truncate:
                raise
            shorter = await drop_old_turns(generator, call, self._context(info, call), notes)
            if shorter is None:
                raise
        events = self._services.run(shorter)
        return await first_event(request.receive, events), events

    def _context(self, info: ModelInfo, call: Call) -> int:
        longest = context_of(self._services.views, info)
        return min(longest, call.context or longest)


def _shape(body: GenerationBody, begun: int, *, chat: bool) -> Shape:
    return Shape(model=body.model, chat=chat, begun=begun, logprobs=body.logprobs or False)
