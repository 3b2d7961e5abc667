"""Bodies of the Responses API to Calls: what JSON types cannot check is checked here."""

from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from turing_gateway.call import Call, Message, Part, Tool, ToolCall, ToolChoice
from turing_gateway.fronts.base import Services, resolve_model
from turing_gateway.fronts.formats import json_object, json_schema
from turing_gateway.fronts.responses_types import (
    ITEMS,
    LOGPROBS,
    UNSERVED,
    AllowedTools,
    CallInput,
    FunctionTool,
    InputText,
    Item,
    MessageInput,
    NamedTool,
    ObjectFormat,
    OutputInput,
    OutputText,
    PartBody,
    ReasoningInput,
    Refusal,
    ResponsesBody,
    SchemaFormat,
)
from turing_gateway.headers import Controls
from turing_gateway.http import convert
from turing_protocol.errors import Code, TuringError
from turing_protocol.sampling import Constraint, Sampling

_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
}
"""Fields under the names that the rest of the gateway has for them → their names here."""


def responses_call(
    services: Services, body: ResponsesBody, controls: Controls, request_id: str
) -> Call:
    """Return the call that ``body`` asks for; its prompt is what the render endpoint answers."""
    for name in UNSERVED:
        if getattr(body, name) not in (None, False, "disabled"):
            raise _unsupported(name, "this server keeps and drops nothing: send all of the input")
    if body.stream_options is not None and not body.stream:
        raise _invalid("stream_options", "needs stream: true")
    _, ref = resolve_model(services.generator, body.model)
    effort = body.reasoning.effort if body.reasoning else None
    return Call(
        model=ref.name,
        messages=_conversation(body),
        tools=_tools(body),
        tool_choice=_choice(body),
        format=_format(body),
        format_field="text.format",
        effort=effort or ref.effort,
        max_tokens=body.max_output_tokens,
        sampling=Sampling(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            logprobs=_logprobs(body),
        ),
        knobs=controls.knobs,
        lane=controls.lane,
        adapter=controls.adapter,
        strict=controls.strict,
        stream=body.stream or False,
        request_id=request_id,
        salt=body.cache_salt or "",
        session=body.prompt_cache_key or "",
    )


@contextmanager
def named_as_here() -> Iterator[None]:
    """Let errors raised inside name the field as this API calls it."""
    try:
        yield
    except TuringError as error:
        name = _NAMES.get(error.param or "")
        if name is None:
            raise
        words = error.message.replace(str(error.param), name, 1)
        raise TuringError(error.code, words, param=name, retry_ms=error.retry_ms) from None


# The conversation


def _conversation(body: ResponsesBody) -> tuple[Message, ...]:
    opening = [Message(role="system", content=body.instructions)] if body.instructions else []
    if isinstance(body.input, str):
        return (*opening, Message(role="user", content=body.input))
    return (*opening, *map(_message, _turns(_items(body.input))))


def _items(given: Sequence[dict[str, Any]]) -> Iterator[Item]:
    """Yield the items, each checked by itself and outputs against the calls before them."""
    called: set[str] = set()
    for index, fields in enumerate(given):
        path = f"input.{index}"
        item = _item(fields, path)
        match item:
            case MessageInput(content=content):
                _check_media(content, f"{path}.content")
            case CallInput(call_id):
                called.add(call_id)
            case OutputInput(call_id, output):
                _check_media(output, f"{path}.output")
                if call_id not in called:
                    words = f"is {call_id[:64]!r}, which no item before it called"
                    raise _invalid(f"{path}.call_id", words)
            case ReasoningInput():
                pass
        yield item


def _item(fields: dict[str, Any], path: str) -> Item:
    kind = fields.get("type", "message" if "role" in fields else None)
    if kind is None:
        raise _invalid(f"{path}.type", "is required")
    known = ITEMS.get(kind) if isinstance(kind, str) else None
    if known is None:
        words = f"must be one of {', '.join(ITEMS)} here, not {str(kind)[:64]!r}"
        raise _invalid(f"{path}.type", words)
    return convert({**fields, "type": kind}, known, path)


def _check_media(content: str | Sequence[PartBody], path: str) -> None:
    for index, part in enumerate(content):
        if not isinstance(part, str | InputText | OutputText | Refusal):
            kind = part.__struct_config__.tag
            raise _unsupported(f"{path}.{index}", f"this model takes text only, not {kind}")


