"""Anthropic's bodies to Calls: what JSON types cannot check is checked here."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from turing_gateway.call import Call, Message, Part, Template, Tool, ToolCall, ToolChoice
from turing_gateway.fronts.anthropic_types import (
    AnyChoice,
    AutoChoice,
    Block,
    DisabledThinking,
    DocumentBlock,
    EnabledThinking,
    ImageBlock,
    NamedChoice,
    NoChoice,
    PromptBody,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolAddition,
    ToolBody,
    ToolDefinition,
    ToolRemoval,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
)
from turing_gateway.fronts.base import Services, resolve_model
from turing_gateway.fronts.formats import json_schema
from turing_gateway.headers import Controls
from turing_protocol.errors import Code, TuringError
from turing_protocol.sampling import Constraint, Sampling

ATTRIBUTION = "x-anthropic-billing-header:"
"""Begins a line of Claude Code's system prompt that differs from request to request."""

_DEFAULT_EFFORT = "high"
_MEDIA = (ImageBlock, DocumentBlock)
_OF_ROLE: dict[str, tuple[type, ...]] = {
    "user": (TextBlock, ToolResultBlock),
    "assistant": (TextBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock),
    "system": (TextBlock, ToolAddition, ToolRemoval),
}


def messages_call(
    services: Services,
    body: PromptBody,
    controls: Controls,
    request_id: str,
    *,
    session: str = "",
) -> Call:
    """Return the call that ``body`` asks for; its prompt is what counting and rendering see.

    A last turn of the assistant is continued. ``max_tokens`` is cut to the context: clients send
    one number to every model.
    """
    if body.mcp_servers:
        raise _unsupported("mcp_servers", "this server does not call MCP servers")
    _, ref = resolve_model(services.generator, body.model)
    messages = tuple(_conversation(body))
    going_on = messages[-1].role == "assistant" if messages else False
    if going_on and messages[-1].tool_calls:
        raise _invalid("messages", "must not end with a tool_use that has no tool_result")
    return Call(
        model=ref.name,
        messages=messages,
        tools=_tools(body),
        tool_choice=_choice(body),
        template=Template(add_generation_prompt=not going_on, continue_final_message=going_on),
        effort=_effort(body, ref.effort),
        thinking_tokens=_budget(body),
        format=_format(body),
        format_field="output_config.format",
        sampling=_sampling(body),
        max_tokens=body.max_tokens,
        clamp=True,
        stop=tuple(body.stop_sequences or ()),
        knobs=controls.knobs,
        lane=controls.lane,
        adapter=controls.adapter,
        strict=controls.strict,
        stream=body.stream or False,
        request_id=request_id,
        session=session,
    )


# The conversation


def _conversation(body: PromptBody) -> Iterator[Message]:
    """Yield the messages: turns of one role in a row are one turn, system turns stay in place."""
    _check_blocks(body.messages)
    opening = Turn(role="system", content=list(_blocks(body.system or "")))
    turns = [opening, *_shown(body.messages)] if body.system else _shown(body.messages)
    for role, group in groupby(turns, key=lambda turn: turn.role):
        blocks = [block for turn in group for block in _blocks(turn.content)]
        if role == "assistant":
            yield _assistant(blocks)
        elif role == "system":
            yield from _system(blocks)
        else:
            yield from _user(blocks or [TextBlock()])


def _shown(turns: Sequence[Turn]) -> list[Turn]:
    """Leave out the system turns that ended with a later user turn."""
    users = [index for index, turn in enumerate(turns) if turn.role == "user"]
    last = max(users, default=-1)
    return [t for i, t in enumerate(turns) if t.clear_at != "next_user_message" or i > last]


def _blocks(content: str | Sequence[Block]) -> Sequence[Block]:
    return [TextBlock(content)] if isinstance(content, str) else content


def _check_blocks(turns: Sequence[Turn]) -> None:
    for index, turn in enumerate(turns):
        for at, block in enumerate(_blocks(turn.content)):
            path = f"messages.{index}.content.{at}"
            _check_media(block, path)
            if not isinstance(block, _OF_ROLE[turn.role]):
                kind = block.__struct_config__.tag
                raise _invalid(path, f"is {kind}, which a turn of role {turn.role} cannot hold")
            if isinstance(block, ToolResultBlock) and isinstance(block.content, list):
                for inner, piece in enumerate(block.content):
                    _check_media(piece, f"{path}.content.{inner}")


def _check_media(block: Block, path: str) -> None:
    if isinstance(block, _MEDIA):
        kind = block.__struct_config__.tag
        raise _unsupported(path, f"this model takes text only, not {kind}")


def _system(blocks: Iterable[Block]) -> Iterator[Message]:
    texts = [_without_attribution(b.text) for b in blocks if isinstance(b, TextBlock)]
    content = _content(texts)
    if content:
        yield Message(role="system", content=content)


def _without_attribution(text: str) -> str:
    """Drop the line that would give every request a prefix of its own."""
    return text.partition("\n")[2] if text.startswith(ATTRIBUTION) else text


