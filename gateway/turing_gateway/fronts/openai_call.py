"""OpenAI bodies to Calls: what JSON types cannot check is checked here."""

from collections.abc import Container
from typing import Any

import msgspec

from turing_gateway.call import Call, Message, Part, Template, Tool, ToolCall, ToolChoice
from turing_gateway.fronts.base import Services, resolve_model
from turing_gateway.fronts.formats import json_object, json_schema, written
from turing_gateway.fronts.openai_types import (
    DECODE_UNSERVED,
    MAX_PROMPTS,
    NEUTRAL,
    PROMPT_UNSERVED,
    AllowedChoice,
    ChatBody,
    JsonObjectFormat,
    JsonSchemaFormat,
    MessageBody,
    NamedChoice,
    PartBody,
    RefusalPart,
    SamplingBody,
    TextBody,
    TextPart,
    ToolBody,
)
from turing_gateway.headers import Controls
from turing_protocol.errors import Code, TuringError
from turing_protocol.sampling import Constraint, Sampling

FORMATS = ("response_format", "structured_outputs", "grammar")
"""Fields that ask for a form of the answer."""


def chat_call(services: Services, body: ChatBody, controls: Controls, request_id: str) -> Call:
    """Return the call that ``body`` asks for; its prompt is what a render endpoint answers."""
    # A chat template writes its special tokens itself.
    _refuse_set(body, (*PROMPT_UNSERVED, "add_special_tokens"))
    _, ref = resolve_model(services.generator, body.model)
    if body.top_logprobs is not None and not body.logprobs:
        raise _invalid("top_logprobs", "needs logprobs: true")
    max_tokens = body.max_completion_tokens or body.max_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else -1
    return Call(
        model=ref.name,
        messages=tuple(_message(m, f"messages.{i}") for i, m in enumerate(body.messages)),
        tools=_tools(body),
        tool_choice=_tool_choice(body),
        template=_template(body),
        effort=body.reasoning_effort or ref.effort,
        thinking_tokens=body.thinking_token_budget,
        max_tokens=max_tokens,
        sampling=_sampling(body, logprobs),
        **_shared(body, controls, request_id),
    )


def text_calls(
    services: Services, body: TextBody, controls: Controls, request_id: str
) -> list[Call]:
    """Return one call per prompt of ``body``, in order."""
    _refuse_set(body, PROMPT_UNSERVED)
    _, ref = resolve_model(services.generator, body.model)
    max_tokens = 16 if body.max_tokens is None else body.max_tokens
    logprobs = -1 if body.logprobs is None else body.logprobs
    base = Call(
        model=ref.name,
        effort=ref.effort,
        add_special_tokens=body.add_special_tokens is not False,
        max_tokens=max_tokens,
        sampling=_sampling(body, logprobs),
        **_shared(body, controls, request_id),
    )
    return [msgspec.structs.replace(base, prompt=p) for p in _prompts(body)]


def refuse_unserved(body: SamplingBody) -> None:
    """Raise ``Code.UNSUPPORTED`` for the first field that would change the answer and cannot."""
    _refuse_set(body, DECODE_UNSERVED)


def refuse_chat_options(body: ChatBody) -> None:
    """Raise ``Code.UNSUPPORTED`` for an echo, which only text completions have."""
    _refuse_set(body, ("echo",))


def _shared(body: SamplingBody, controls: Controls, request_id: str) -> dict[str, Any]:
    if body.stream_options is not None and not body.stream:
        raise _invalid("stream_options", "needs stream: true")
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return {
        "format": _format(body),
        "format_field": _format_field(body),
        "strict": controls.strict,
        "seed": body.seed,
        "stop": tuple(stop),
        "include_stop": body.include_stop_str_in_output or False,
        "skip_special_tokens": body.skip_special_tokens is not False,
        "knobs": controls.knobs,
        "lane": controls.lane,
        "adapter": controls.adapter,
        "choices": body.n or 1,
        "stream": body.stream or False,
        "request_id": request_id,
        "salt": body.cache_salt or "",
    }


def _sampling(body: SamplingBody, logprobs: int) -> Sampling:
    given: dict[str, Any] = {
        "min_tokens": body.min_tokens,
        "temperature": body.temperature,
        "top_k": None if body.top_k == -1 else body.top_k,
        "top_p": body.top_p,
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
        "frequency_penalty": body.frequency_penalty,
        "presence_penalty": body.presence_penalty,
        "seed": body.seed,
        "ignore_eos": body.ignore_eos,
    }
    return Sampling(
        logprobs=logprobs,
        logit_bias=_bias(body.logit_bias or {}),
        stop_ids=tuple(body.stop_token_ids or ()),
        **{name: value for name, value in given.items() if value is not None},
    )