def _turns(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Group the items: what the model left of one turn is one message to its template."""
    turn: list[Item] = []
    for item in items:
        if turn and not _goes_on(turn, item):
            yield turn
            turn = []
        turn.append(item)
    if turn:
        yield turn


def _goes_on(turn: Sequence[Item], item: Item) -> bool:
    """Whether ``item`` belongs to the turn: thoughts, then at most one message, then calls."""
    if not (_by_model(turn[-1]) and _by_model(item)):
        return False
    return isinstance(item, CallInput) or isinstance(turn[-1], ReasoningInput)


def _by_model(item: Item) -> bool:
    match item:
        case MessageInput(role=role):
            return role == "assistant"
        case _:
            return isinstance(item, CallInput | ReasoningInput)


def _message(turn: Sequence[Item]) -> Message:
    match turn[0]:
        case MessageInput(role, content) if role != "assistant":
            return Message(role=role, content=_content(content))
        case OutputInput(call_id, output):
            return Message(role="tool", content=_content(output), tool_call_id=call_id)
    texts = [item.content for item in turn if isinstance(item, MessageInput)]
    thoughts = [text for item in turn if isinstance(item, ReasoningInput) for text in _texts(item)]
    calls = [ToolCall(i.call_id, i.name, i.arguments) for i in turn if isinstance(i, CallInput)]
    return Message(
        role="assistant",
        content=_content(texts[0]) if texts else None if calls else "",
        reasoning="\n".join(thoughts) or None,
        tool_calls=tuple(calls),
    )


def _content(given: str | Sequence[PartBody]) -> str | tuple[Part, ...]:
    return given if isinstance(given, str) else tuple(Part("text", _text(part)) for part in given)


def _text(part: PartBody) -> str:
    match part:
        case InputText(text) | OutputText(text) | Refusal(text):
            return text
        case _:
            raise TypeError(f"{part.__struct_config__.tag} has no text")


def _texts(item: ReasoningInput) -> list[str]:
    return [piece.text for piece in item.content or item.summary or ()]


# The answer


def _tools(body: ResponsesBody) -> tuple[Tool, ...]:
    """Return the tools, of which only the allowed ones are shown where the choice names some."""
    tools = {tool.name: _tool(tool) for tool in body.tools or ()}
    if not isinstance(body.tool_choice, AllowedTools):
        return tuple(tools.values())
    names = dict.fromkeys(tool.name for tool in body.tool_choice.tools)
    return tuple(tools[_known(tools, name)] for name in names)


def _tool(body: FunctionTool) -> Tool:
    return Tool(
        name=body.name,
        description=body.description or "",
        parameters=body.parameters or {},
        strict=body.strict or False,
    )


def _choice(body: ResponsesBody) -> ToolChoice:
    choice, parallel = body.tool_choice, body.parallel_tool_calls is not False
    if choice not in (None, "auto", "none") and not body.tools:
        raise _invalid("tool_choice", "needs tools")
    match choice:
        case NamedTool(name):
            known = _known([tool.name for tool in body.tools or ()], name)
            return ToolChoice(mode="named", name=known, parallel=parallel)
        case AllowedTools(mode=mode):
            return ToolChoice(mode=mode, parallel=parallel)
        case mode:
            return ToolChoice(mode=mode or "auto", parallel=parallel)


def _known(names: Container[str], name: str) -> str:
    if name not in names:
        raise _invalid("tool_choice", f"names {name[:64]!r}, which is not in tools")
    return name


def _format(body: ResponsesBody) -> Constraint | None:
    match body.text.format if body.text else None:
        case ObjectFormat():
            return json_object()
        case SchemaFormat(schema=schema, strict=strict):
            return json_schema(schema, "text.format", strict=strict or False)
        case _:
            return None


def _logprobs(body: ResponsesBody) -> int:
    if LOGPROBS in (body.include or ()):
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise _invalid("top_logprobs", f"needs {LOGPROBS} in include")
    return -1


def _invalid(param: str, words: str) -> TuringError:
    return TuringError(Code.INVALID, f"{param} {words}", param=param)


def _unsupported(param: str, words: str) -> TuringError:
    return TuringError(Code.UNSUPPORTED, f"{param}: {words}", param=param)
