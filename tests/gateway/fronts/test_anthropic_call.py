"""Anthropic's bodies to Calls: conversations, tools, thinking, and what is refused."""

from typing import Any

import msgspec
import pytest

from fakes.generator import Gateway
from turing_gateway.call import Call, Message, Part, Tool, ToolCall, ToolChoice
from turing_gateway.fronts.anthropic_call import messages_call
from turing_gateway.fronts.anthropic_types import PromptBody
from turing_gateway.fronts.base import Services
from turing_gateway.headers import Controls
from turing_protocol.errors import Code, TuringError
from turing_protocol.sampling import Constraint

USER = {"role": "user", "content": "hi"}
ADD = {"name": "add", "description": "adds", "input_schema": {"type": "object"}}
SUB = {"name": "sub", "input_schema": {}, "defer_loading": True}


def body_of(fields: dict[str, Any]) -> PromptBody:
    return msgspec.convert({"model": "fake", "messages": [USER]} | fields, PromptBody)


def call_of(**fields: Any) -> Call:
    gateway = Gateway()
    services = Services(
        gateway.generator, gateway.metrics.watch, lambda: gateway.views, lambda: True, "x"
    )
    return messages_call(services, body_of(fields), Controls(), "r1", session="s1")


def refusal(**fields: Any) -> TuringError:
    with pytest.raises(TuringError) as caught:
        call_of(**fields)
    assert caught.value.param is not None
    assert caught.value.param in caught.value.message
    return caught.value


def messages(*turns: tuple[str, Any], **fields: Any) -> list[Message]:
    given = [{"role": role, "content": content} for role, content in turns]
    return list(call_of(messages=given, **fields).messages)


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **fields}


def test_the_plain_fields() -> None:
    call = call_of(
        max_tokens=7,
        stop_sequences=["a", "b"],
        temperature=0.5,
        top_k=5,
        top_p=0.9,
        stream=True,
    )
    assert (call.model, call.max_tokens, call.clamp) == ("fake", 7, True)
    assert (call.stop, call.stream, call.request_id, call.session) == (("a", "b"), True, "r1", "s1")
    sampling = call.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 5, 0.9)


def test_the_defaults_are_those_of_the_api() -> None:
    call = call_of()
    assert call.messages == (Message(role="user", content="hi"),)
    assert (call.sampling.temperature, call.sampling.top_k, call.sampling.top_p) == (1.0, 0, 1.0)
    assert (call.stop, call.stream, call.tools, call.format) == ((), False, (), None)
    assert call.template.add_generation_prompt
    assert not call.template.continue_final_message


def test_a_string_and_one_block_are_the_same() -> None:
    assert messages(("user", [text("hi", cache_control={"type": "ephemeral"})])) == messages(
        ("user", "hi")
    )
    assert messages(("user", "hi"), system=[text("be")]) == messages(("user", "hi"), system="be")


def test_several_blocks_stay_apart_and_empty_ones_are_left_out() -> None:
    (message,) = messages(("user", [text("a"), text(""), text("b")]))
    assert message.content == (Part("text", "a"), Part("text", "b"))
    assert messages(("user", [])) == messages(("user", "")) == [Message(role="user", content="")]


def test_turns_of_one_role_are_joined() -> None:
    joined = messages(("user", "a"), ("user", [text("b")]), ("assistant", "c"), ("user", "d"))
    assert [(m.role, m.content) for m in joined] == [
        ("user", (Part("text", "a"), Part("text", "b"))),
        ("assistant", "c"),
        ("user", "d"),
    ]


def test_system_turns_stay_in_place() -> None:
    turns = messages(("user", "a"), ("system", "s"), ("user", "b"), ("system", "t"), system="top")
    assert [(m.role, m.content) for m in turns] == [
        ("system", "top"),
        ("user", "a"),
        ("system", "s"),
        ("user", "b"),
        ("system", "t"),
    ]


