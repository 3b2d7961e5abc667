"""Tools for models whose chat template knows none: shown in the system turn, called as Hermes'."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec
from msgspec.structs import replace

from turing_gateway.call import Message, Part, Tool, ToolCall

_PREAMBLE = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def with_tools(
    messages: Sequence[Message], tools: Sequence[Tool], *, takes_system: bool
) -> list[Message]:
    """Return ``messages`` such that a template without tools shows ``tools``, calls and results.

    The tools are added to the system turn, or in front of the first turn where there can be none.
    """
    shown = list(_turns(messages))
    if not tools:
        return shown
    text = _PREAMBLE.format(tools="\n".join(map(_signature, tools)))
    first = shown[0] if shown else None
    if first is not None and first.role in ("system", "developer"):
        shown[0] = _joined(first, text, "\n\n")
    elif takes_system or first is None:
        shown.insert(0, Message(role="system", content=text))
    else:
        shown[0] = _joined(Message(role=first.role, content=text), first.content or "", "\n\n")
    return shown


def _signature(tool: Tool) -> str:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters or {"type": "object", "properties": {}},
    }
    return msgspec.json.encode({"type": "function", "function": function}).decode()


def _turns(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the turns, results of one round of calls as one turn of the user's."""
    for role, turns in groupby(messages, key=lambda message: message.role):
        if role == "tool":
            results = "\n".join(_result(turn) for turn in turns)
            yield Message(role="user", content=results)
        else:
            yield from map(_with_calls, turns)


def _result(message: Message) -> str:
    return f"<tool_response>\n{_text(message.content)}\n</tool_response>"


def _with_calls(message: Message) -> Message:
    if not message.tool_calls:
        return message
    calls = "\n".join(map(_call, message.tool_calls))
    content = _joined(message, calls, "\n") if message.content else replace(message, content=calls)
    return replace(content, tool_calls=())


def _call(call: ToolCall) -> str:
    name = msgspec.json.encode(call.name).decode()
    arguments = call.arguments or "{}"
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def _joined(message: Message, more: str | tuple[Part, ...], gap: str) -> Message:
    content = message.content or ""
    if isinstance(content, str) and isinstance(more, str):
        return replace(message, content=f"{content}{gap}{more}" if content else more)
    parts = (*_parts(content), Part("text", gap.strip("\n")), *_parts(more))
    return replace(message, content=tuple(part for part in parts if part != Part("text")))


def _parts(content: str | tuple[Part, ...]) -> tuple[Part, ...]:
    return (Part("text", content),) if isinstance(content, str) else content


def _text(content: str | tuple[Part, ...] | None) -> str:
    return "\n".join(part.text for part in _parts(content or ""))