def _bias(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    for key in given:
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise _invalid("logit_bias", f"has the key {key[:40]!r}, which is not a token id")
    return tuple((int(key), value) for key, value in given.items())


def _format_field(body: SamplingBody) -> str:
    """Return the one field that asks for a form of the answer."""
    given = [name for name in FORMATS if getattr(body, name) is not None]
    if len(given) > 1:
        raise _invalid(given[1], f"excludes {given[0]}")
    return given[0] if given else FORMATS[0]


def _format(body: SamplingBody) -> Constraint | None:
    if body.structured_outputs is not None:
        return _structured(msgspec.structs.asdict(body.structured_outputs))
    if body.grammar is not None:
        return written("grammar", body.grammar, "grammar", strict=True)
    match body.response_format:
        case JsonObjectFormat():
            return json_object()
        case JsonSchemaFormat(json_schema=wanted):
            strict = wanted.strict or False
            return json_schema(wanted.schema, "response_format", strict=strict)
        case _:
            return None


def _structured(fields: dict[str, Any]) -> Constraint:
    given = {kind: value for kind, value in fields.items() if value is not None}
    if len(given) != 1:
        raise _invalid("structured_outputs", f"needs exactly one of {', '.join(fields)}")
    kind, value = given.popitem()
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    kind = "json_schema" if kind == "json" else kind
    return written(kind, text, "structured_outputs", strict=True)


def _template(body: ChatBody) -> Template:
    going_on = body.continue_final_message or False
    if going_on and body.add_generation_prompt:
        raise _invalid("continue_final_message", "excludes add_generation_prompt: true")
    opening = not going_on if body.add_generation_prompt is None else body.add_generation_prompt
    return Template(
        add_generation_prompt=opening,
        continue_final_message=going_on,
        kwargs=body.chat_template_kwargs or {},
    )


def _message(body: MessageBody, path: str) -> Message:
    content = body.content if body.content is not None else body.refusal
    if content is None and not (body.role == "assistant" and body.tool_calls):
        raise _invalid(f"{path}.content", "is required")
    return Message(
        role=body.role,
        content=_content(content, f"{path}.content"),
        name=body.name,
        reasoning=body.reasoning_content or body.reasoning,
        tool_calls=tuple(
            ToolCall(call.id, call.function.name, _arguments(call.function.arguments))
            for call in body.tool_calls or ()
        ),
        tool_call_id=body.tool_call_id,
    )


def _content(given: str | list[PartBody] | None, path: str) -> str | tuple[Part, ...] | None:
    if not isinstance(given, list):
        return given
    return tuple(_part(part, f"{path}.{index}") for index, part in enumerate(given))


def _part(part: PartBody, path: str) -> Part:
    match part:
        case TextPart(text=text) | RefusalPart(refusal=text):
            return Part("text", text)
        case _:
            raise _unsupported(
                path, f"this model takes text only, not {part.__struct_config__.tag}"
            )


def _arguments(given: str | dict[str, Any]) -> str:
    return given if isinstance(given, str) else msgspec.json.encode(given).decode()


def _tools(body: ChatBody) -> tuple[Tool, ...]:
    """Return the tools, of which only the allowed ones are shown where the choice names some."""
    tools = {tool.function.name: _tool(tool) for tool in body.tools or ()}
    if not isinstance(body.tool_choice, AllowedChoice):
        return tuple(tools.values())
    names = [tool.function.name for tool in body.tool_choice.allowed_tools.tools]
    return tuple(tools[_known(tools, name)] for name in dict.fromkeys(names))


def _tool_choice(body: ChatBody) -> ToolChoice:
    choice, parallel = body.tool_choice, body.parallel_tool_calls is not False
    if choice not in (None, "auto", "none") and not body.tools:
        raise _invalid("tool_choice", "needs tools")
    match choice:
        case NamedChoice(function=function):
            names = [tool.function.name for tool in body.tools or ()]
            return ToolChoice(mode="named", name=_known(names, function.name), parallel=parallel)
        case AllowedChoice(allowed_tools=allowed):
            return ToolChoice(mode=allowed.mode, parallel=parallel)
        case mode:
            return ToolChoice(mode=mode or "auto", parallel=parallel)


def _known(names: Container[str], name: str) -> str:
    if name not in names:
        raise _invalid("tool_choice", f"names {name[:64]!r}, which is not in tools")
    return name


def _tool(body: ToolBody) -> Tool:
    function = body.function
    return Tool(
        name=function.name,
        description=function.description or "",
        parameters=function.parameters or {},
        strict=function.strict or False,
    )


def _prompts(body: TextBody) -> list[str | tuple[int, ...]]:
    items = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if len({type(item) for item in items}) != 1:
        raise _invalid("prompt", "must be text, token ids, or a list of one of them, and not empty")
    ids = [item for item in items if isinstance(item, int)]
    if ids:
        return [tuple(ids)]
    if len(items) > MAX_PROMPTS:
        raise _invalid("prompt", f"has more than {MAX_PROMPTS} items")
    if "" in items:
        raise _invalid("prompt", "must not be empty")
    return [tuple(item) if isinstance(item, list) else str(item) for item in items]


def _refuse_set(body: SamplingBody, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(body, name, None)
        if value is not None and value is not False and value != NEUTRAL.get(name):
            raise _unsupported(name, "this server does not support it")


def _invalid(param: str, words: str) -> TuringError:
    return TuringError(Code.INVALID, f"{param} {words}", param=param)


def _unsupported(param: str, words: str) -> TuringError:
    return TuringError(Code.UNSUPPORTED, f"{param}: {words}", param=param)