def test_a_system_turn_may_end_with_the_next_user_turn() -> None:
    passing = {"role": "system", "content": "s", "clear_at": "next_user_message"}
    roles = [m.role for m in call_of(messages=[USER, passing]).messages]
    assert roles == ["user", "system"]
    (user,) = call_of(messages=[USER, passing, USER]).messages
    assert user.content == (Part("text", "hi"), Part("text", "hi"))


LINE = "x-anthropic-billing-header: cc_version=2; cch=abc;"


@pytest.mark.parametrize("system", [[text(LINE), text("be")], f"{LINE}\nbe", [text(LINE + "\nbe")]])
def test_the_attribution_line_is_dropped(system: Any) -> None:
    first, _ = messages(("user", "hi"), system=system)
    assert first == Message(role="system", content="be")


def test_a_system_prompt_of_nothing_else_is_none() -> None:
    assert messages(("user", "hi"), system=[text(LINE)]) == [Message(role="user", content="hi")]


def test_a_last_turn_of_the_assistant_is_continued() -> None:
    call = call_of(messages=[USER, {"role": "assistant", "content": "The"}])
    assert call.template.continue_final_message
    assert not call.template.add_generation_prompt


def test_a_tool_round() -> None:
    turns = messages(
        ("user", "1+1?"),
        (
            "assistant",
            [
                {"type": "thinking", "thinking": "easy", "signature": "x"},
                {"type": "redacted_thinking", "data": "zz"},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
                {"type": "tool_use", "id": "t2", "name": "add", "input": {}},
            ],
        ),
        (
            "user",
            [
                {"type": "tool_result", "tool_use_id": "t1", "content": "2"},
                {"type": "tool_result", "tool_use_id": "t2", "content": [text("x"), text("y")]},
                text("Well?"),
            ],
        ),
    )
    calls = (ToolCall("t1", "add", '{"a":1}'), ToolCall("t2", "add", "{}"))
    assert turns[1:] == [
        Message(role="assistant", content=None, reasoning="easy", tool_calls=calls),
        Message(role="tool", content="2", tool_call_id="t1"),
        Message(role="tool", content=(Part("text", "x"), Part("text", "y")), tool_call_id="t2"),
        Message(role="user", content="Well?"),
    ]


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({}, ""),
        ({"content": []}, ""),
        ({"content": None}, ""),
        ({"content": "no", "is_error": True}, (Part("text", "Error:"), Part("text", "no"))),
        ({"is_error": True}, "Error:"),
        ({"content": "yes", "is_error": False}, "yes"),
    ],
)
def test_a_tool_result(fields: dict[str, Any], content: Any) -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", **fields}
    assert messages(("user", [result])) == [
        Message(role="tool", content=content, tool_call_id="t1")
    ]


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x"}}
DOCUMENT = {"type": "document", "source": {"type": "text", "data": "x"}}


@pytest.mark.parametrize(
    ("block", "param"),
    [
        (IMAGE, "messages.0.content.1"),
        (DOCUMENT, "messages.0.content.1"),
        (
            {"type": "tool_result", "tool_use_id": "t", "content": [text("a"), IMAGE]},
            "messages.0.content.1.content.1",
        ),
    ],
)
def test_a_text_model_takes_no_media(block: dict[str, Any], param: str) -> None:
    error = refusal(messages=[{"role": "user", "content": [text("see"), block]}])
    assert (error.code, error.param) == (Code.UNSUPPORTED, param)


@pytest.mark.parametrize(
    ("role", "block"),
    [
        ("user", {"type": "tool_use", "id": "t", "name": "f", "input": {}}),
        ("user", {"type": "thinking", "thinking": "x"}),
        ("assistant", {"type": "tool_result", "tool_use_id": "t"}),
        ("system", {"type": "tool_result", "tool_use_id": "t"}),
        ("user", {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}),
    ],
)
def test_a_block_belongs_to_a_role(role: str, block: dict[str, Any]) -> None:
    error = refusal(messages=[{"role": role, "content": [block]}])
    assert (error.code, error.param) == (Code.INVALID, "messages.0.content.0")
    assert role in error.message


