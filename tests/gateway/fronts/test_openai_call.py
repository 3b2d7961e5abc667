"""Bodies to Calls: what is set, what is default, what is refused."""

from typing import Any

import msgspec
import pytest

from fakes.generator import Gateway
from turing_gateway.call import Call, Message, Part, Template, Tool, ToolCall, ToolChoice
from turing_protocol.sampling import Constraint, Sampling

USER = {"role": "user", "content": "hi"}
FUNCTION = {"type": "function", "function": {"name": "f"}}
NAMED = {"type": "function", "function": {"name": "g"}}


def call(**fields: Any) -> Call:
    gateway = Gateway()
    reply = gateway.chat(**fields)
    assert reply.status_code == 200, reply.text
    return gateway.call()


def test_defaults_are_openai_s() -> None:
    made = call()
    assert made.sampling == Sampling(temperature=1.0, top_p=1.0, logprobs=-1)
    assert (made.max_tokens, made.seed, made.choices, made.stream) == (None, None, 1, False)
    assert made.template == Template()


def test_every_sampling_field_arrives() -> None:
    made = call(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        repetition_penalty=1.2,
        frequency_penalty=-1,
        presence_penalty=2,
        min_tokens=3,
        seed=-5,
        logit_bias={"7": -100, "8": 1.5},
        stop_token_ids=[9],
        ignore_eos=True,
        logprobs=True,
        top_logprobs=4,
    )
    assert made.sampling == Sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        repetition_penalty=1.2,
        frequency_penalty=-1,
        presence_penalty=2,
        min_tokens=3,
        seed=-5,
        logit_bias=((7, -100.0), (8, 1.5)),
        stop_ids=(9,),
        ignore_eos=True,
        logprobs=4,
    )
    assert made.seed == -5


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"top_k": -1}, "sampling.top_k", 0),
        ({"logprobs": True}, "sampling.logprobs", 0),
        ({"logprobs": False}, "sampling.logprobs", -1),
        ({"max_tokens": 5}, "max_tokens", 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, "max_tokens", 7),
        ({"stop": "x"}, "stop", ("x",)),
        ({"stop": ["x", "y"]}, "stop", ("x", "y")),
        ({"stop": []}, "stop", ()),
        ({"stop": None}, "stop", ()),
        ({"n": 3}, "choices", 3),
        ({"include_stop_str_in_output": True}, "include_stop", True),
        ({"skip_special_tokens": False}, "skip_special_tokens", False),
        ({"cache_salt": "tenant-a"}, "salt", "tenant-a"),
        ({"reasoning_effort": "xhigh"}, "effort", "xhigh"),
        ({"add_generation_prompt": False}, "template.add_generation_prompt", False),
        ({"continue_final_message": True}, "template.add_generation_prompt", False),
        ({"continue_final_message": True}, "template.continue_final_message", True),
        ({"chat_template_kwargs": {"a": 1}}, "template.kwargs", {"a": 1}),
        ({"response_format": {"type": "text"}}, "format", None),
        ({"response_format": {"type": "json_object"}}, "format", Constraint("json_object")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True},
                }
            },
            "format",
            Constraint("json_schema", '{"type":"object"}', strict=True),
        ),
        (
            {"structured_outputs": {"json": {"type": "string"}}},
            "format",
            Constraint("json_schema", '{"type":"string"}', strict=True),
        ),
        (
            {"structured_outputs": {"regex": "a+"}},
            "format",
            Constraint("regex", "a+", strict=True),
        ),
        (
            {"structured_outputs": {"choice": ["a", "b"]}},
            "format",
            Constraint("choice", '["a","b"]', strict=True),
        ),
    ],
)
def test_a_field_becomes(fields: dict[str, Any], name: str, value: Any) -> None:
    made: Any = call(**fields)
    for part in name.split("."):
        made = getattr(made, part)
    assert made == value


def test_messages_arrive_whole() -> None:
    history = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "reasoning": "hm",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "t2", "function": {"name": "g", "arguments": {"x": 1}}},
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "out", "name": "f"},
        {"role": "assistant", "refusal": "no"},
        {"role": "assistant", "content": "x", "reasoning_content": "why"},
    ]
    assert call(messages=history).messages == (
        Message(role="developer", content="be brief"),
        Message(role="user", content=(Part("text", "a"), Part("text", "b"))),
        Message(
            role="assistant",
            reasoning="hm",
            tool_calls=(ToolCall("t1", "f", "{}"), ToolCall("t2", "g", '{"x":1}')),
        ),
        Message(role="tool", tool_call_id="t1", content="out", name="f"),
        Message(role="assistant", content="no"),
        Message(role="assistant", content="x", reasoning="why"),
    )


def test_tools_arrive_whole() -> None:
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    made = call(tools=[{"type": "function", "function": function}], tool_choice="none")
    assert made.tools == (
        Tool(name="f", description="d", parameters={"type": "object"}, strict=True),
    )


@pytest.mark.parametrize(
    ("choice", "made"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice(mode="none")),
        ("required", ToolChoice(mode="required")),
        (
            {"type": "function", "function": {"name": "f"}},
            ToolChoice(mode="named", name="f"),
        ),
    ],
)
def test_a_tool_choice_arrives(choice: Any, made: ToolChoice) -> None:
    assert call(tools=[FUNCTION], tool_choice=choice).tool_choice == made
    single = call(tools=[FUNCTION], tool_choice=choice, parallel_tool_calls=False).tool_choice
    assert single == msgspec.structs.replace(made, parallel=False)


def test_only_allowed_tools_are_offered() -> None:
    other = {"type": "function", "function": {"name": "g"}}
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [{"type": "function", "function": {"name": "g"}}],
        },
    }
    made = call(tools=[FUNCTION, other], tool_choice=choice)
    assert [tool.name for tool in made.tools] == ["g"]
    assert made.tool_choice == ToolChoice(mode="required")


def test_how_long_the_model_may_think_arrives() -> None:
    made = call(reasoning_effort="low", thinking_token_budget=7)
    assert (made.effort, made.thinking_tokens) == ("low", 7)


UNKNOWN = {
    "type": "allowed_tools",
    "allowed_tools": {"tools": [{"type": "function", "function": {"name": "other"}}]},
}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages.0"),
        ({"messages": [{"content": "hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "", "content": "hi"}]}, "messages.0.role"),
        ({"messages": [USER, {"role": "user"}]}, "messages.1.content"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
            "messages.0.content.0.type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
            "messages.0.content.0.type",
        ),
        ({"temperature": -0.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 0.01}, "top_k"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 5}, "presence_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3.7}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stop": 5}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"seed": 2**70}, "seed"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"٣": 1}}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "grammar": "b"}}, "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}},
            "structured_outputs",
        ),
        ({"tools": "f"}, "tools"),
        ({"tools": []}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [FUNCTION], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": NAMED}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": UNKNOWN}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"reasoning_effort": "ultra"}, "reasoning_effort"),
        ({"cache_salt": "a/b"}, "cache_salt"),
        ({"cache_salt": ""}, "cache_salt"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages.0.content.0",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "input_audio", "input_audio": 1}]}
                ]
            },
            "messages.0.content.0",
        ),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    gateway = Gateway()
    reply = gateway.chat(**fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert gateway.generator.calls == []
