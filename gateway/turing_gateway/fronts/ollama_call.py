"""Ollama's bodies to Calls: options, formats, refusals, and notes on what has no effect."""

import re
from typing import Any

import msgspec

from turing_gateway.call import Call, Message, Template, Tool, ToolCall
from turing_gateway.fronts.base import Generator
from turing_gateway.fronts.formats import json_object, json_schema
from turing_gateway.fronts.ollama_types import (
    ChatBody,
    GenerateBody,
    GenerationBody,
    MessageBody,
    Options,
    ToolBody,
)
from turing_gateway.headers import Controls
from turing_gateway.http import convert
from turing_gateway.modelref import ModelRef
from turing_protocol.errors import Code, TuringError
from turing_protocol.sampling import Constraint, Sampling

LEVELS = ("low", "medium", "high", "max")
"""Values of ``think`` beside true and false."""

_DURATION = re.compile(r"[-+]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h))+)", re.ASCII)
"""A duration as Go reads it (``time.ParseDuration``)."""
_AMOUNT = re.compile(r"[1-9]")
_PENALTIES = ("repeat_penalty", "presence_penalty", "frequency_penalty")
_NEUTRAL = {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


class Notes:
    """What of a request has no effect or was changed; a strict client gets a 400 instead."""

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        self.lines: list[str] = []

    def add(self, param: str, words: str) -> None:
        """Note that ``param`` is not applied as it stands; ``words`` say what happens instead."""
        line = f"{param}: {words}"
        if self._strict:
            raise TuringError(Code.UNSUPPORTED, line, param=param)
        self.lines.append(line)


def chat_call(
    body: ChatBody, ref: ModelRef, controls: Controls, request_id: str, notes: Notes
) -> Call:
    """Return the call that a chat ``body`` with at least one message asks for."""
    messages = body.messages or []
    goes_on = bool(messages) and messages[-1].role == "assistant" and not messages[-1].tool_calls
    return Call(
        messages=tuple(_message(m, f"messages.{i}") for i, m in enumerate(messages)),
        tools=tuple(_tool(tool) for tool in body.tools or ()),
        template=Template(add_generation_prompt=not goes_on, continue_final_message=goes_on),
        **_shared(body, ref, controls, request_id, notes),
    )


def generate_call(
    body: GenerateBody, ref: ModelRef, controls: Controls, request_id: str, notes: Notes
) -> Call:
    """Return the call that a generate ``body`` with a prompt asks for, without its ``context``."""
    _refuse_generate_options(body)
    shared = _shared(body, ref, controls, request_id, notes)
    if body.raw:
        return Call(prompt=body.prompt, **shared)
    system = [Message(role="system", content=body.system)] if body.system else []
    return Call(messages=(*system, Message(role="user", content=body.prompt)), **shared)


def unloads(body: GenerationBody) -> bool:
    """Return whether ``keep_alive`` is nothing; what is no duration is ``Code.INVALID``."""
    given = body.keep_alive
    if not isinstance(given, str):
        return given == 0
    if not _DURATION.fullmatch(given):
        raise _invalid("keep_alive", f"is not a duration like 5m or 1h30m: {given[:40]!r}")
    return not _AMOUNT.search(given)


async def check_thinking(generator: Generator, body: GenerationBody, call: Call) -> None:
    """Raise ``Code.UNSUPPORTED`` where ``body`` wants a model to think that cannot."""
    if body.think and not await generator.thinks(call.model):
        raise _unsupported("think", f'"{body.model}" does not support thinking')


def _refuse_generate_options(body: GenerateBody) -> None:
    if body.raw and (body.system or body.template or body.context):
        raise _invalid("raw", "does not go with template, system or context")
    if body.suffix:
        raise _unsupported("suffix", f'"{body.model}" does not support insert')
    if body.template:
        raise _unsupported("template", "the model's own chat template is used; send raw for none")
    _refuse_images(body.images, "images")


def _shared(
    body: GenerationBody, ref: ModelRef, controls: Controls, request_id: str, notes: Notes
) -> dict[str, Any]:
    options = _options(body, notes)
    if body.top_logprobs and not body.logprobs:
        raise _invalid("top_logprobs", "needs logprobs: true")
    if body.shift:
        notes.add("shift", "the window does not slide, an answer ends where the context ends")
    limit, seed = options.num_predict, options.seed
    stop = [options.stop] if isinstance(options.stop, str) else options.stop or []
    return {
        "model": ref.name,
        "format": _format(body.format),
        "format_field": "format",
        "sampling": _sampling(options, (body.top_logprobs or 0) if body.logprobs else -1, notes),
        "max_tokens": None if limit is None or limit < 0 else limit,
        "clamp": True,
        "context": options.num_ctx or None,
        "seed": None if seed == -1 else seed,
        "stop": tuple(stop),
        "knobs": controls.knobs,
        "lane": controls.lane,
        "adapter": controls.adapter,
        "strict": controls.strict,
        "effort": _effort(body, ref),
        "stream": body.stream is not False,
        "request_id": request_id,
    }


def _options(body: GenerationBody, notes: Notes) -> Options:
    given = {name: value for name, value in (body.options or {}).items() if value is not None}
    for name in given.keys() - set(Options.__struct_fields__):
        notes.add(f"options.{name[:64]}", "has no effect here")
    options = convert(given, Options, "options")
    if options.typical_p not in (None, 1.0):
        raise _unsupported("options.typical_p", "this server has no typical sampling")
    return options


def _sampling(options: Options, logprobs: int, notes: Notes) -> Sampling:
    given = (options.temperature, options.top_k, options.top_p, options.min_p)
    defaults = (0.8, 40, 0.9, 0.0)  # Ollama's own
    chosen = [d if value is None else value for value, d in zip(given, defaults, strict=True)]
    temperature, top_k, top_p, min_p = chosen
    repeat, presence, frequency = _penalties(options, notes)
    return Sampling(
        temperature=temperature,
        top_k=max(0, int(top_k)),
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repeat,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logprobs=logprobs,
    )


def _penalties(options: Options, notes: Notes) -> list[float]:
    """Return the three penalties; all are off when they are to look back over no token."""
    if options.repeat_last_n == 0:
        return [_NEUTRAL[name] for name in _PENALTIES]
    given = [getattr(options, name) for name in _PENALTIES]
    neutral = [_NEUTRAL[name] for name in _PENALTIES]
    chosen = [n if value is None else value for value, n in zip(given, neutral, strict=True)]
    if chosen != neutral and options.repeat_last_n != -1:
        words = "penalties look back over the whole text, not over the last tokens only"
        notes.add("options.repeat_last_n", words)
    return chosen


def _format(given: str | dict[str, Any] | None) -> Constraint | None:
    if given is None or given == "":
        return None
    if isinstance(given, dict):
        return json_schema(given, "format", strict=False)
    if given == "json":
        return json_object()
    raise _invalid("format", f'must be "json" or a JSON schema, not {given[:40]!r}')


def _effort(body: GenerationBody, ref: ModelRef) -> str:
    think = body.think
    if think is None:
        return ref.effort
    if isinstance(think, str) and think not in LEVELS:
        raise _invalid("think", f"must be true, false or one of {', '.join(LEVELS)}")
    if isinstance(think, str):
        return think
    return ref.effort or "medium" if think else "none"


def _message(body: MessageBody, path: str) -> Message:
    _refuse_images(body.images, f"{path}.images")
    return Message(
        role=body.role,
        content=body.content or "",
        name=body.tool_name,
        reasoning=body.thinking or None,
        tool_calls=tuple(
            ToolCall(
                call.id or "",
                call.function.name,
                msgspec.json.encode(call.function.arguments).decode(),
            )
            for call in body.tool_calls or ()
        ),
        tool_call_id=body.tool_call_id,
    )


def _tool(body: ToolBody) -> Tool:
    function = body.function
    return Tool(
        name=function.name,
        description=function.description or "",
        parameters=function.parameters or {},
    )


def _refuse_images(images: list[Any] | None, param: str) -> None:
    if images:
        raise _unsupported(param, "this model takes text only")


def _invalid(param: str, words: str) -> TuringError:
    return TuringError(Code.INVALID, f"{param} {words}", param=param)


def _unsupported(param: str, words: str) -> TuringError:
    return TuringError(Code.UNSUPPORTED, f"{param}: {words}", param=param)