def test_a_conversation_cannot_end_with_a_tool_use() -> None:
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    error = refusal(messages=[USER, {"role": "assistant", "content": [text("a"), use]}])
    assert (error.code, error.param) == (Code.INVALID, "messages")


# Tools


def test_tools_that_are_deferred_are_not_shown() -> None:
    call = call_of(tools=[ADD, SUB])
    assert call.tools == (Tool(name="add", description="adds", parameters={"type": "object"}),)


def change(kind: str, **tool: Any) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": f"tool_{kind}", "tool": tool}]}


def test_a_conversation_may_change_its_tools() -> None:
    call = call_of(
        tools=[ADD, SUB],
        messages=[
            USER,
            change("addition", type="tool_reference", name="sub"),
            change("removal", type="tool_reference", name="add"),
            change("addition", type="tool_definition", definition={**ADD, "name": "mul"}),
        ],
    )
    assert [tool.name for tool in call.tools] == ["sub", "mul"]
    assert [message.role for message in call.messages] == ["user"]


@pytest.mark.parametrize(
    ("tool", "code", "param"),
    [
        ({"name": "web", "type": "web_search_20250305"}, Code.UNSUPPORTED, "tools.0.type"),
        ({"name": "f"}, Code.INVALID, "tools.0.input_schema"),
    ],
)
def test_a_tool_that_cannot_be_offered(tool: dict[str, Any], code: Code, param: str) -> None:
    error = refusal(tools=[tool])
    assert (error.code, error.param) == (code, param)


def test_a_change_names_a_tool() -> None:
    error = refusal(messages=[USER, change("removal", type="tool_reference", name="ghost")])
    assert error.param == "messages.1.content.0.tool.name"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ({"type": "auto"}, ToolChoice()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        ({"type": "any"}, ToolChoice(mode="required")),
        ({"type": "tool", "name": "add"}, ToolChoice(mode="named", name="add")),
        ({"type": "none"}, ToolChoice(mode="none")),
    ],
)
def test_the_tool_choice(choice: Any, expected: ToolChoice) -> None:
    assert call_of(tools=[ADD], tool_choice=choice).tool_choice == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "add"}}, "tool_choice"),
        ({"tools": [SUB], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "tool", "name": "ghost"}}, "tool_choice.name"),
        ({"tools": [ADD, SUB], "tool_choice": {"type": "tool", "name": "sub"}}, "tool_choice.name"),
    ],
)
def test_a_choice_needs_its_tool(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


def test_servers_of_tools_are_not_called() -> None:
    error = refusal(mcp_servers=[{"name": "x"}])
    assert (error.code, error.param) == (Code.UNSUPPORTED, "mcp_servers")
    assert call_of(mcp_servers=[]).tools == ()


# Thinking and format


@pytest.mark.parametrize(
    ("fields", "effort", "budget"),
    [
        ({}, "none", None),
        ({"output_config": {"effort": "low"}}, "none", None),
        ({"thinking": {"type": "disabled"}, "model": "fake/low"}, "none", None),
        ({"thinking": {"type": "adaptive"}}, "high", None),
        ({"thinking": {"type": "between_tools"}, "output_config": {"effort": "max"}}, "max", None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "high", 2000),
        ({"model": "fake/low"}, "low", None),
        ({"thinking": {"type": "adaptive"}, "model": "fake/low"}, "low", None),
    ],
)
def test_a_model_thinks_when_it_is_asked_to(
    fields: dict[str, Any], effort: str, budget: int | None
) -> None:
    call = call_of(**fields)
    assert (call.effort, call.thinking_tokens) == (effort, budget)


def test_a_format_is_a_strict_schema_and_names_its_own_field() -> None:
    schema = {"type": "object"}
    call = call_of(output_config={"format": {"type": "json_schema", "schema": schema}})
    assert call.format == Constraint("json_schema", '{"type":"object"}', strict=True)
    assert call.format_field == "output_config.format"