def _user(blocks: Iterable[Block]) -> Iterator[Message]:
    for is_result, group in groupby(blocks, key=lambda b: isinstance(b, ToolResultBlock)):
        if is_result:
            yield from (_result(block) for block in group if isinstance(block, ToolResultBlock))
        else:
            texts = [block.text for block in group if isinstance(block, TextBlock)]
            yield Message(role="user", content=_content(texts))


def _result(block: ToolResultBlock) -> Message:
    texts = [piece.text for piece in _blocks(block.content or "") if isinstance(piece, TextBlock)]
    if block.is_error:
        texts.insert(0, "Error:")
    return Message(role="tool", content=_content(texts), tool_call_id=block.tool_use_id)


def _assistant(blocks: Sequence[Block]) -> Message:
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    calls = tuple(
        ToolCall(block.id, block.name, msgspec.json.encode(block.input).decode())
        for block in blocks
        if isinstance(block, ToolUseBlock)
    )
    content = _content(texts)
    return Message(
        role="assistant",
        content=None if calls and not content else content,
        reasoning="\n".join(thoughts) or None,
        tool_calls=calls,
    )


def _content(texts: Iterable[str]) -> str | tuple[Part, ...]:
    """Return text, so that a string and one block are the same; of several, the template's way."""
    given = [text for text in texts if text]
    if len(given) > 1:
        return tuple(Part("text", text) for text in given)
    return given[0] if given else ""


# Tools


def _tools(body: PromptBody) -> tuple[Tool, ...]:
    """Return the tools that the model is offered at the end of the conversation."""
    declared = {t.name: _tool(t, f"tools.{i}") for i, t in enumerate(body.tools or ())}
    deferred = {tool.name for tool in body.tools or () if tool.defer_loading}
    offered = {name: tool for name, tool in declared.items() if name not in deferred}
    for path, block in _changes(body.messages):
        if isinstance(block.tool, ToolDefinition):
            tool = _tool(block.tool.definition, f"{path}.tool.definition")
            declared[tool.name] = tool
        else:
            tool = _known(declared, block.tool.name, f"{path}.tool.name")
        if isinstance(block, ToolAddition):
            offered[tool.name] = tool
        else:
            offered.pop(tool.name, None)
    _check_choice(body, offered)
    return tuple(offered.values())


def _changes(turns: Sequence[Turn]) -> Iterator[tuple[str, ToolAddition | ToolRemoval]]:
    for index, turn in enumerate(turns):
        for at, block in enumerate(_blocks(turn.content)):
            if isinstance(block, ToolAddition | ToolRemoval):
                yield f"messages.{index}.content.{at}", block


def _tool(body: ToolBody, path: str) -> Tool:
    if body.type not in (None, "custom"):
        raise _unsupported(f"{path}.type", f"{body.type[:64]!r} does not run on this server")
    if body.input_schema is None:
        raise _invalid(f"{path}.input_schema", "is required")
    return Tool(
        name=body.name,
        description=body.description or "",
        parameters=body.input_schema,
        strict=body.strict or False,
    )


def _check_choice(body: PromptBody, offered: dict[str, Tool]) -> None:
    choice = body.tool_choice
    if isinstance(choice, AnyChoice | NamedChoice) and not offered:
        raise _invalid("tool_choice", "needs tools")
    if isinstance(choice, NamedChoice):
        _known(offered, choice.name, "tool_choice.name")


def _choice(body: PromptBody) -> ToolChoice:
    match body.tool_choice:
        case NoChoice():
            return ToolChoice(mode="none")
        case NamedChoice(name, single):
            return ToolChoice(mode="named", name=name, parallel=not single)
        case AnyChoice(single):
            return ToolChoice(mode="required", parallel=not single)
        case AutoChoice(single):
            return ToolChoice(parallel=not single)
        case None:
            return ToolChoice()


def _known(tools: dict[str, Tool], name: str, path: str) -> Tool:
    if name not in tools:
        raise _invalid(path, f"names {name[:64]!r}, which is not in tools")
    return tools[name]


# The answer


def _effort(body: PromptBody, named: str) -> str:
    """Return the reasoning effort: no thinking unless it is asked for, as in the API.

    Code written for the API takes the first block of an answer for its text.
    """
    if isinstance(body.thinking, DisabledThinking):
        return "none"
    if body.thinking is None:
        return named or "none"
    asked = body.output_config.effort if body.output_config else None
    return asked or named or _DEFAULT_EFFORT


def _budget(body: PromptBody) -> int | None:
    thinking = body.thinking
    return thinking.budget_tokens if isinstance(thinking, EnabledThinking) else None


def _format(body: PromptBody) -> Constraint | None:
    wanted = body.output_config.format if body.output_config else None
    if wanted is None:
        return None
    return json_schema(wanted.schema, "output_config.format", strict=True)


def _sampling(body: PromptBody) -> Sampling:
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=body.top_k or 0,
        top_p=1.0 if body.top_p is None else body.top_p,
    )


def _invalid(param: str, words: str) -> TuringError:
    return TuringError(Code.INVALID, f"{param} {words}", param=param)


def _unsupported(param: str, words: str) -> TuringError:
    return TuringError(Code.UNSUPPORTED, f"{param}: {words}", param=param)
