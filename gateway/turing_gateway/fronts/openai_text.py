"""``POST /v1/completions``: raw prompts, several at once."""

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turing_gateway.call import Begin, Call, Event, Failure, Finish, TextDelta, TokenInfo
from turing_gateway.fronts.base import Events, Services, read_controls
from turing_gateway.fronts.collect import Answer, Usage, collect, fan_out, first_event, warned
from turing_gateway.fronts.openai_call import refuse_unserved, text_calls
from turing_gateway.fronts.openai_reply import (
    NULL,
    Chunks,
    Identity,
    TextLogprobs,
    encode,
    ending,
    field,
    identity,
    sse,
)
from turing_gateway.fronts.openai_types import TextBody
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


class Prompts(msgspec.Struct, frozen=True):
    """What an answer repeats of each prompt: its text (with ``echo``) and its ids (on demand)."""

    texts: Sequence[str]
    ids: Sequence[Sequence[int]] | None = None


class OpenAIText:
    """OpenAI's text completions."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """Return the one route."""
        return [Route("/v1/completions", endpoint(self.create), methods=["POST"])]

    async def create(self, request: Request) -> Response:
        """Answer one request, as one object or as a stream."""
        body = await read_json(request, TextBody)
        controls = read_controls(request, body.turing)
        calls = text_calls(self._services, body, controls, request_id(request))
        refuse_unserved(body)
        refuse_text_options(body)
        prompts = await self._prompts(body, calls)
        name = identity("cmpl", "text_completion", calls[0], body.model, self._services.fingerprint)
        events = self._run(calls) if body.max_tokens != 0 else self._echo(calls)
        first = await first_event(request.receive, events)
        headers = effective_headers(controls.lane, first) if first.engine else {}
        if body.stream:
            chunks = Chunks(name, "text", body)
            writer = TextStream(chunks, body, prompts)
            stream = sse(first, events, writer.write, chunks.end, name.id)
            return EventStream(stream, headers)
        work = collect(first, events, calls[0].choices)
        answers, usage = await until_disconnect(request.receive, work)
        return json_response(completion(name, body, answers, usage, prompts), headers)

    async def _prompts(self, body: TextBody, calls: Sequence[Call]) -> Prompts:
        generator = self._services.generator
        texts: list[str] = []
        for call in calls if body.echo else ():
            given = call.prompt
            if not isinstance(given, str):
                given = await generator.detokenize(call.model, given or ())
            texts.append(given)
        if not body.return_token_ids:
            return Prompts(texts)
        return Prompts(texts, [await generator.render(call) for call in calls])

    def _run(self, calls: Sequence[Call]) -> Events:
        runs = [self._services.run(call) for call in calls]
        return runs[0] if len(runs) == 1 else fan_out(runs, calls[0].choices)

    async def _echo(self, calls: Sequence[Call]) -> Events:
        # max_tokens 0 asks for the prompt and its length: nothing is generated, no engine is asked.
        for index, call in enumerate(calls):
            prompt = len(await self._services.generator.render(call))
            for choice in range(index * call.choices, (index + 1) * call.choices):
                yield Begin(choice=choice, prompt_tokens=prompt, cached_tokens=0, engine="")
                yield Finish(
                    choice=choice,
                    reason="length",
                    prompt_tokens=prompt,
                    cached_tokens=0,
                    output_tokens=0,
                )


def refuse_text_options(body: TextBody) -> None:
    """Raise for what only text completions can ask for and cannot get here."""
    if body.suffix:
        raise _unsupported("suffix", "this model has no tokens for filling in the middle")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise _unsupported("best_of", "must equal n: samples are not ranked here")
    if body.echo and body.logprobs is not None:
        raise _unsupported("echo", "the prompt has no log-probabilities here; leave out logprobs")
    if body.max_tokens == 0 and not body.echo:
        raise TuringError(
            Code.INVALID, "max_tokens must be at least 1 unless echo is set", param="max_tokens"
        )


def completion(
    name: Identity, body: TextBody, answers: Sequence[Answer], usage: Usage, prompts: Prompts
) -> dict[str, Any]:
    """Return the whole answer as one object; choices are prompt-major."""
    choices = [_choice(index, body, answer, prompts) for index, answer in enumerate(answers)]
    reply = {**msgspec.structs.asdict(name), "choices": choices, "usage": usage.openai()}
    return reply | warned(line for answer in answers for line in answer.warnings)


def _choice(index: int, body: TextBody, answer: Answer, prompts: Prompts) -> dict[str, Any]:
    prompt = index // (body.n or 1)
    echo = prompts.texts[prompt] if body.echo else ""
    logprobs = None if body.logprobs is None else TextLogprobs().layout(answer.tokens)
    choice = {
        "index": index,
        "text": echo + answer.text,
        "logprobs": logprobs,
        "finish_reason": answer.reason,
    }
    if prompts.ids is not None:
        choice |= {"token_ids": answer.ids, "prompt_token_ids": prompts.ids[prompt]}
    return choice


class TextStream:
    """Writes the events of one or several calls as ``text_completion`` lines.

    Per choice: the prompt if it is to be echoed, pieces of text, a chunk with the finish reason.
    """

    def __init__(self, chunks: Chunks, body: TextBody, prompts: Prompts) -> None:
        self._chunks = chunks
        self._choices = body.n or 1
        self._echo = body.echo or False
        self._with_logprobs = body.logprobs is not None
        self._logprobs: dict[int, TextLogprobs] = {}
        self._prompts = prompts

    def write(self, event: Event) -> bytes:
        """Return the chunk of ``event``; empty when the client sees nothing of it."""
        self._chunks.usage.count(event)
        match event:
            case TextDelta(choice, text, ids, tokens):
                return self._text(choice, text, ids, tokens)
            case Begin():
                return self._begin(event.choice)
            case Finish():
                finish = encode(event.reason)
                return self._chunks.choice(event.choice, b'""', finish=finish, more=ending(event))
            case Failure():
                raise event.error
            case _:
                raise TypeError(f"{type(event).__name__} in a text completion")

    def _begin(self, choice: int) -> bytes:
        prompt = choice // self._choices
        ids = self._prompts.ids
        if not self._echo and ids is None:
            return b""
        extra = b"" if ids is None else field("prompt_token_ids", ids[prompt])
        text = self._prompts.texts[prompt] if self._echo else ""
        return self._chunks.choice(choice, encode(text), extra=extra)

    def _text(
        self, choice: int, text: str, ids: Sequence[int], tokens: Sequence[TokenInfo]
    ) -> bytes:
        with_ids = self._prompts.ids is not None
        if not (text or tokens or with_ids):
            return b""
        logprobs = NULL
        if self._with_logprobs and tokens:
            layout = self._logprobs.setdefault(choice, TextLogprobs())
            logprobs = encode(layout.layout(tokens))
        extra = field("token_ids", ids) if with_ids else b""
        return self._chunks.choice(choice, encode(text), logprobs=logprobs, extra=extra)


def _unsupported(param: str, words: str) -> TuringError:
    return TuringError(Code.UNSUPPORTED, f"{param}: {words}", param=param)
